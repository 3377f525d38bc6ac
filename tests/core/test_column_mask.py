"""The column mask as a value: what it accepts, keeps, counts and says."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import numpy as np
import pytest
from core_masks import assert_equal, mask_of_columns, mask_pairs, masks, random_mask
from hypothesis import given, settings

from fm3_core import ColumnMask, Fm3Error, MaskError, patterns

VECTORS = tuple(np.array(values).reshape(1, 1, 3) for values in ([2, 3, 8], [4, 8, 8], [0, 1, 0], [0, 2, 3]))


def test_a_reversed_span_is_refused_with_the_column_the_span_and_the_rule():
    with pytest.raises(MaskError) as caught:
        ColumnMask([[[3, 4, 8]]], [[[8, 2, 8]]], [[[0, 0, 0]]], [[[0, 0, 0]]], num_rows=8)
    assert str(caught.value) == (
        "column 1: lower span [4, 2) must satisfy 0 <= start <= end <= num_rows=8 (1 of 3 columns are wrong)"
    )


def test_a_wrong_span_of_many_heads_names_batch_and_head():
    lts = np.zeros((2, 3, 4), dtype=int)
    uts = lts.copy()
    uts[1, 2, 3] = 1
    with pytest.raises(MaskError) as caught:
        ColumnMask(lts, lts, uts, lts, num_rows=8)
    assert str(caught.value) == (
        "batch 1, head 2, column 3: upper span [1, 0) must satisfy 0 <= start <= end <= num_rows=8 "
        "(1 of 24 columns are wrong)"
    )


@pytest.mark.parametrize(("start", "end"), [(-1, 2), (0, 9), (9, 9), (2**40, 2**40 + 1), (-(2**40), 1)])
def test_a_boundary_outside_the_rows_is_refused_before_it_becomes_int32(start, end):
    with pytest.raises(MaskError, match=rf"column 0: lower span \[{start}, {end}\)"):
        mask_of_columns(8, (start, end, 0, 0))


def test_unsigned_boundaries_that_would_wrap_are_refused():
    huge = np.array([[[2**64 - 1]]], dtype=np.uint64)
    with pytest.raises(MaskError, match="18446744073709551615"):
        ColumnMask(huge, huge, [[[0]]], [[[0]]], num_rows=8)


def test_a_user_mistake_is_a_value_error_and_an_fm3_error():
    assert issubclass(MaskError, ValueError)
    assert issubclass(MaskError, Fm3Error)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.zeros((1, 1, 3)), "lts must be integers, got float64"),
        (np.zeros((1, 1, 3), dtype=bool), "lts must be integers, got bool"),
        ([[["a", "b", "c"]]], "lts must be integers, got <U1"),
        ([[[2**70, 0, 0]]], "lts must be integers, got object"),
        ([[[1, 2], [3]]], "lts cannot be read as an array"),
        (np.zeros(3, dtype=int), r"lts must have shape \[batch, heads, keys\], got \(3,\)"),
        (np.zeros((1, 1, 2), dtype=int), r"one shape, got lts \(1, 1, 2\), lte \(1, 1, 3\)"),
    ],
)
def test_what_is_no_integer_array_of_one_shape_is_refused(value, words):
    with pytest.raises(MaskError, match=words):
        ColumnMask(value, *VECTORS[1:], num_rows=8)


@pytest.mark.parametrize(
    ("num_rows", "words"),
    [
        (8.0, "num_rows must be an integer"),
        (True, "num_rows must be an integer"),
        (-1, "num_rows must be in 0"),
    ],
)
def test_rows_that_are_no_row_count_are_refused(num_rows, words):
    with pytest.raises(MaskError, match=words):
        ColumnMask(*VECTORS, num_rows=num_rows)


@pytest.mark.parametrize(
    "dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]
)
def test_any_integer_dtype_is_taken_and_stored_as_int32(dtype):
    mask = ColumnMask(*(vector.astype(dtype) for vector in VECTORS), num_rows=8)
    assert [vector.dtype for vector in mask.vectors] == [np.int32] * 4
    assert mask == ColumnMask(*VECTORS, num_rows=8)


def test_lists_and_numpy_row_counts_are_taken():
    mask = ColumnMask(*(vector.tolist() for vector in VECTORS), num_rows=np.int64(8))
    assert mask == ColumnMask(*VECTORS, num_rows=8)
    assert type(mask.num_rows) is int


def test_changing_the_input_afterwards_does_not_change_the_mask():
    vectors = [vector.astype(np.int32) for vector in VECTORS]
    mask = ColumnMask(*vectors, num_rows=8)
    before = mask.fingerprint
    vectors[0][...] = 0
    assert mask.lts[0, 0, 0] == 2
    assert ColumnMask(*mask.vectors, num_rows=8).fingerprint == before


def test_vectors_are_read_only_and_contiguous_whatever_they_were_made_from():
    strided = [np.asfortranarray(np.tile(vector, (2, 2, 1)).astype(np.int32)) for vector in VECTORS]
    base = ColumnMask(*strided, num_rows=8)
    derived = [
        base,
        base.canonical(),
        base.slice_rows(1, 5),
        base.slice_keys(0, 2),
        base.take_keys([1]),
        base & base,
    ]
    for vector in [vector for mask in derived for vector in mask.vectors]:
        assert vector.flags.c_contiguous
        with pytest.raises(ValueError, match="read-only"):
            vector[0, 0, 0] = 1


def test_fields_cannot_be_assigned():
    mask = ColumnMask(*VECTORS, num_rows=8)
    with pytest.raises(dataclasses.FrozenInstanceError):
        mask.num_rows = 9


def test_a_slice_does_not_share_memory_with_the_mask():
    mask = ColumnMask(*VECTORS, num_rows=8)
    assert not np.shares_memory(mask.slice_keys(0, 3).lts, mask.lts)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda mask: pickle.loads(pickle.dumps(mask))])
def test_a_copy_or_pickle_means_the_same_and_is_read_only(copied):
    mask = random_mask(np.random.default_rng(0), 2, 3, 9, 5)
    again = copied(mask)
    assert again == mask
    assert again.fingerprint == mask.fingerprint
    assert not again.lts.flags.writeable


@pytest.mark.parametrize("shape", [(1, 1, 0, 0), (1, 1, 0, 3), (1, 1, 3, 0), (0, 1, 3, 2), (2, 3, 0, 0)])
def test_masks_without_rows_keys_or_batch_work_everywhere(shape):
    batch, heads, rows, keys = shape
    nothing = np.zeros((batch, heads, keys), dtype=int)
    mask = ColumnMask(nothing, nothing, nothing, nothing, num_rows=rows)
    assert mask.shape == shape
    assert mask.to_dense().shape == shape
    assert mask.visible_pairs().shape == (batch, heads)
    assert mask.density == (1.0 if batch * rows * keys else 0.0)
    assert mask.canonical() == mask & mask == mask | mask == mask
    assert ColumnMask.from_dense(mask.to_dense()) == mask
    assert mask.slice_rows(0, rows).slice_keys(0, keys).take_keys(range(keys)) == mask
    indices, causal = mask.to_startend_row_indices()
    assert ColumnMask.from_startend_row_indices(indices, causal=causal, num_rows=rows) == mask


def test_empty_lists_are_a_mask_of_no_keys():
    mask = ColumnMask([[[]]], [[[]]], [[[]]], [[[]]], num_rows=5)
    assert mask.shape == (1, 1, 5, 0)


@settings(deadline=None, max_examples=150)
@given(masks())
def test_visible_pairs_are_those_of_the_dense_mask(mask):
    assert_equal(mask.visible_pairs(), mask.to_dense().sum(axis=(2, 3)))
    assert mask.visible_pairs().dtype == np.int64


def test_pairs_beyond_int32_are_counted_exactly():
    rows = 2**31 - 1
    mask = mask_of_columns(rows, *[(rows - 1, rows, 0, 3)] * 5)
    assert mask.visible_pairs().tolist() == [[5 * (rows - 4)]]


@pytest.mark.parametrize(("rows", "keys"), [(100, 300), (300, 100), (1, 1), (129, 257)])
def test_the_density_of_a_full_mask_is_one(rows, keys):
    assert patterns.full(rows, keys).density == 1.0


@settings(deadline=None, max_examples=100)
@given(masks())
def test_density_lies_between_zero_and_one(mask):
    assert 0.0 <= mask.density <= 1.0


@settings(deadline=None, max_examples=150)
@given(masks())
def test_the_canonical_form_means_the_same_and_is_its_own_canonical_form(mask):
    canonical = mask.canonical()
    assert_equal(canonical.to_dense(), mask.to_dense())
    assert canonical.canonical() is canonical
    again = ColumnMask(*canonical.vectors, num_rows=mask.num_rows).canonical()
    for name in ("lts", "lte", "uts", "ute"):
        assert_equal(getattr(canonical, name), getattr(again, name), name)


@settings(deadline=None, max_examples=150)
@given(masks())
def test_the_canonical_form_is_unique(mask):
    once, twice = mask.canonical(), ColumnMask.from_dense(mask.to_dense()).canonical()
    for name in ("lts", "lte", "uts", "ute"):
        assert_equal(getattr(once, name), getattr(twice, name), name)


@settings(deadline=None, max_examples=150)
@given(masks())
def test_canonical_spans_are_ordered_disjoint_and_in_their_fixed_slots(mask):
    lts, lte, uts, ute = mask.canonical().vectors
    rows = mask.num_rows
    two = (uts < ute) & (lts < lte)
    assert (ute < lts)[two].all()
    assert ((lts == rows) & (lte == rows))[lts == lte].all()
    assert ((uts == 0) & (ute == 0))[uts == ute].all()
    assert (uts == 0)[(uts < ute) & ~two].all()
    assert (lts > 0)[(lts < lte) & ~two].all()


@settings(deadline=None, max_examples=200)
@given(mask_pairs(max_rows=4, max_keys=2))
def test_equality_hash_and_fingerprint_are_those_of_the_meaning(pair):
    first, second = pair
    same = first.shape == second.shape and np.array_equal(first.to_dense(), second.to_dense())
    assert (first == second) == same
    assert (first.fingerprint == second.fingerprint) == same
    assert (first != second) != same
    assert first != second or hash(first) == hash(second)


def test_masks_that_see_nothing_differ_when_their_shapes_do():
    empty = [patterns.full(0, 3), patterns.full(3, 0), patterns.full(0, 0), patterns.full(0, 4)]
    assert len({mask.fingerprint for mask in empty}) == 4


def test_the_fingerprint_does_not_change_between_versions():
    expected = "b8e93366f3f29c86"
    assert patterns.causal_document([3, 5]).fingerprint[:16] == expected


def test_a_mask_is_not_equal_to_something_else():
    mask = patterns.full(2)
    assert mask != 1
    assert mask.__and__(1) is NotImplemented
    assert mask.__or__(1) is NotImplemented


def test_the_text_of_a_mask_says_shape_and_density():
    assert repr(patterns.causal(4)) == "ColumnMask(batch=1, heads=1, num_rows=4, num_keys=4, density=0.6250)"


def test_pairs_of_keys_seen_by_one_late_row_each_take_four_vectors_only():
    key = np.arange(200)
    row = np.minimum(100 + key // 2, 199)
    mask = mask_of_columns(200, *zip(row + 1, np.full(200, 200), np.zeros(200, int), row, strict=True))
    dense = mask.to_dense()[0, 0]
    assert_equal(np.flatnonzero(dense[:100].any(axis=1)), [])
    assert_equal(np.flatnonzero(dense[100]), [0, 1])
    assert_equal(np.flatnonzero(dense[150]), [100, 101])
    assert sum(vector.nbytes for vector in mask.canonical().vectors) == 4 * 4 * 200
