"""Exact counts of hidden and visible pairs by row chunk and key chunk, by difference arrays.

No function here looks at a (row, key) pair. The rows of a chunk that a span hides are a piecewise linear
function of the chunk's boundaries, so its second difference is nothing but the span's start (+1) and its end
(-1): these are scattered into bins of (row chunk, key chunk) and summed up from the top.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fm3_core.check import require_ints
from fm3_core.errors import MaskError
from fm3_core.mask import ColumnMask
from fm3_core.span import Ints

SignedSpans: TypeAlias = tuple[Ints, Ints, int]
"""Starts [keys], ends [keys] (reversed spans count as empty), and the sign that rows count with."""

_CELLS_AT_ONCE = 1 << 17
_EXACT_FLOATS = 2**53
"""np.bincount sums its weights as float64, which holds every integer up to this."""


@dataclass(frozen=True, eq=False)
class RowChunks:
    """Consecutive row ranges [bounds[i], bounds[i + 1]).

    Args:
        bounds: int64 [chunks + 1], not descending.
        size: rows of every chunk but the last if they start at 0 and are equal, else 0.
    """

    bounds: NDArray[np.int64]
    size: int = 0

    @classmethod
    def equal(cls, num_rows: int, size: int) -> RowChunks:
        """Cut num_rows rows into chunks of one size; the last may be shorter."""
        starts = np.arange(0, num_rows, size, dtype=np.int64)
        return cls(np.append(starts, num_rows), min(size, max(num_rows, 1)))

    @classmethod
    def between(cls, name: str, bounds: ArrayLike, num_rows: int) -> RowChunks:
        """Check bounds that a caller knows as `name`: one or more of 0..num_rows, not descending."""
        checked = require_ints(name, bounds, maximum=num_rows)
        if not len(checked):
            raise MaskError(f"{name} must hold at least one row number, got none")
        wrong = np.flatnonzero(np.diff(checked) < 0) + 1
        if wrong.size:
            i = wrong[0]
            raise MaskError(
                f"{name}[{i}] = {checked[i]} must not be below the bound before it, {checked[i - 1]} "
                f"({wrong.size} of {len(checked)} are wrong)"
            )
        return cls(checked)

    @property
    def num_chunks(self) -> int:
        """Chunks in all, those without rows counted."""
        return len(self.bounds) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Rows of each chunk."""
        return np.diff(self.bounds)

    def place(self, row: Ints) -> tuple[Ints, Ints]:
        """Return the chunk that each row boundary falls in and the rows from it to that chunk's end.

        A boundary at the end of all chunks falls in chunk num_chunks, or 0 rows before the end of the last.
        """
        row = np.clip(row, int(self.bounds[0]), int(self.bounds[-1]))
        chunk = row // self.size if self.size else np.searchsorted(self.bounds, row, side="right") - 1
        return chunk, np.append(self.bounds[1:], self.bounds[-1])[chunk] - row


@dataclass(frozen=True, eq=False)
class SpanPairs:
    """Pairs of each (row chunk, key chunk) of one batch entry and head, int64 [row chunks, key chunks]."""

    pairs: NDArray[np.int64]
    """All pairs, hidden or not."""
    lower: NDArray[np.int64]
    """Pairs that the lower spans hide."""
    upper: NDArray[np.int64]
    """Pairs that the upper spans hide."""
    both: NDArray[np.int64]
    """Pairs that the lower and the upper span of their column hide."""


@dataclass(frozen=True)
class Cells:
    """Where a piece of the counts belongs: one batch entry and head, all row chunks, some key chunks."""

    batch: int
    head: int
    key_chunks: slice

    @property
    def index(self) -> tuple[int, int, slice, slice]:
        """The index of the piece in an array [batch, heads, row chunks, key chunks]."""
        return self.batch, self.head, slice(None), self.key_chunks


def visible_pairs(
    mask: ColumnMask, rows: RowChunks, key_size: int
) -> Iterator[tuple[Cells, NDArray[np.int64]]]:
    """Yield the visible pairs, int64 [row chunks, key chunks], in pieces that fit the cache."""
    for cells, pairs, families in _pieces(mask, rows, key_size):
        (lower, upper, both), key_chunks = families, pairs.shape[1]
        yield cells, pairs - _count([(*lower, 1), (*upper, 1), (*both, -1)], rows, key_size, key_chunks)


def pairs_by_span(mask: ColumnMask, rows: RowChunks, key_size: int) -> Iterator[tuple[Cells, SpanPairs]]:
    """Yield the pairs that each family of spans hides, in pieces that fit the cache."""
    for cells, pairs, families in _pieces(mask, rows, key_size):
        counted = [_count([(*spans, 1)], rows, key_size, pairs.shape[1]) for spans in families]
        yield cells, SpanPairs(pairs, *counted)


def num_key_chunks(mask: ColumnMask, key_size: int) -> int:
    """Return the number of key chunks of a size, a shorter last one counted."""
    return -(-mask.num_keys // key_size)


def _pieces(
    mask: ColumnMask, rows: RowChunks, key_size: int
) -> Iterator[tuple[Cells, NDArray[np.int64], list[tuple[Ints, Ints]]]]:
    """Yield cells, their pairs in all, and the lower spans, upper spans and intersections of their keys."""
    at_once = max(1, _CELLS_AT_ONCE // (rows.num_chunks + 1))
    for batch, head in np.ndindex(mask.batch, mask.heads):
        for first in range(0, num_key_chunks(mask, key_size), at_once):
            behind = min(first + at_once, num_key_chunks(mask, key_size))
            keys = slice(first * key_size, min(behind * key_size, mask.num_keys))
            bounds = np.append(np.arange(keys.start, keys.stop, key_size, dtype=np.int64), keys.stop)
            lts, lte, uts, ute = (vector[batch, head, keys] for vector in mask.vectors)
            families = [(lts, lte), (uts, ute), (np.maximum(lts, uts), np.minimum(lte, ute))]
            yield (
                Cells(batch, head, slice(first, behind)),
                np.multiply.outer(rows.lengths, np.diff(bounds)),
                families,
            )


def _count(
    families: Sequence[SignedSpans], rows: RowChunks, key_size: int, key_chunks: int
) -> NDArray[np.int64]:
    """Sum the signed rows of each row chunk in all spans, by key chunk: int64 [row chunks, key chunks]."""
    shape = (rows.num_chunks + 1, key_chunks)
    bins: dict[int, list[Ints]] = {1: [], -1: []}
    rows_left: dict[int, list[Ints]] = {1: [], -1: []}
    for start, end, sign in families:
        key = np.flatnonzero(start < end)
        key_chunk = key // key_size
        for boundary, sign_here in ((start[key], sign), (end[key], -sign)):
            chunk, to_end = rows.place(boundary)
            bins[sign_here].append(chunk * np.int64(key_chunks) + key_chunk)
            rows_left[sign_here].append(to_end)
    opening, closing = np.concatenate(bins[1]), np.concatenate(bins[-1])
    opened = np.bincount(opening, minlength=math.prod(shape))
    opened -= np.bincount(closing, minlength=math.prod(shape))
    counted = _sum_by_bin(opening, np.concatenate(rows_left[1]), shape)
    counted -= _sum_by_bin(closing, np.concatenate(rows_left[-1]), shape)
    open_before = np.cumsum(opened.reshape(shape)[:-2], axis=0)
    counted[1:-1] += open_before * rows.lengths[1:, None]
    return counted[:-1]


def _sum_by_bin(index: Ints, values: Ints, shape: tuple[int, int]) -> NDArray[np.int64]:
    """Sum non-negative integers by bin, exactly: in two halves where float64 weights could round."""
    if len(values) * int(values.max(initial=0)) < _EXACT_FLOATS:
        summed = np.bincount(index, weights=values, minlength=shape[0] * shape[1])
        return summed.astype(np.int64).reshape(shape)
    high = values >> 16
    return (_sum_by_bin(index, high, shape) << 16) + _sum_by_bin(index, values - (high << 16), shape)
