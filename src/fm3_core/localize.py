"""The mask of one rank's rows, made by that rank alone.

A rank owns row chunks [offset, offset + length), disjoint and ascending, and lays them side by side. A
boundary x of a global span becomes the number of owned rows below x. Because the map from local to global
rows increases, local row j is hidden by the localized span iff the global row that it is was hidden: for
every mask and every assignment, with no communication. `tests/core/test_localization_proof.py` has a machine
prove it for unbounded integers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fm3_core import span
from fm3_core.check import require_ints
from fm3_core.errors import PartitionError
from fm3_core.mask import ColumnMask
from fm3_core.span import Ints

_TABLE_ROWS_PER_BOUNDARY = 4
"""A table with more rows than this for each key costs more than bisection."""


def localize(mask: ColumnMask, offsets: ArrayLike, lengths: ArrayLike) -> ColumnMask:
    """Return the mask of the rows that a rank owns, all keys kept.

    A boundary is looked up in a table of owned rows below each row, or, where the rows are many more than the
    keys, in the sorted chunks: O(keys) (times the logarithm of the chunks in the second case) however many
    chunks there are.

    Args:
        mask: the global mask.
        offsets: first row of each owned chunk, integers [chunks], ascending.
        lengths: rows of each chunk, integers [chunks], any lengths; chunks are disjoint and inside the mask's
            rows.

    Raises:
        PartitionError: chunks that do not ascend, overlap or leave the mask's rows; it names the first.
    """
    starts, sizes = _checked_chunks(mask.num_rows, offsets, lengths)
    local = _by_table if mask.num_rows <= _TABLE_ROWS_PER_BOUNDARY * mask.lts.size else _by_search
    return ColumnMask._trusted(local(mask, starts, sizes), int(sizes.sum()))


def localize_by_definition(mask: ColumnMask, offsets: ArrayLike, lengths: ArrayLike) -> ColumnMask:
    """Return what `localize` returns, by clip, shift and max over the chunks; O(chunks * keys).

    x becomes max_i(L_i(x) + [L_i(x) > 0] * T_i) with L_i(x) = clip(x - O_i, 0, C_i) and T_i = sum of C_j over
    j < i.
    """
    starts, sizes = _checked_chunks(mask.num_rows, offsets, lengths)

    def local(boundary: Ints) -> Ints:
        image, rows_before = np.zeros(boundary.shape, dtype=np.int64), 0
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
            inside = np.clip(boundary.astype(np.int64) - start, 0, size)
            image = np.maximum(image, inside + (inside > 0) * rows_before)
            rows_before += size
        return image.astype(np.int32)

    return ColumnMask._trusted([local(vector) for vector in mask.vectors], int(sizes.sum()))


def _by_table(mask: ColumnMask, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> list[Ints]:
    """Look each boundary up in int32 [num_rows + 1], the number of owned rows below each row."""
    bins = mask.num_rows + 2
    owned = np.cumsum(
        np.bincount(starts + 1, minlength=bins) - np.bincount(starts + sizes + 1, minlength=bins)
    )
    below = np.cumsum(owned[:-1], dtype=np.int32)
    return [np.take(below, vector) for vector in mask.vectors]


def _by_search(mask: ColumnMask, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> list[Ints]:
    """Find each boundary's chunk by bisection, then clip inside it."""
    if not len(starts):
        return [np.zeros_like(vector) for vector in mask.vectors]
    rows_before = np.cumsum(sizes) - sizes

    def local(boundary: Ints) -> Ints:
        chunk = np.maximum(np.searchsorted(starts, boundary, side="right") - 1, 0)
        inside = np.clip(boundary - starts[chunk], 0, sizes[chunk])
        return span.as_int32(rows_before[chunk] + inside)

    return [local(vector) for vector in mask.vectors]


def _checked_chunks(
    num_rows: int, offsets: ArrayLike, lengths: ArrayLike
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    starts = require_ints("offsets", offsets, maximum=num_rows, error=PartitionError)
    sizes = require_ints("lengths", lengths, maximum=num_rows, error=PartitionError)
    if starts.shape != sizes.shape:
        raise PartitionError(f"offsets and lengths must have one length, got {len(starts)} and {len(sizes)}")
    ends = starts + sizes
    least = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    wrong = np.flatnonzero((starts < least) | (ends > num_rows))
    if wrong.size:
        i = wrong[0]
        raise PartitionError(
            f"chunk {i}: rows [{starts[i]}, {ends[i]}) must start at or behind {least[i]}, the end of the "
            f"chunk before, and end at or before num_rows={num_rows}; chunks must ascend "
            f"({wrong.size} of {len(starts)} are wrong)"
        )
    return starts, sizes
