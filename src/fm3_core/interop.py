"""A mask's vectors from and to other forms: dense masks and FlashMask indices."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fm3_core import span
from fm3_core.check import as_array, require_int
from fm3_core.errors import MaskError
from fm3_core.span import Ints, Vectors


def causal_end(num_rows: int, num_keys: int) -> NDArray[np.int32]:
    """Return int32 [keys], the end of the bottom-right aligned causal span [0, end) of each column."""
    return np.maximum(np.arange(num_keys, dtype=np.int64) - (num_keys - num_rows), 0).astype(np.int32)


def vectors_from_dense(visible: NDArray[np.bool_]) -> Vectors:
    """Return (lts, lte, uts, ute) of a dense mask, int32.

    Args:
        visible: bool [batch, heads, rows, keys], True = visible.

    Raises:
        MaskError: not a bool array of that shape, or the first column that has more than two hidden runs.
    """
    if visible.dtype != np.bool_ or visible.ndim != 4:
        raise MaskError(
            f"a dense mask must be bool [batch, heads, rows, keys], got {visible.dtype} {visible.shape}"
        )
    num_rows = visible.shape[2]
    hidden = ~visible
    begins, ends = hidden.copy(), hidden.copy()
    begins[:, :, 1:] &= visible[:, :, :-1]
    ends[:, :, :-1] &= visible[:, :, 1:]
    counts = begins.sum(axis=2)
    if counts.size and counts.max() > 2:
        wrong = np.argwhere(counts > 2)
        batch, head, key = wrong[0]
        run_starts = np.flatnonzero(begins[batch, head, :, key])
        run_ends = np.flatnonzero(ends[batch, head, :, key]) + 1
        raise MaskError(
            f"from_dense: batch {batch}, head {head}, column {key} has no form with two hidden spans: "
            f"it hides {span.describe_spans(run_starts, run_ends)} "
            f"({len(wrong)} of {counts.size} columns have none)"
        )
    if num_rows == 0:
        nothing = np.zeros(counts.shape, dtype=np.int32)
        return nothing, nothing.copy(), nothing.copy(), nothing.copy()
    first_start = np.where(counts > 0, begins.argmax(axis=2), 0)
    first_end = np.where(counts > 0, ends.argmax(axis=2) + 1, 0)
    last_start = np.where(counts > 1, num_rows - 1 - begins[:, :, ::-1].argmax(axis=2), num_rows)
    last_end = np.where(counts > 1, num_rows - ends[:, :, ::-1].argmax(axis=2), num_rows)
    return (
        span.as_int32(last_start),
        span.as_int32(last_end),
        span.as_int32(first_start),
        span.as_int32(first_end),
    )


def vectors_from_startend_row_indices(
    indices: ArrayLike, *, causal: bool, num_rows: int | None
) -> tuple[Vectors, int]:
    """Return ((lts, lte, uts, ute), num_rows) of FlashMask indices, missing vectors filled in."""
    array = as_array("startend_row_indices", indices)
    if array.ndim != 4:
        raise MaskError(f"startend_row_indices must have shape [batch, heads, keys, n], got {array.shape}")
    if not np.issubdtype(array.dtype, np.integer) and array.size:
        raise MaskError(f"startend_row_indices must be integers, got {array.dtype}")
    num_keys, given = array.shape[2:]
    rows = num_keys if num_rows is None else require_int("num_rows", num_rows, maximum=2**31 - 1)
    if (causal, given) not in {(True, 1), (True, 2), (False, 2), (False, 4)}:
        raise MaskError(
            f"startend_row_indices must have n = 1 or 2 vectors when causal and 2 or 4 when not, "
            f"got causal={causal} and n = {given}"
        )
    first, *rest = (array[..., i] for i in range(given))
    nothing, bottom = np.zeros(first.shape, np.int32), np.full(first.shape, rows, np.int32)
    if causal:
        diagonal = np.broadcast_to(causal_end(rows, num_keys), first.shape)
        return (first, rest[0] if rest else bottom, nothing, diagonal), rows
    if given == 2:
        return (first, bottom, nothing, rest[0]), rows
    return (first, rest[0], rest[1], rest[2]), rows


def startend_row_indices(canonical: Vectors, num_rows: int) -> tuple[NDArray[np.int32], bool]:
    """Return (indices int32 [batch, heads, keys, n], causal) of canonical vectors, n as small as can be.

    Each short form is tried by writing down the only values that it could have, then comparing meanings.
    """
    lts, lte, uts, ute = canonical
    nothing, bottom = np.zeros_like(lts), np.full_like(lts, num_rows)
    diagonal = np.broadcast_to(causal_end(num_rows, lts.shape[2]), lts.shape)
    upper_reaches_bottom = (ute == num_rows) & (uts < ute)
    tail = np.where(upper_reaches_bottom, uts, np.where(lte == num_rows, lts, num_rows)).astype(np.int32)
    one_upper = (lts == lte) & (uts < ute)
    middle_start = np.where(one_upper, diagonal, lts).astype(np.int32)
    middle_end = np.where(one_upper, ute, lte).astype(np.int32)

    def says_the_same(vectors: Vectors) -> bool:
        merged = span.union([vectors[2], vectors[0]], [vectors[3], vectors[1]], num_rows)
        written = span.canonical_vectors(*merged, num_rows)
        return all(np.array_equal(mine, theirs) for mine, theirs in zip(written, canonical, strict=True))

    if says_the_same((tail, bottom, nothing, diagonal)):
        return _stack(tail), True
    if says_the_same((middle_start, middle_end, nothing, diagonal)):
        return _stack(middle_start, middle_end), True
    head = np.where(uts == 0, ute, 0).astype(np.int32)
    if says_the_same((tail, bottom, nothing, head)):
        return _stack(tail, head), False
    return _stack(lts, lte, uts, ute), False


def _stack(*vectors: Ints) -> NDArray[np.int32]:
    return np.stack(vectors, axis=-1).astype(np.int32, copy=False)
