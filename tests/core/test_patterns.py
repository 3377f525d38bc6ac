"""Each pattern against its one-line definition, written as a slow loop."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from core_masks import assert_equal
from hypothesis import given, settings
from hypothesis import strategies as st

from fm3_core import MaskError, patterns

LAW = settings(deadline=None, max_examples=60)
LENGTHS = st.lists(st.integers(0, 5), max_size=4)


def _loop(rows, keys, sees):
    return np.array([[bool(sees(i, k)) for k in range(keys)] for i in range(rows)], dtype=bool).reshape(
        rows, keys
    )


def _assert_is(mask, sees):
    assert mask.shape[:2] == (1, 1)
    assert_equal(mask.to_dense()[0, 0], _loop(mask.num_rows, mask.num_keys, sees), "dense mask")


def _part_of(lengths, padding=0):
    """The stretch of each token, -1 for padding."""
    return [part for part, length in enumerate(lengths) for _ in range(length)] + [-1] * padding


@LAW
@given(st.integers(0, 7), st.integers(0, 7))
def test_full_sees_everything(rows, keys):
    _assert_is(patterns.full(rows, keys), lambda i, k: True)
    assert patterns.full(rows).num_keys == rows


@LAW
@given(st.integers(0, 7), st.integers(0, 7))
def test_causal_is_bottom_right_aligned(rows, keys):
    _assert_is(patterns.causal(rows, keys), lambda i, k: k <= i + keys - rows)
    assert patterns.causal(rows) == patterns.causal(rows, rows)


@LAW
@given(st.integers(0, 8), st.integers(0, 9), st.integers(0, 9))
def test_sliding_window_includes_both_ends(rows, left, right):
    _assert_is(patterns.sliding_window(rows, left, right), lambda i, k: i - left <= k <= i + right)
    assert patterns.sliding_window(rows, left) == patterns.sliding_window(rows, left, 0)


@LAW
@given(LENGTHS, st.integers(0, 3))
def test_causal_document_is_causal_inside_a_document(lengths, padding):
    part = _part_of(lengths, padding)
    mask = patterns.causal_document(lengths, padding=padding)
    _assert_is(mask, lambda i, k: part[i] == part[k] >= 0 and k <= i)


@LAW
@given(LENGTHS, st.integers(0, 3))
def test_document_sees_its_own_document(lengths, padding):
    part = _part_of(lengths, padding)
    _assert_is(patterns.document(lengths, padding=padding), lambda i, k: part[i] == part[k] >= 0)


@LAW
@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=3), st.integers(0, 2))
def test_share_question_sees_the_question_and_its_own_part(groups, padding):
    document_of = _part_of([sum(group) for group in groups], padding)
    part = _part_of([size for group in groups for size in group], padding)
    questions = {sum(len(group) for group in groups[:i]) for i in range(len(groups))}

    def sees(i, k):
        return (
            document_of[i] == document_of[k] >= 0 and k <= i and (part[k] in questions or part[k] == part[i])
        )

    _assert_is(patterns.share_question(groups, padding=padding), sees)


@LAW
@given(st.integers(0, 8), st.integers(0, 9), st.integers(0, 5), st.integers(0, 5))
def test_global_sliding_window_sees_and_is_seen_by_the_first_tokens(rows, num_global, left, right):
    mask = patterns.global_sliding_window(rows, num_global, left, right)
    _assert_is(mask, lambda i, k: k < num_global or i < num_global or i - left <= k <= i + right)


@LAW
@given(LENGTHS)
def test_causal_blockwise_sees_its_block_and_the_last_block_sees_all(lengths):
    part = _part_of(lengths)
    last = len(lengths) - 1
    _assert_is(
        patterns.causal_blockwise(lengths), lambda i, k: k <= i and (part[i] == part[k] or part[i] == last)
    )


@pytest.mark.parametrize("lengths", [[4], [0, 4], [3, 4], [1, 2, 4], [0, 0], []])
def test_causal_blockwise_takes_padding_where_two_spans_suffice(lengths):
    part = _part_of(lengths, 3)
    last = len(lengths) - 1
    mask = patterns.causal_blockwise(lengths, padding=3)
    _assert_is(
        mask, lambda i, k: part[i] >= 0 <= part[k] and k <= i and (part[i] == part[k] or part[i] == last)
    )


def test_causal_blockwise_with_padding_behind_several_blocks_is_refused_because_it_needs_three_spans():
    with pytest.raises(MaskError) as caught:
        patterns.causal_blockwise([2, 3, 4], padding=1)
    assert str(caught.value) == (
        "blocks with padding behind: column 1 needs 3 hidden spans, [0, 1), [2, 5), [9, 10); "
        "a column mask has two (1 of 10 columns are wrong)"
    )


@LAW
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=4), st.integers(0, 2))
def test_prefix_lm_document_sees_the_prefix_of_its_document_and_what_is_before(pairs, padding):
    documents = [(prefix, prefix + rest) for prefix, rest in pairs]
    part = _part_of([length for _, length in documents], padding)
    start = np.cumsum([0] + [length for _, length in documents])

    def sees(i, k):
        return part[i] == part[k] >= 0 and (k - start[part[k]] < documents[part[k]][0] or k <= i)

    _assert_is(patterns.prefix_lm_document(documents, padding=padding), sees)


@LAW
@given(st.integers(0, 8), st.data())
def test_prefix_lm_causal_sees_the_prefix_and_what_is_before(rows, data):
    prefix = data.draw(st.integers(0, rows))
    _assert_is(patterns.prefix_lm_causal(rows, prefix), lambda i, k: k < prefix or k <= i)


@LAW
@given(st.integers(0, 9), st.data())
def test_qk_sparse_is_causal_without_the_stretches_on_themselves(rows, data):
    starts = data.draw(st.lists(st.integers(0, rows), max_size=4))
    stretches = [(start, data.draw(st.integers(0, rows - start))) for start in starts]

    def sees(i, k):
        return k <= i and not any(start <= k and i < start + length for start, length in stretches)

    _assert_is(patterns.qk_sparse(rows, stretches), sees)


@LAW
@given(st.integers(1, 12), st.data(), st.integers(0, 1000))
def test_random_eviction_takes_one_cached_key_at_each_row_from_the_first_on(rows, data, seed):
    start_row = data.draw(st.integers(1, rows))
    dense = patterns.random_eviction(rows, start_row, heads=2, batch=2, seed=seed).to_dense()
    for batch, head in itertools.product(range(2), range(2)):
        cached: set[int] = set()
        for row in range(rows):
            seen = set(np.flatnonzero(dense[batch, head, row]).tolist())
            gone = cached - seen
            assert seen == (cached - gone) | {row}
            assert len(gone) == (row >= start_row)
            cached = seen


def test_random_eviction_leaves_as_many_pairs_as_a_full_cache_has_whatever_the_draw():
    rows, start_row = 64, 32
    for seed in range(5):
        mask = patterns.random_eviction(rows, start_row, heads=3, seed=seed)
        assert_equal(mask.visible_pairs(), np.full((1, 3), 32 * 33 // 2 + 32 * 32))


def test_random_eviction_draws_afresh_for_each_head_batch_entry_and_seed_and_repeats_for_one_seed():
    mask = patterns.random_eviction(64, 16, heads=2, batch=2, seed=7)
    draws = {mask.lts[batch, head].tobytes() for batch in range(2) for head in range(2)}
    assert len(draws) == 4
    assert mask == patterns.random_eviction(64, 16, heads=2, batch=2, seed=7)
    assert mask != patterns.random_eviction(64, 16, heads=2, batch=2, seed=8)


def test_random_eviction_draws_uniformly_among_the_cached_keys():
    first_gone = [
        int(np.argmax(patterns.random_eviction(8, 4, seed=seed).lts[0, 0] == 4)) for seed in range(400)
    ]
    counts = np.bincount(first_gone, minlength=8)
    assert counts[4:].sum() == 0
    assert counts[:4].min() > 70


def test_random_eviction_from_the_last_row_on_is_causal():
    assert patterns.random_eviction(6, 6, seed=0) == patterns.causal(6)
    assert patterns.random_eviction(0, 0, seed=0) == patterns.full(0)


def test_one_document_is_the_mask_without_documents():
    assert patterns.causal_document([6]) == patterns.causal(6)
    assert patterns.document([6]) == patterns.full(6)
    assert patterns.causal_blockwise([6]) == patterns.causal(6)
    assert patterns.prefix_lm_document([(2, 6)]) == patterns.prefix_lm_causal(6, 2)
    assert patterns.share_question([[6]]) == patterns.causal(6)
    assert patterns.qk_sparse(6, []) == patterns.causal(6)


@pytest.mark.parametrize("lengths", [[0, 1, 3, 7], [512, 513], [0, 0], [1] * 9, []])
def test_documents_of_any_length_see_their_own_pairs_only(lengths):
    squares = sum(length * length for length in lengths)
    assert patterns.document(lengths).visible_pairs().tolist() == [[squares]]
    triangles = sum(length * (length + 1) // 2 for length in lengths)
    assert patterns.causal_document(lengths).visible_pairs().tolist() == [[triangles]]


def test_padding_sees_nobody_and_is_seen_by_nobody():
    dense = patterns.document([3, 4], padding=5, num_tokens=12).to_dense()[0, 0]
    assert not dense[7:].any()
    assert not dense[:, 7:].any()


@pytest.mark.parametrize("pattern", [patterns.document, patterns.causal_document, patterns.causal_blockwise])
def test_lengths_that_do_not_sum_to_the_tokens_are_refused(pattern):
    with pytest.raises(MaskError) as caught:
        pattern([3, 4], padding=2, num_tokens=12)
    assert str(caught.value) == (
        "2 lengths sum to 7 and padding is 2, together 9; they must sum to num_tokens=12"
    )


def test_lengths_may_be_arrays_of_any_integer_dtype():
    assert patterns.document(np.array([3, 4], dtype=np.uint8)) == patterns.document((3, 4))
    assert patterns.prefix_lm_document(np.array([[1, 3], [0, 4]])) == patterns.prefix_lm_document(
        [(1, 3), (0, 4)]
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: patterns.full(-1), "num_rows must be in 0"),
        (lambda: patterns.full(3.0), "num_rows must be an integer, got 3.0"),
        (lambda: patterns.causal(3, 2**31), "num_keys must be in"),
        (lambda: patterns.sliding_window(3, -1), "left must be >= 0, got -1"),
        (lambda: patterns.global_sliding_window(3, -1, 0, 0), "num_global must be >= 0, got -1"),
        (lambda: patterns.document([3, -1, -2]), r"lengths\[1\] must be in .*, got -1 \(2 of 3 are wrong\)"),
        (lambda: patterns.document([3, 1.5]), r"lengths\[1\] must be an integer, got 1.5"),
        (lambda: patterns.document(5), "lengths must be a sequence of integers, got 5"),
        (lambda: patterns.document([2**62] * 4), r"lengths\[0\] must be in"),
        (lambda: patterns.document([2**31 - 1, 1]), "lengths and padding together must be in"),
        (lambda: patterns.document([1], padding=-1), "padding must be >= 0, got -1"),
        (lambda: patterns.share_question([[2, 1], []]), r"groups\[1\] must be \[question, answer, ...\]"),
        (lambda: patterns.share_question([3]), r"groups\[0\] must be \[question, answer, ...\]"),
        (lambda: patterns.share_question([[2], [1, -1]]), r"groups\[1\]\[1\] must be in .*, got -1"),
        (
            lambda: patterns.prefix_lm_document([(1, 2), (3, 2)]),
            r"documents\[1\]: prefix 3 must be <= length 2",
        ),
        (
            lambda: patterns.prefix_lm_document([(1, 2, 3)]),
            r"documents\[0\] must be \(prefix, length\), got \(1, 2, 3\)",
        ),
        (lambda: patterns.share_question(5), r"groups must be a sequence of \[question, .*, got 5"),
        (lambda: patterns.share_question(["ab"]), r"groups\[0\] must be a sequence of integers, got 'ab'"),
        (lambda: patterns.prefix_lm_document([None]), r"documents\[0\] must be \(prefix, length\), got None"),
        (lambda: patterns.prefix_lm_document([5]), r"documents\[0\] must be \(prefix, length\), got 5"),
        (
            lambda: patterns.prefix_lm_document([(True, 2.5)]),
            r"documents\[0\]\[0\] must be an integer, got True",
        ),
        (lambda: patterns.prefix_lm_causal(4, 5), r"prefix must be in 0\.\.4, got 5"),
        (
            lambda: patterns.qk_sparse(4, [(0, 1), (3, 2)]),
            r"stretches\[1\] = \[3, 5\) must end at or before num_rows=4",
        ),
        (lambda: patterns.random_eviction(4, 0, seed=0), r"start_row must be in 1\.\.4, got 0"),
        (lambda: patterns.random_eviction(4, 2, heads=0, seed=0), "heads must be >= 1, got 0"),
        (lambda: patterns.random_eviction(4, 2, seed=None), "seed must be an integer, got None"),
    ],
)
def test_arguments_that_mean_no_mask_are_refused_by_name(call, words):
    with pytest.raises(MaskError, match=words):
        call()


@pytest.mark.parametrize("distance", [2**31, 2**62, 2**63 - 1, 2**63, 2**70])
def test_a_distance_beyond_any_integer_width_means_everything(distance):
    assert patterns.sliding_window(5, distance, distance) == patterns.full(5)
    assert patterns.sliding_window(5, distance) == patterns.causal(5)
    assert patterns.global_sliding_window(5, distance, 0, 0) == patterns.full(5)
    assert patterns.global_sliding_window(5, 0, distance, distance) == patterns.full(5)


def test_the_twelve_patterns_stand_in_the_table_by_name():
    assert list(patterns.PATTERNS) == [
        "full",
        "causal",
        "sliding_window",
        "causal_document",
        "document",
        "share_question",
        "global_sliding_window",
        "causal_blockwise",
        "prefix_lm_document",
        "prefix_lm_causal",
        "qk_sparse",
        "random_eviction",
    ]
    assert all(patterns.PATTERNS[name] is getattr(patterns, name) for name in patterns.PATTERNS)
