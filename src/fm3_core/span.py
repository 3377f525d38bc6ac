"""Half-open spans of hidden rows, many columns at a time.

A family of spans is a pair of arrays `starts`, `ends` of shape [spans, ...]: span s of a column hides the
rows `starts[s] <= row < ends[s]`; start == end hides nothing.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.signedinteger[Any]]
Vectors: TypeAlias = tuple[Ints, Ints, Ints, Ints]
"""lts, lte, uts, ute: the lower span [lts, lte) and the upper span [uts, ute) of each column."""

_SHIFT = 32
_LOW_HALF = (1 << _SHIFT) - 1

_COLUMNS_AT_ONCE = 1 << 15
"""Columns whose temporaries fit the cache."""


def union(starts: list[Ints], ends: list[Ints], num_rows: int) -> tuple[Ints, Ints]:
    """Return the union of each column's spans as disjoint spans that do not touch, in ascending order.

    Args:
        starts: first hidden row of each span, arrays of one shape, values in 0..num_rows.
        ends: row behind the last hidden one.
        num_rows: rows of the mask; an absent span is [num_rows, num_rows), behind all others.

    Returns:
        int32 arrays [spans, ...] of starts and ends.
    """
    shape = starts[0].shape
    merged_starts = np.empty((len(starts), starts[0].size), dtype=np.int32)
    merged_ends = np.empty_like(merged_starts)
    flat_starts, flat_ends = [start.reshape(-1) for start in starts], [end.reshape(-1) for end in ends]
    for first in range(0, starts[0].size, _COLUMNS_AT_ONCE):
        columns = slice(first, first + _COLUMNS_AT_ONCE)
        packed = [
            _pack(start[columns], end[columns], num_rows)
            for start, end in zip(flat_starts, flat_ends, strict=True)
        ]
        _merge(packed, num_rows)
        for slot, spans in enumerate(packed):
            merged_starts[slot, columns], merged_ends[slot, columns] = spans >> _SHIFT, spans & _LOW_HALF
    return merged_starts.reshape(len(starts), *shape), merged_ends.reshape(len(starts), *shape)


def canonical_vectors(starts: Ints, ends: Ints, num_rows: int) -> Vectors:
    """Write at most two disjoint ascending spans a column as the one canonical (lts, lte, uts, ute), int32.

    Two spans: the first is the upper one. One span: the upper slot if it starts at row 0, else the lower
    slot. An empty upper span is [0, 0), an empty lower one [num_rows, num_rows).

    Args:
        starts: [spans >= 2, ...] as `union` returns them, absent from the third on.
        ends: likewise.
        num_rows: rows of the mask.
    """
    first_is_upper = (starts[1] < ends[1]) | (starts[0] == 0)
    uts = np.where(first_is_upper, starts[0], 0)
    ute = np.where(first_is_upper, ends[0], 0)
    lts = np.where(first_is_upper, starts[1], starts[0])
    lte = np.where(first_is_upper, ends[1], ends[0])
    return as_int32(lts), as_int32(lte), as_int32(uts), as_int32(ute)


def complement(starts: Ints, ends: Ints, num_rows: int) -> tuple[list[Ints], list[Ints]]:
    """Return the rows outside two disjoint ascending spans as three spans, empty where nothing is left.

    Args:
        starts: [2, ...] as `union` returns them.
        ends: likewise.
        num_rows: rows of the mask.
    """
    gap_starts = [np.zeros_like(ends[0]), ends[0], ends[1]]
    gap_ends = [starts[0], starts[1], np.full_like(ends[0], num_rows)]
    return gap_starts, gap_ends


def intersection(
    first: tuple[Ints, Ints], second: tuple[Ints, Ints], num_rows: int
) -> tuple[list[Ints], list[Ints]]:
    """Return the pairwise intersections of two families of spans, absent ones as [num_rows, num_rows)."""
    starts, ends = [], []
    for start, end in zip(*first, strict=True):
        for other_start, other_end in zip(*second, strict=True):
            common_start, common_end = np.maximum(start, other_start), np.minimum(end, other_end)
            some = common_start < common_end
            starts.append(np.where(some, common_start, num_rows))
            ends.append(np.where(some, common_end, num_rows))
    return starts, ends


def count_spans(starts: Ints, ends: Ints) -> Ints:
    """Count the spans that hide something, by column."""
    return np.asarray((starts < ends).sum(axis=0))


def describe_spans(starts: Ints, ends: Ints) -> str:
    """Write one column's spans as text, for messages."""
    return ", ".join(f"[{start}, {end})" for start, end in zip(starts, ends, strict=True) if start < end)


def as_int32(values: Ints) -> Ints:
    """Return the values as int32, without a copy where they are."""
    return values.astype(np.int32, copy=False)


def _absent(num_rows: int) -> int:
    return (num_rows << _SHIFT) | num_rows


def _pack(start: Ints, end: Ints, num_rows: int) -> Ints:
    packed = (start.astype(np.int64) << _SHIFT) | end.astype(np.int64)
    return np.where(start < end, packed, _absent(num_rows))


def _merge(packed: list[Ints], num_rows: int) -> None:
    """Merge packed spans in place where they overlap or touch; they come out in ascending order."""
    _sort(packed)
    absent = _absent(num_rows)
    for i in range(1, len(packed)):
        before, here = packed[i - 1], packed[i]
        joined = (here >> _SHIFT) <= (before & _LOW_HALF)
        longest = np.maximum(before & _LOW_HALF, here & _LOW_HALF)
        packed[i] = np.where(joined, (before & ~_LOW_HALF) | longest, here)
        packed[i - 1] = np.where(joined, absent, before)
    _sort(packed)


def _sort(packed: list[Ints]) -> None:
    """Sort each column's few spans in place by a bubble of whole-array compare and exchange steps."""
    for last in range(len(packed) - 1, 0, -1):
        for i in range(last):
            low, high = np.minimum(packed[i], packed[i + 1]), np.maximum(packed[i], packed[i + 1])
            packed[i], packed[i + 1] = low, high
