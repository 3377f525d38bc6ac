"""Counts by chunk, by row range and of visited blocks against the dense mask."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from core_masks import assert_equal, mask_of_columns, masks, random_mask
from hypothesis import given, settings
from hypothesis import strategies as st

from fm3_core import (
    BlockMap,
    ColumnMask,
    MaskError,
    block_counts,
    counts,
    needs,
    patterns,
    visible_pairs_by_chunk,
    visible_pairs_by_row_range,
)
from fm3_core.blocks import FULL, PARTIAL

LAW = settings(deadline=None, max_examples=150)
SIZES = st.integers(1, 6)


def _sums(dense, row_size, key_size):
    rows, keys = -(-dense.shape[2] // row_size), -(-dense.shape[3] // key_size)
    padded = np.zeros((*dense.shape[:2], rows * row_size, keys * key_size), dtype=np.int64)
    padded[:, :, : dense.shape[2], : dense.shape[3]] = dense
    return padded.reshape(*dense.shape[:2], rows, row_size, keys, key_size).sum(axis=(3, 5))


@LAW
@given(masks(max_rows=13, max_keys=9), SIZES, SIZES)
def test_pairs_by_chunk_are_sums_of_the_dense_mask(mask, row_size, key_size):
    counted = visible_pairs_by_chunk(mask, chunk_size=row_size, key_chunk_size=key_size)
    assert counted.dtype == np.int64
    assert_equal(counted, _sums(mask.to_dense(), row_size, key_size))


@LAW
@given(masks(max_rows=13, max_keys=9), SIZES)
def test_needs_are_the_chunk_pairs_with_a_visible_pair_in_any_batch_entry_or_head(mask, size):
    expected = (visible_pairs_by_chunk(mask, chunk_size=size) > 0).any(axis=(0, 1))
    assert_equal(needs(mask, chunk_size=size), expected)
    assert_equal(expected, (_sums(mask.to_dense(), size, size) > 0).any(axis=(0, 1)))


@LAW
@given(masks(max_rows=13), st.data())
def test_pairs_by_row_range_are_sums_of_the_dense_mask(mask, data):
    bounds = sorted(data.draw(st.lists(st.integers(0, mask.num_rows), min_size=1, max_size=6)))
    counted = visible_pairs_by_row_range(mask, bounds)
    by_row = mask.to_dense().sum(axis=3)
    expected = [by_row[:, :, start:end].sum(axis=2) for start, end in pairwise(bounds)]
    assert_equal(
        counted, np.array(expected).reshape(len(bounds) - 1, mask.batch, mask.heads).transpose(1, 2, 0)
    )


@LAW
@given(masks(max_rows=13, max_keys=9), SIZES, SIZES)
def test_block_counts_are_the_counts_of_the_block_map_by_extrema(mask, row_size, key_size):
    kinds = BlockMap.from_mask(mask, row_size, key_size, method="extrema").kinds
    bounds = [*range(0, mask.num_rows, row_size), mask.num_rows]
    full, partial = block_counts(mask, bounds, key_size)
    assert_equal(full, (kinds == FULL).sum(axis=3), "FULL blocks")
    assert_equal(partial, (kinds == PARTIAL).sum(axis=3), "PARTIAL blocks")


@LAW
@given(masks(max_rows=13, max_keys=9), SIZES, st.data())
def test_block_counts_of_any_row_bounds_are_those_of_each_row_block_alone(mask, key_size, data):
    bounds = sorted(data.draw(st.lists(st.integers(0, mask.num_rows), min_size=2, max_size=6)))
    full, partial = block_counts(mask, bounds, key_size)
    for i, (start, end) in enumerate(pairwise(bounds)):
        kinds = BlockMap.from_mask(
            mask.slice_rows(start, end), max(end - start, 1), key_size, method="extrema"
        ).kinds
        assert_equal(full[..., i], (kinds == FULL).sum(axis=(2, 3)))
        assert_equal(partial[..., i], (kinds == PARTIAL).sum(axis=(2, 3)))


def test_many_pieces_are_counted_like_one(monkeypatch):
    mask = random_mask(np.random.default_rng(7), 2, 2, 90, 70)
    whole = visible_pairs_by_chunk(mask, chunk_size=7, key_chunk_size=3)
    monkeypatch.setattr(counts, "_CELLS_AT_ONCE", 30)
    assert_equal(visible_pairs_by_chunk(mask, chunk_size=7, key_chunk_size=3), whole)
    assert_equal(needs(mask, chunk_size=7), (_sums(mask.to_dense(), 7, 7) > 0).any(axis=(0, 1)))


def test_counts_are_exact_where_float64_sums_would_round(monkeypatch):
    mask = random_mask(np.random.default_rng(8), 1, 1, 2_000_000, 50)
    exact = visible_pairs_by_row_range(mask, [0, 1_000_000, 2_000_000])
    monkeypatch.setattr(counts, "_EXACT_FLOATS", 2**25)
    assert_equal(visible_pairs_by_row_range(mask, [0, 1_000_000, 2_000_000]), exact)
    assert_equal(exact.sum(axis=2), mask.visible_pairs())


def test_pairs_beyond_two_to_the_fifty_third_are_counted_exactly():
    rows, keys = 2**31 - 1, 4_300_000
    lts = np.full((1, 1, keys), rows, dtype=np.int32)
    mask = ColumnMask(lts, lts, np.zeros_like(lts), np.ones_like(lts), num_rows=rows)
    expected = np.array([[[0, 0, (rows - 1) * keys]]])
    assert_equal(visible_pairs_by_row_range(mask, [0, 0, 1, rows]), expected)


def test_a_chunk_larger_than_the_mask_is_one_chunk():
    mask = patterns.causal(10, 7)
    assert visible_pairs_by_chunk(mask, chunk_size=2**40).tolist() == [[[[int(mask.visible_pairs()[0, 0])]]]]
    assert needs(mask, chunk_size=2**40).tolist() == [[True]]


@pytest.mark.parametrize(("rows", "keys"), [(0, 0), (0, 3), (3, 0)])
def test_masks_without_rows_or_keys_have_empty_counts(rows, keys):
    mask = patterns.full(rows, keys)
    assert visible_pairs_by_chunk(mask, chunk_size=2).shape == (1, 1, -(-rows // 2), -(-keys // 2))
    assert needs(mask, chunk_size=2).shape == (-(-rows // 2), -(-keys // 2))
    assert visible_pairs_by_row_range(mask, [0, rows]).tolist() == [[[0]]]
    full, partial = block_counts(mask, [0, rows], 2)
    assert full.tolist() == [[[-(-keys // 2) * (rows > 0)]]]
    assert partial.tolist() == [[[0]]]


def test_key_chunks_beside_row_chunks_of_another_size_are_bottom_right_causal():
    counted = visible_pairs_by_chunk(patterns.causal(300, 100), chunk_size=100, key_chunk_size=50)
    assert counted.tolist() == [[[[0, 0], [0, 0], [3775, 1275]]]]


def test_padding_needs_nothing_and_is_needed_by_nobody():
    needed = needs(patterns.causal_document([4, 4], padding=8), chunk_size=4)
    assert_equal(needed, np.diag([True, True, False, False]))


def test_overlapping_spans_hide_a_pair_once():
    mask = mask_of_columns(512, (291, 512, 0, 313), (147, 399, 67, 402), (178, 399, 67, 242))
    assert_equal(visible_pairs_by_chunk(mask, chunk_size=128), _sums(mask.to_dense(), 128, 128))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda mask: visible_pairs_by_chunk(mask, chunk_size=0), "chunk_size must be >= 1, got 0"),
        (
            lambda mask: visible_pairs_by_chunk(mask, chunk_size=2, key_chunk_size=-1),
            "key_chunk_size must be >= 1",
        ),
        (lambda mask: needs(mask, chunk_size=1.5), "chunk_size must be an integer, got 1.5"),
        (lambda mask: visible_pairs_by_row_range(mask, []), "bounds must hold at least one row number"),
        (lambda mask: visible_pairs_by_row_range(mask, [0, 9]), r"bounds\[1\] must be in 0\.\.8, got 9"),
        (
            lambda mask: visible_pairs_by_row_range(mask, [0, 5, 4, 8]),
            r"bounds\[2\] = 4 must not be below the bound before it, 5 \(1 of 4 are wrong\)",
        ),
        (lambda mask: block_counts(mask, [0, -1], 2), r"row_bounds\[1\] must be in 0\.\.8, got -1"),
        (lambda mask: block_counts(mask, [0, 8], 0), "block_keys must be >= 1, got 0"),
    ],
)
def test_sizes_and_bounds_that_do_not_fit_are_refused_by_name(call, words):
    with pytest.raises(MaskError, match=words):
        call(patterns.causal(8))


def test_chunks_beyond_any_integer_width_hold_the_whole_mask():
    mask = patterns.causal(4)
    assert needs(mask, chunk_size=10**20).tolist() == [[True]]
    assert visible_pairs_by_chunk(mask, chunk_size=2, key_chunk_size=10**20).tolist() == [[[[3], [7]]]]
