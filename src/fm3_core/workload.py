"""How much work a mask is: visible pairs and needed chunks, exactly, and the blocks that a kernel visits."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fm3_core.check import require_int
from fm3_core.counts import RowChunks, num_key_chunks, visible_pairs
from fm3_core.extrema import BlockExtrema
from fm3_core.mask import MAX_ROWS, ColumnMask
from fm3_core.span import Ints


def visible_pairs_by_chunk(
    mask: ColumnMask, *, chunk_size: int, key_chunk_size: int | None = None
) -> NDArray[np.int64]:
    """Count the visible (row, key) pairs of each row chunk and key chunk, exactly, in O(keys + chunk pairs).

    Args:
        mask: any mask.
        chunk_size: rows of a row chunk; the last may be shorter.
        key_chunk_size: keys of a key chunk, by default chunk_size.

    Returns:
        int64 [batch, heads, row chunks, key chunks].
    """
    size = min(require_int("chunk_size", chunk_size, minimum=1), MAX_ROWS)
    key_size = size
    if key_chunk_size is not None:
        key_size = min(require_int("key_chunk_size", key_chunk_size, minimum=1), MAX_ROWS)
    rows = RowChunks.equal(mask.num_rows, size)
    visible = np.empty(
        (mask.batch, mask.heads, rows.num_chunks, num_key_chunks(mask, key_size)), dtype=np.int64
    )
    for cells, counted in visible_pairs(mask, rows, key_size):
        visible[cells.index] = counted
    return visible


def visible_pairs_by_row_range(mask: ColumnMask, bounds: ArrayLike) -> NDArray[np.int64]:
    """Count the visible pairs of the rows [bounds[i], bounds[i + 1]), exactly, in O(keys log ranges).

    Args:
        mask: any mask.
        bounds: row numbers, integers [ranges + 1] in 0..num_rows, not descending.

    Returns:
        int64 [batch, heads, ranges].
    """
    rows = RowChunks.between("bounds", bounds, mask.num_rows)
    visible = np.zeros((mask.batch, mask.heads, rows.num_chunks), dtype=np.int64)
    for cells, counted in visible_pairs(mask, rows, max(mask.num_keys, 1)):
        visible[cells.batch, cells.head] = counted.sum(axis=1)
    return visible


def needs(mask: ColumnMask, *, chunk_size: int) -> NDArray[np.bool_]:
    """Say which key chunks each row chunk needs: a row of it sees a key there, in any batch entry or head.

    Args:
        mask: any mask.
        chunk_size: rows of a row chunk and keys of a key chunk; the last may be shorter.

    Returns:
        bool [row chunks, key chunks].
    """
    size = min(require_int("chunk_size", chunk_size, minimum=1), MAX_ROWS)
    rows = RowChunks.equal(mask.num_rows, size)
    needed = np.zeros((rows.num_chunks, num_key_chunks(mask, size)), dtype=np.bool_)
    for cells, counted in visible_pairs(mask, rows, size):
        needed[:, cells.key_chunks] |= counted > 0
    return needed


def block_counts(
    mask: ColumnMask, row_bounds: ArrayLike, block_keys: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count the key blocks that each block of rows visits, as the extrema rule classifies them.

    The row blocks that the spans of a key block empty, and those that they touch, are ranges of row blocks;
    their unions are counted by inclusion and exclusion: O(keys + blocks), without a block map.

    Args:
        mask: any mask.
        row_bounds: row numbers, integers [row blocks + 1] in 0..num_rows, not descending; block i has the
            rows [row_bounds[i], row_bounds[i + 1]), and one without rows visits nothing.
        block_keys: key columns of a block; the last may have fewer.

    Returns:
        (full, partial): int64 [batch, heads, row blocks], the numbers that `BlockMap` with method "extrema"
        shows.
    """
    rows = RowChunks.between("row_bounds", row_bounds, mask.num_rows)
    extrema = BlockExtrema.from_mask(mask, block_keys)
    starts, ends = rows.bounds[:-1], rows.bounds[1:]
    empty = _count_in_union(
        _blocks_inside(starts, ends, extrema.max_lts, extrema.min_lte),
        _blocks_inside(starts, ends, extrema.max_uts, extrema.min_ute),
        rows.num_chunks,
    )
    touched = _count_in_union(
        _blocks_touched(starts, ends, extrema.min_lts, extrema.max_lte),
        _blocks_touched(starts, ends, extrema.min_uts, extrema.max_ute),
        rows.num_chunks,
    )
    has_rows = starts < ends
    return np.where(has_rows, extrema.num_blocks - touched, 0), np.where(has_rows, touched - empty, 0)


def _blocks_inside(starts: Ints, ends: Ints, first_row: Ints, end_row: Ints) -> tuple[Ints, Ints]:
    """Return the range of row blocks that lie in [first_row, end_row); none as [x, x)."""
    first = np.searchsorted(starts, first_row, side="left")
    return first, np.maximum(first, np.searchsorted(ends, end_row, side="right"))


def _blocks_touched(starts: Ints, ends: Ints, first_row: Ints, end_row: Ints) -> tuple[Ints, Ints]:
    """Return the range of row blocks that share a row with [first_row, end_row); none as [x, x)."""
    first = np.searchsorted(ends, first_row, side="right")
    return first, np.maximum(first, np.searchsorted(starts, end_row, side="left"))


def _count_in_union(one: tuple[Ints, Ints], other: tuple[Ints, Ints], num_blocks: int) -> NDArray[np.int64]:
    """Count for each row block the key blocks with it in either range, int64 [batch, heads, row blocks]."""
    both_first = np.maximum(one[0], other[0])
    both = both_first, np.maximum(both_first, np.minimum(one[1], other[1]))
    return _count_in(one, num_blocks) + _count_in(other, num_blocks) - _count_in(both, num_blocks)


def _count_in(ranges: tuple[Ints, Ints], num_blocks: int) -> NDArray[np.int64]:
    batch, heads, _ = ranges[0].shape
    entry = np.arange(batch * heads).reshape(batch, heads, 1) * (num_blocks + 1)
    bins = batch * heads * (num_blocks + 1)
    opened = np.bincount((entry + ranges[0]).ravel(), minlength=bins)
    opened -= np.bincount((entry + ranges[1]).ravel(), minlength=bins)
    counted: NDArray[np.int64] = np.cumsum(opened.reshape(batch, heads, num_blocks + 1), axis=2)[:, :, :-1]
    return counted
