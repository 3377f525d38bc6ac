"""The algebra of masks against the same operations on dense masks."""

from __future__ import annotations

import numpy as np
import pytest
from core_masks import assert_equal, mask_of_columns, mask_pairs, masks, random_mask
from hypothesis import given, settings
from hypothesis import strategies as st

from fm3_core import ColumnMask, MaskError, pack, patterns

LAW = settings(deadline=None, max_examples=150)


def _has_a_form(dense: np.ndarray) -> bool:
    padded = np.pad(~dense, ((0, 0), (0, 0), (1, 0), (0, 0)))
    return bool(((padded[:, :, 1:] & ~padded[:, :, :-1]).sum(axis=2) <= 2).all())


def _outcome(operation) -> np.ndarray | None:
    try:
        return operation().to_dense()
    except MaskError:
        return None


def _expected(dense: np.ndarray) -> np.ndarray | None:
    return dense if _has_a_form(dense) else None


def _assert_same_outcome(actual: np.ndarray | None, expected: np.ndarray | None) -> None:
    assert (actual is None) == (expected is None)
    assert_equal(np.asarray(actual), np.asarray(expected))


@LAW
@given(mask_pairs())
def test_and_is_visible_in_both_and_refused_exactly_when_that_has_no_form(pair):
    first, second = pair
    _assert_same_outcome(_outcome(lambda: first & second), _expected(first.to_dense() & second.to_dense()))


@LAW
@given(mask_pairs())
def test_or_is_visible_in_either_and_refused_exactly_when_that_has_no_form(pair):
    first, second = pair
    _assert_same_outcome(_outcome(lambda: first | second), _expected(first.to_dense() | second.to_dense()))


@LAW
@given(masks())
def test_not_swaps_visible_and_hidden_and_is_refused_exactly_when_that_has_no_form(mask):
    _assert_same_outcome(_outcome(lambda: ~mask), _expected(~mask.to_dense()))


@LAW
@given(mask_pairs(max_rows=5, max_keys=4))
def test_de_morgan_holds_where_both_sides_have_a_form(pair):
    first, second = pair
    left, right = _outcome(lambda: ~(first & second)), _outcome(lambda: ~first | ~second)
    assert left is None or right is None or np.array_equal(left, right)
    left, right = _outcome(lambda: ~(first | second)), _outcome(lambda: ~first & ~second)
    assert left is None or right is None or np.array_equal(left, right)


@LAW
@given(mask_pairs(max_rows=6, max_keys=4))
def test_and_and_or_commute_and_keep_a_mask_met_with_itself(pair):
    first, second = pair
    _assert_same_outcome(_outcome(lambda: first & second), _outcome(lambda: second & first))
    _assert_same_outcome(_outcome(lambda: first | second), _outcome(lambda: second | first))
    assert first & first == first
    assert first | first == first


@LAW
@given(masks())
def test_full_is_neutral_in_and_and_absorbs_in_or(mask):
    everything = patterns.full(mask.num_rows, mask.num_keys)
    assert mask & everything == mask
    assert_equal((mask | everything).to_dense(), np.ones(mask.shape, dtype=bool))


@LAW
@given(masks(), st.data())
def test_slices_are_slices_of_the_dense_mask(mask, data):
    end = data.draw(st.integers(0, mask.num_rows))
    start = data.draw(st.integers(0, end))
    assert_equal(mask.slice_rows(start, end).to_dense(), mask.to_dense()[:, :, start:end])
    key_end = data.draw(st.integers(0, mask.num_keys))
    key_start = data.draw(st.integers(0, key_end))
    assert_equal(mask.slice_keys(key_start, key_end).to_dense(), mask.to_dense()[..., key_start:key_end])


@LAW
@given(masks(max_keys=5), st.data())
def test_taking_keys_takes_columns_of_the_dense_mask(mask, data):
    index = data.draw(
        st.lists(st.integers(0, mask.num_keys - 1), max_size=8) if mask.num_keys else st.just([])
    )
    assert_equal(mask.take_keys(index).to_dense(), mask.to_dense()[..., np.array(index, dtype=int)])


@LAW
@given(masks(max_rows=6), st.permutations(range(5)))
def test_permuting_keys_there_and_back_changes_nothing(mask, order):
    whole = (
        mask.take_keys([key % mask.num_keys for key in range(5)]) if mask.num_keys else patterns.full(4, 5)
    )
    assert whole.take_keys(order).take_keys(np.argsort(order)) == whole


@LAW
@given(st.lists(masks(max_rows=4, max_keys=3, batch=1, heads=1), min_size=1, max_size=3))
def test_packing_lays_dense_masks_along_the_diagonal(several):
    rows, keys = sum(mask.num_rows for mask in several), sum(mask.num_keys for mask in several)
    dense = np.zeros((1, 1, rows, keys), dtype=bool)
    row = key = 0
    for mask in several:
        dense[:, :, row : row + mask.num_rows, key : key + mask.num_keys] = mask.to_dense()
        row, key = row + mask.num_rows, key + mask.num_keys
    _assert_same_outcome(_outcome(lambda: pack(several)), _expected(dense))


def test_packing_causal_masks_is_the_causal_document_mask():
    lengths = [3, 0, 1, 7]
    assert pack([patterns.causal(length) for length in lengths]) == patterns.causal_document(lengths)


def test_packing_broadcasts_batch_and_heads():
    several = random_mask(np.random.default_rng(1), 2, 3, 4, 2).canonical()
    tail_only = ColumnMask(
        several.lts, np.full_like(several.lts, 4), several.lts * 0, several.lts * 0, num_rows=4
    )
    packed = pack([patterns.full(2), tail_only])
    assert packed.shape == (2, 3, 6, 4)
    assert_equal(packed.to_dense()[:, :, 2:, 2:], tail_only.to_dense())


def test_packing_nothing_is_refused():
    with pytest.raises(MaskError, match="at least one mask"):
        pack([])


def test_packing_more_rows_than_int32_holds_is_refused():
    tall = patterns.full(2**31 - 1, 1)
    with pytest.raises(MaskError, match="the packed mask's num_rows must be in"):
        pack([tall, tall])


def test_packing_a_mask_with_two_inner_spans_names_the_column():
    inner = mask_of_columns(9, (2, 3, 5, 6))
    with pytest.raises(MaskError) as caught:
        pack([patterns.full(1), inner])
    assert str(caught.value) == (
        "pack: column 1 needs 3 hidden spans, [0, 1), [3, 4), [6, 7); a column mask has two "
        "(1 of 2 columns are wrong)"
    )


def test_a_frame_window_with_key_frames_is_refused_and_never_approximated():
    window = patterns.sliding_window(12, left=1, right=1)
    key_frames = mask_of_columns(12, *[(0, 6, 8, 12)] * 12)
    with pytest.raises(MaskError) as caught:
        window | key_frames
    assert str(caught.value) == (
        "|: column 2 needs 3 hidden spans, [0, 1), [4, 6), [8, 12); a column mask has two "
        "(2 of 12 columns are wrong)"
    )


def test_documents_met_with_a_window_is_a_window_inside_each_document():
    lengths, left = [4, 0, 5, 1], 2
    mask = patterns.causal_document(lengths) & patterns.sliding_window(10, left=left)
    document_of = np.repeat(range(4), lengths)
    row, key = np.indices((10, 10))
    expected = (document_of[row] == document_of[key]) & (key <= row) & (row - left <= key)
    assert_equal(mask.to_dense()[0, 0], expected)


def test_a_window_of_two_over_eight_tokens_sees_fifteen_pairs():
    mask = patterns.sliding_window(8, left=1)
    assert mask.visible_pairs().tolist() == [[15]]
    assert_equal(mask.to_dense()[0, 0].sum(axis=1), [1] + [2] * 7)


def test_a_head_of_its_own_for_each_query_head_keeps_its_meaning_through_and():
    heads = [patterns.sliding_window(6, left=left) for left in range(8)]
    vectors = [np.concatenate([mask.vectors[i] for mask in heads], axis=1) for i in range(4)]
    per_head = ColumnMask(*vectors, num_rows=6) & patterns.causal_document([2, 4])
    assert per_head.heads == 8
    for head, mask in enumerate(heads):
        expected = (mask & patterns.causal_document([2, 4])).to_dense()[0, 0]
        assert_equal(per_head.to_dense()[0, head], expected, f"head {head}")


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        (
            lambda mask: mask & patterns.full(4, 3),
            "&: both masks must have the same rows and keys, got 4 x 4 and 4 x 3",
        ),
        (lambda mask: mask | patterns.full(3, 4), r"\|: both masks .* got 4 x 4 and 3 x 4"),
        (lambda mask: mask.slice_rows(3, 2), r"start must be in 0\.\.2, got 3"),
        (lambda mask: mask.slice_rows(0, 5), r"end must be in 0\.\.4, got 5"),
        (lambda mask: mask.slice_keys(-1, 2), r"start must be in 0\.\.2, got -1"),
        (lambda mask: mask.slice_keys(0, 2.0), "end must be an integer, got 2.0"),
        (
            lambda mask: mask.take_keys([0, 4, -1]),
            r"index\[1\] must be in 0\.\.3, got 4 \(2 of 3 are wrong\)",
        ),
        (lambda mask: mask.take_keys([True, False]), r"index\[0\] must be an integer, got True"),
        (lambda mask: mask.take_keys([0.0]), r"index\[0\] must be an integer, got 0.0"),
        (lambda mask: mask.take_keys([[0]]), "index must be a sequence of integers"),
        (lambda mask: mask.take_keys(1), "index must be a sequence of integers, got 1"),
        (lambda mask: mask.take_keys(np.array([2**64 - 1], np.uint64)), r"index\[0\] must be in 0\.\.3"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(operation, words):
    with pytest.raises(MaskError, match=words):
        operation(patterns.full(4))


def test_batches_that_do_not_broadcast_are_refused():
    rng = np.random.default_rng(2)
    with pytest.raises(MaskError, match="&: heads must be equal or 1, got 2 and 3"):
        random_mask(rng, 1, 2, 4, 4) & random_mask(rng, 1, 3, 4, 4)


def test_taking_no_keys_leaves_the_rows():
    assert patterns.causal(5).take_keys([]).shape == (1, 1, 5, 0)
    assert patterns.full(5, 0).take_keys(np.zeros(0)).shape == (1, 1, 5, 0)


@pytest.mark.parametrize(
    ("masks", "text"),
    [
        (patterns.causal(2), r"pack needs a list of at least one mask, got ColumnMask\("),
        ([patterns.causal(2), 1], r"masks\[1\] must be a ColumnMask, got 1"),
    ],
)
def test_pack_refuses_what_is_no_list_of_masks(masks, text):
    with pytest.raises(MaskError, match=text):
        pack(masks)
