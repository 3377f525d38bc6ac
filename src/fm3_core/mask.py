"""The column mask: for each key column two half-open spans of query rows that do not see it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fm3_core import dense, interop, span
from fm3_core.check import as_array, require_int, require_ints
from fm3_core.errors import MaskError
from fm3_core.span import Ints, Vectors

MAX_ROWS = 2**31 - 1
"""Row numbers are int32, ends included."""

_NAMES = ("lts", "lte", "uts", "ute")


@dataclass(frozen=True, eq=False, repr=False)
class ColumnMask:
    """An attention mask in O(keys): row i sees column k iff i is in neither hidden span of k.

    The lower span is [lts, lte), the upper one [uts, ute). Spans may be empty, overlap or touch; which of the
    two slots a span stands in has no meaning. Causality is one of the spans, not a flag.

    Args:
        lts: lower span's first hidden row, integers [batch, heads, keys] in 0..num_rows; stored as int32,
            read-only.
        lte: the row behind the lower span's last.
        uts: upper span's first hidden row.
        ute: the row behind the upper span's last.
        num_rows: query rows; batch and heads of 1 stand for any number.

    Raises:
        MaskError: wrong shapes or dtypes, a value outside 0..num_rows, or a span that ends before it starts.
    """

    lts: NDArray[np.int32]
    lte: NDArray[np.int32]
    uts: NDArray[np.int32]
    ute: NDArray[np.int32]
    num_rows: int = field(kw_only=True)

    def __post_init__(self) -> None:
        """Validate, copy and freeze."""
        num_rows = require_int("num_rows", self.num_rows, maximum=MAX_ROWS)
        vectors = [_checked_array(name, getattr(self, name)) for name in _NAMES]
        shapes = {vector.shape for vector in vectors}
        if len(shapes) != 1:
            listed = ", ".join(f"{name} {v.shape}" for name, v in zip(_NAMES, vectors, strict=True))
            raise MaskError(f"lts, lte, uts and ute must have one shape, got {listed}")
        _check_spans("lower", vectors[0], vectors[1], num_rows)
        _check_spans("upper", vectors[2], vectors[3], num_rows)
        self._fill(tuple(vector.astype(np.int32) for vector in vectors), num_rows)

    @classmethod
    def _trusted(cls, vectors: Sequence[Ints], num_rows: int) -> ColumnMask:
        """Wrap int32 vectors that are valid by construction; the mask owns them."""
        mask = object.__new__(cls)
        mask._fill(vectors, num_rows)
        return mask

    @classmethod
    def _from_spans(cls, starts: list[Ints], ends: list[Ints], num_rows: int, made_by: str) -> ColumnMask:
        """Make the canonical mask that hides each column's spans, or say which column needs three."""
        merged_starts, merged_ends = span.union(starts, ends, num_rows)
        counts = span.count_spans(merged_starts, merged_ends)
        if counts.size and counts.max() > 2:
            wrong = np.argwhere(counts > 2)
            where = tuple(wrong[0])
            text = span.describe_spans(merged_starts[:, *where], merged_ends[:, *where])
            raise MaskError(
                f"{made_by}: {_column_name(where, counts.shape)} needs {counts[where]} hidden spans, {text}; "
                f"a column mask has two ({len(wrong)} of {counts.size} columns are wrong)"
            )
        return cls._trusted(span.canonical_vectors(merged_starts, merged_ends, num_rows), num_rows)

    def _fill(self, vectors: Sequence[Ints], num_rows: int) -> None:
        for name, given in zip(_NAMES, vectors, strict=True):
            vector = np.ascontiguousarray(given)
            vector.flags.writeable = False
            object.__setattr__(self, name, vector)
        object.__setattr__(self, "num_rows", num_rows)

    # ---- what it is ----

    @property
    def vectors(self) -> Vectors:
        """The four vectors (lts, lte, uts, ute), int32 [batch, heads, keys], read-only."""
        return self.lts, self.lte, self.uts, self.ute

    @property
    def batch(self) -> int:
        """Batch entries; 1 stands for any number."""
        return int(self.lts.shape[0])

    @property
    def heads(self) -> int:
        """Mask heads: 1, the number of KV heads or the number of query heads."""
        return int(self.lts.shape[1])

    @property
    def num_keys(self) -> int:
        """Key columns."""
        return int(self.lts.shape[2])

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the dense mask: (batch, heads, num_rows, num_keys)."""
        return self.batch, self.heads, self.num_rows, self.num_keys

    @cached_property
    def _canonical(self) -> ColumnMask:
        merged = span.union([self.uts, self.lts], [self.ute, self.lte], self.num_rows)
        canonical = self._trusted(span.canonical_vectors(*merged, self.num_rows), self.num_rows)
        canonical.__dict__["_canonical"] = canonical
        return canonical

    def canonical(self) -> ColumnMask:
        """Return the one form of this meaning: merged spans, in order, each in its fixed slot.

        Two spans: the one with the smaller rows is the upper span. One span: the upper span if it starts at
        row 0, else the lower. Empty: upper [0, 0), lower [num_rows, num_rows).
        """
        return self._canonical

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, hexadecimal, of shape and canonical vectors: equal iff shape and meaning are equal."""
        digest = hashlib.sha256(b"fm3 column mask 1")
        digest.update(np.array(self.shape, dtype="<i8").tobytes())
        for vector in self.canonical().vectors:
            digest.update(vector.astype("<i4", copy=False).tobytes())
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        """Say whether both have one shape and the same visible (row, key) pairs."""
        if not isinstance(other, ColumnMask):
            return NotImplemented
        if self.shape != other.shape:
            return False
        pairs = zip(self.canonical().vectors, other.canonical().vectors, strict=True)
        return all(np.array_equal(mine, theirs) for mine, theirs in pairs)

    def __hash__(self) -> int:
        """Hash the meaning."""
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        """Say the shape and the density, not the vectors."""
        return (
            f"ColumnMask(batch={self.batch}, heads={self.heads}, num_rows={self.num_rows}, "
            f"num_keys={self.num_keys}, density={self.density:.4f})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the vectors; unpickling validates them again."""
        return _restore, (*self.vectors, self.num_rows)

    def visible_pairs(self) -> NDArray[np.int64]:
        """Count the visible (row, key) pairs exactly, int64 [batch, heads], in O(keys)."""
        lts, lte, uts, ute = (vector.astype(np.int64) for vector in self.canonical().vectors)
        visible: NDArray[np.int64] = (self.num_rows - (lte - lts) - (ute - uts)).sum(axis=2)
        return visible

    @property
    def density(self) -> float:
        """Visible pairs over all pairs, in [0, 1]; 0 where there are no pairs."""
        pairs = self.batch * self.heads * self.num_rows * self.num_keys
        return int(self.visible_pairs().sum()) / pairs if pairs else 0.0

    # ---- algebra ----

    def __and__(self, other: ColumnMask) -> ColumnMask:
        """Visible in both; MaskError names the first column that would need three hidden spans."""
        if not isinstance(other, ColumnMask):
            return NotImplemented
        mine, theirs = _broadcast("&", self, other)
        starts, ends = [mine[0], mine[2], theirs[0], theirs[2]], [mine[1], mine[3], theirs[1], theirs[3]]
        return self._from_spans(starts, ends, self.num_rows, "&")

    def __or__(self, other: ColumnMask) -> ColumnMask:
        """Visible in either; MaskError names the first column that would need three hidden spans."""
        if not isinstance(other, ColumnMask):
            return NotImplemented
        mine, theirs = _broadcast("|", self.canonical(), other.canonical())
        common = span.intersection(_families(mine), _families(theirs), self.num_rows)
        return self._from_spans(*common, self.num_rows, "|")

    def __invert__(self) -> ColumnMask:
        """Swap visible and hidden; MaskError names the first column that would need three hidden spans."""
        merged = span.union([self.uts, self.lts], [self.ute, self.lte], self.num_rows)
        return self._from_spans(*span.complement(*merged, self.num_rows), self.num_rows, "~")

    def slice_rows(self, start: int, end: int) -> ColumnMask:
        """Return the mask of rows `start <= row < end`, renumbered from 0."""
        end = require_int("end", end, maximum=self.num_rows)
        start = require_int("start", start, maximum=end)
        return self._trusted(
            [np.clip(vector, start, end) - np.int32(start) for vector in self.vectors], end - start
        )

    def slice_keys(self, start: int, end: int) -> ColumnMask:
        """Return the mask of columns `start <= key < end`."""
        end = require_int("end", end, maximum=self.num_keys)
        start = require_int("start", start, maximum=end)
        return self._trusted([vector[..., start:end].copy() for vector in self.vectors], self.num_rows)

    def take_keys(self, index: ArrayLike) -> ColumnMask:
        """Return the mask whose column j is this one's column `index[j]`: select, repeat or permute keys.

        Args:
            index: integers [new keys] in 0..num_keys - 1.
        """
        chosen = require_ints("index", index, maximum=self.num_keys - 1)
        return self._trusted([np.take(vector, chosen, axis=2) for vector in self.vectors], self.num_rows)

    # ---- other forms ----

    def to_dense(self) -> NDArray[np.bool_]:
        """Return bool [batch, heads, rows, keys], True = visible."""
        return dense.visible(self)

    @classmethod
    def from_dense(cls, visible: ArrayLike) -> ColumnMask:
        """Return the mask of a dense one, or MaskError with the first column that needs more than two spans.

        Args:
            visible: bool [batch, heads, rows, keys], True = visible.
        """
        array = as_array("a dense mask", visible)
        return cls._trusted(interop.vectors_from_dense(array), array.shape[2]).canonical()

    @classmethod
    def from_startend_row_indices(
        cls, indices: ArrayLike, *, causal: bool, num_rows: int | None = None
    ) -> ColumnMask:
        """Read FlashMask's `startend_row_indices`.

        Args:
            indices: integers [batch, heads, keys, n] in 0..num_rows; n is 1 (LTS) or 2 (LTS, LTE) when
                causal, 2 (LTS, UTE) or 4 (LTS, LTE, UTS, UTE) when not.
            causal: add the bottom-right aligned causal span as the upper one.
            num_rows: query rows, by default as many as keys.
        """
        vectors, rows = interop.vectors_from_startend_row_indices(indices, causal=causal, num_rows=num_rows)
        return cls(*vectors, num_rows=rows)

    def to_startend_row_indices(self) -> tuple[NDArray[np.int32], bool]:
        """Return (indices int32 [batch, heads, keys, n], causal): the exact form with the fewest vectors."""
        return interop.startend_row_indices(self.canonical().vectors, self.num_rows)


def pack(masks: Sequence[ColumnMask]) -> ColumnMask:
    """Lay masks side by side along the diagonal: rows and keys of one never see those of another.

    Args:
        masks: at least one; batch and heads broadcast.

    Raises:
        MaskError: no masks, something else than a mask, or the first column that needs three hidden spans.
    """
    if isinstance(masks, ColumnMask) or not masks:
        raise MaskError(f"pack needs a list of at least one mask, got {masks!r}")
    for i, mask in enumerate(masks):
        if not isinstance(mask, ColumnMask):
            raise MaskError(f"masks[{i}] must be a ColumnMask, got {mask!r}")
    batch, heads = _common_size("pack", "batch", masks), _common_size("pack", "heads", masks)
    total, first_row = sum(mask.num_rows for mask in masks), 0
    starts: list[list[Ints]] = [[], [], [], []]
    ends: list[list[Ints]] = [[], [], [], []]
    for mask in masks:
        lts, lte, uts, ute = (
            np.broadcast_to(vector.astype(np.int64), (batch, heads, mask.num_keys)) + first_row
            for vector in mask.vectors
        )
        last_row = first_row + mask.num_rows
        before, behind = np.zeros_like(lts), np.full_like(lts, total)
        for slot, (start, end) in enumerate(
            [(before, before + first_row), (lts, lte), (uts, ute), (before + last_row, behind)]
        ):
            starts[slot].append(start)
            ends[slot].append(end)
        first_row = last_row
    require_int("the packed mask's num_rows", total, maximum=MAX_ROWS)
    joined_starts = [np.concatenate(parts, axis=2) for parts in starts]
    joined_ends = [np.concatenate(parts, axis=2) for parts in ends]
    return ColumnMask._from_spans(joined_starts, joined_ends, total, "pack")


def _restore(lts: Ints, lte: Ints, uts: Ints, ute: Ints, num_rows: int) -> ColumnMask:
    return ColumnMask(lts, lte, uts, ute, num_rows=num_rows)


def _checked_array(name: str, values: ArrayLike) -> Ints:
    array = as_array(name, values)
    if array.ndim != 3:
        raise MaskError(f"{name} must have shape [batch, heads, keys], got {array.shape}")
    if not np.issubdtype(array.dtype, np.integer) and array.size:
        raise MaskError(f"{name} must be integers, got {array.dtype}")
    return array


def _check_spans(slot: str, start: Ints, end: Ints, num_rows: int) -> None:
    wrong = (start < 0) | (start > end) | (end > num_rows)
    if wrong.any():
        where = tuple(np.argwhere(wrong)[0])
        raise MaskError(
            f"{_column_name(where, start.shape)}: {slot} span [{start[where]}, {end[where]}) must satisfy "
            f"0 <= start <= end <= num_rows={num_rows} ({wrong.sum()} of {start.size} columns are wrong)"
        )


def _column_name(where: tuple[Any, ...], shape: tuple[int, ...]) -> str:
    batch, head, key = where
    return f"column {key}" if shape[:2] == (1, 1) else f"batch {batch}, head {head}, column {key}"


def _common_size(operation: str, what: str, masks: Sequence[ColumnMask]) -> int:
    sizes = sorted({int(getattr(mask, what)) for mask in masks} - {1})
    if len(sizes) > 1:
        raise MaskError(f"{operation}: {what} must be equal or 1, got {' and '.join(map(str, sizes))}")
    return sizes[0] if sizes else 1


def _broadcast(operation: str, mine: ColumnMask, theirs: ColumnMask) -> tuple[list[Ints], list[Ints]]:
    if (mine.num_rows, mine.num_keys) != (theirs.num_rows, theirs.num_keys):
        raise MaskError(
            f"{operation}: both masks must have the same rows and keys, got "
            f"{mine.num_rows} x {mine.num_keys} and {theirs.num_rows} x {theirs.num_keys}"
        )
    shape = (
        _common_size(operation, "batch", (mine, theirs)),
        _common_size(operation, "heads", (mine, theirs)),
    )
    return (
        [np.broadcast_to(vector, (*shape, mine.num_keys)) for vector in mine.vectors],
        [np.broadcast_to(vector, (*shape, mine.num_keys)) for vector in theirs.vectors],
    )


def _families(vectors: list[Ints]) -> tuple[Ints, Ints]:
    lts, lte, uts, ute = vectors
    return np.stack([uts, lts]), np.stack([ute, lte])
