"""Localization: the mask that a rank makes for its own rows is that of the global rows that they are."""

from __future__ import annotations

import numpy as np
import pytest
from core_masks import assert_equal, chunks, mask_of_columns, masks, random_mask
from hypothesis import given, settings
from hypothesis import strategies as st

from fm3_core import ColumnMask, Partition, PartitionError, localize, localize_by_definition, patterns
from fm3_core.partition import token_ranges

LAW = settings(deadline=None, max_examples=200)


def _rows(offsets, lengths):
    return token_ranges(np.array(offsets, dtype=np.int64), np.array(lengths, dtype=np.int64))


def _assert_local(mask, offsets, lengths):
    local = localize(mask, offsets, lengths)
    by_definition = localize_by_definition(mask, offsets, lengths)
    assert local.num_rows == by_definition.num_rows == sum(lengths)
    for name in ("lts", "lte", "uts", "ute"):
        assert_equal(getattr(local, name), getattr(by_definition, name), name)
    assert_equal(local.to_dense(), mask.to_dense()[:, :, _rows(offsets, lengths)], "dense local mask")


@LAW
@given(masks(max_rows=14), st.data())
def test_the_local_mask_is_the_owned_rows_of_the_dense_one_by_both_forms(mask, data):
    _assert_local(mask, *data.draw(chunks(mask.num_rows)))


@LAW
@given(masks(shape=(60, 2)), st.data())
def test_a_mask_with_many_more_rows_than_keys_is_localized_the_same(mask, data):
    _assert_local(mask, *data.draw(chunks(60)))


def test_both_fast_paths_are_taken_by_these_tests_and_agree_on_larger_masks():
    rng = np.random.default_rng(4)
    for rows, keys in [(500, 3), (500, 400)]:
        mask = random_mask(rng, 2, 2, rows, keys)
        cuts = np.sort(rng.integers(0, rows + 1, 40))
        _assert_local(mask, cuts[:-1:2].tolist(), np.diff(cuts)[::2].tolist())


def test_rows_as_many_as_int32_counts_need_no_memory_for_each():
    rows = 2**31 - 1
    mask = mask_of_columns(rows, (5, rows, 0, 2), (0, rows - 3, 0, 0))
    local = localize(mask, [1, rows - 4], [3, 4])
    assert [vector.tolist() for vector in local.vectors] == [[[[3, 0]]], [[[7, 4]]], [[[0, 0]]], [[[1, 0]]]]


@LAW
@given(masks(max_rows=12), st.data())
def test_localization_commutes_with_taking_keys(mask, data):
    offsets, lengths = data.draw(chunks(mask.num_rows))
    keys = range(0, mask.num_keys, 2)
    assert localize(mask.take_keys(keys), offsets, lengths) == localize(mask, offsets, lengths).take_keys(
        keys
    )


@LAW
@given(masks(max_rows=12), st.data())
def test_localizing_a_local_mask_again_is_localizing_once(mask, data):
    offsets, lengths = data.draw(chunks(mask.num_rows))
    owned = _rows(offsets, lengths)
    inner_offsets, inner_lengths = data.draw(chunks(len(owned)))
    twice = localize(localize(mask, offsets, lengths), inner_offsets, inner_lengths)
    rows = owned[_rows(inner_offsets, inner_lengths)]
    once = localize(mask, rows, np.ones(len(rows), dtype=int))
    assert twice == once


@LAW
@given(masks(max_rows=10), st.integers(1, 4), st.integers(1, 3), st.randoms(use_true_random=False))
def test_the_ranks_of_a_partition_share_the_visible_pairs_out(mask, chunk_size, num_ranks, random):
    num_chunks = -(-mask.num_rows // chunk_size)
    owner = [random.randrange(num_ranks) for _ in range(num_chunks)]
    by_rank = tuple(tuple(c for c in range(num_chunks) if owner[c] == rank) for rank in range(num_ranks))
    partition = Partition(mask.num_rows, chunk_size, by_rank)
    local = [localize(mask, partition.offsets(rank), partition.lengths(rank)) for rank in range(num_ranks)]
    assert_equal(sum(part.visible_pairs() for part in local), mask.visible_pairs())
    rows = np.concatenate([part.to_dense() for part in local], axis=2)[:, :, partition.inverse()]
    assert_equal(rows, mask.to_dense())


@LAW
@given(masks(max_rows=12), st.data())
def test_one_chunk_is_a_slice_and_all_chunks_are_the_mask(mask, data):
    end = data.draw(st.integers(0, mask.num_rows))
    start = data.draw(st.integers(0, end))
    assert localize(mask, [start], [end - start]) == mask.slice_rows(start, end)
    assert localize(mask, range(mask.num_rows), [1] * mask.num_rows) == mask


def test_a_rank_without_chunks_has_a_mask_without_rows():
    local = localize(patterns.causal(6), [], [])
    assert local == localize_by_definition(patterns.causal(6), [], []) == patterns.full(0, 6)
    assert localize(patterns.full(6, 0), [], []).shape == (1, 1, 0, 0)
    assert localize(patterns.full(600, 1), [], []).shape == (1, 1, 0, 1)


def test_a_rank_whose_tokens_are_all_padding_sees_nothing():
    local = localize(patterns.causal_document([5], padding=3), [5, 7], [2, 1])
    assert local.visible_pairs().tolist() == [[0]]


def test_causality_survives_as_a_span_where_a_flag_would_not():
    local = localize(patterns.causal(8), [0, 6], [2, 2])
    assert_equal(local.to_dense()[0, 0], np.tri(8, dtype=bool)[[0, 1, 6, 7]])


@pytest.mark.parametrize("gap", [3, 4, 5])
def test_boundaries_inside_gaps_and_on_chunk_edges_are_covered(gap):
    mask = mask_of_columns(12, (gap, 9, 0, 0), (gap, gap, 1, 3), (gap + 1, 12, 0, gap))
    _assert_local(mask, [0, 5, 9], [3, 2, 2])


def test_empty_chunks_change_nothing():
    mask = random_mask(np.random.default_rng(5), 1, 1, 20, 6)
    with_empty = localize(mask, [2, 2, 5, 9, 9, 20], [0, 3, 0, 0, 4, 0])
    assert with_empty == localize(mask, [2, 9], [3, 4])


def test_unsorted_chunks_would_often_be_wrong_so_that_they_are_refused():
    rng = np.random.default_rng(6)
    wrong = 0
    for _ in range(300):
        mask = random_mask(rng, 1, 1, 8, 1)
        claimed = [sum(_images([(4, 4), (0, 4)], int(x))) for x in (mask.lts[0, 0, 0], mask.lte[0, 0, 0])]
        hidden = np.zeros(8, dtype=bool)
        hidden[claimed[0] : claimed[1]] = True
        order = [4, 5, 6, 7, 0, 1, 2, 3]
        lower_only = ColumnMask(mask.lts, mask.lte, mask.lts * 0, mask.lts * 0, num_rows=8)
        wrong += not np.array_equal(~hidden, lower_only.to_dense()[0, 0, order, 0])
    assert wrong > 60
    with pytest.raises(PartitionError, match="chunks must ascend"):
        localize(patterns.causal(8), [4, 0], [4, 4])


def _images(pairs, boundary):
    return [min(max(boundary - start, 0), length) for start, length in pairs]


@pytest.mark.parametrize("function", [localize, localize_by_definition])
@pytest.mark.parametrize(
    ("offsets", "lengths", "words"),
    [
        (
            [4, 0],
            [2, 2],
            r"chunk 1: rows \[0, 2\) must start at or behind 6, .* chunks must ascend \(1 of 2 are wrong\)",
        ),
        ([0, 1], [2, 2], r"chunk 1: rows \[1, 3\) must start at or behind 2"),
        ([0, 6], [2, 3], r"chunk 1: rows \[6, 9\) must .* end at or before num_rows=8"),
        ([0], [1, 1], "offsets and lengths must have one length, got 1 and 2"),
        ([-1], [1], r"offsets\[0\] must be in 0\.\.8, got -1"),
        ([0], [-1], r"lengths\[0\] must be in 0\.\.8, got -1"),
        ([0], [2**62], r"lengths\[0\] must be in 0\.\.8, got 4611686018427387904"),
        ([0.0], [1], r"offsets\[0\] must be an integer, got 0.0"),
        ([[0]], [1], "offsets must be a sequence of integers"),
        (0, 1, "offsets must be a sequence of integers, got 0"),
    ],
)
def test_chunks_that_are_no_rows_of_the_mask_are_refused(function, offsets, lengths, words):
    with pytest.raises(PartitionError, match=words):
        function(patterns.causal(8), offsets, lengths)
