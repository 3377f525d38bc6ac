"""The twelve usual masks, each in O(keys)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fm3_core import span
from fm3_core.check import require_int, require_ints
from fm3_core.errors import MaskError
from fm3_core.interop import causal_end
from fm3_core.mask import MAX_ROWS, ColumnMask
from fm3_core.span import Ints


def full(num_rows: int, num_keys: int | None = None) -> ColumnMask:
    """Every row sees every key."""
    rows, keys = _sizes(num_rows, num_keys)
    return _mask(rows, keys)


def causal(num_rows: int, num_keys: int | None = None) -> ColumnMask:
    """Row i sees key k iff k <= i + num_keys - num_rows: bottom-right aligned, last row and key meet."""
    rows, keys = _sizes(num_rows, num_keys)
    return _mask(rows, keys, upper=(0, causal_end(rows, keys)))


def sliding_window(num_rows: int, left: int, right: int = 0) -> ColumnMask:
    """Row i sees key k iff i - left <= k <= i + right, both ends included."""
    rows, key = _rows_and_key(num_rows)
    left, right = _at_most(rows, left=left, right=right)
    return _mask(rows, rows, lower=(key + left + 1, rows), upper=(0, key - right))


def causal_document(lengths: Sequence[int], *, padding: int = 0, num_tokens: int | None = None) -> ColumnMask:
    """Row i sees key k iff both are in one document and k <= i.

    Args:
        lengths: tokens of each document, in order; 0 is allowed.
        padding: tokens behind the documents, which see nobody and are seen by nobody.
        num_tokens: when given, lengths and padding must sum to it.
    """
    documents = _Documents(lengths, padding, num_tokens)
    return documents.mask(first_visible=documents.key, behind_visible=documents.end)


def document(lengths: Sequence[int], *, padding: int = 0, num_tokens: int | None = None) -> ColumnMask:
    """Row i sees key k iff both are in one document; arguments as in `causal_document`."""
    documents = _Documents(lengths, padding, num_tokens)
    return documents.mask(first_visible=documents.start, behind_visible=documents.end)


def share_question(
    groups: Sequence[Sequence[int]], *, padding: int = 0, num_tokens: int | None = None
) -> ColumnMask:
    """Causal inside a document, and k is in the document's question or in the part that i is in.

    Args:
        groups: for each document `[question, answer, answer, ...]`, tokens of each part.
        padding: as in `causal_document`.
        num_tokens: as in `causal_document`.
    """
    sizes, lengths = _flattened(groups)
    parts = _Documents(lengths, padding, num_tokens)
    first_parts = np.cumsum(sizes) - sizes
    group_lengths = np.add.reduceat(lengths, first_parts) if len(sizes) else lengths
    documents = _Documents(group_lengths, padding, num_tokens)
    is_question = np.zeros(len(lengths), dtype=np.bool_)
    is_question[first_parts] = True
    in_question = np.repeat(is_question, parts.lengths)
    return parts.mask(first_visible=parts.key, behind_visible=np.where(in_question, documents.end, parts.end))


def global_sliding_window(num_rows: int, num_global: int, left: int, right: int) -> ColumnMask:
    """Row i sees key k iff k or i is among the first num_global tokens, or i - left <= k <= i + right."""
    rows, key = _rows_and_key(num_rows)
    num_global, left, right = _at_most(rows, num_global=num_global, left=left, right=right)
    everywhere = key < num_global
    first_hidden_below = np.where(everywhere, rows, key + left + 1)
    first_visible = np.where(everywhere, num_global, key - right)
    return _mask(rows, rows, lower=(first_hidden_below, rows), upper=(num_global, first_visible))


def causal_blockwise(
    lengths: Sequence[int], *, padding: int = 0, num_tokens: int | None = None
) -> ColumnMask:
    """Causal, and k is in the block of i or i is in the last block; arguments as in `causal_document`.

    Padding behind three or more blocks is refused: a column would hide the rows before it, those between its
    block and the last one, and the padding, which is three spans.
    """
    blocks = _Documents(lengths, padding, num_tokens)
    last_start = blocks.used - int(blocks.lengths[-1]) if len(blocks.lengths) else 0
    lower = (np.minimum(blocks.end, last_start), last_start)
    return blocks.mask(first_visible=blocks.key, behind_visible=blocks.used, gap=lower)


def prefix_lm_document(
    documents: Sequence[tuple[int, int]], *, padding: int = 0, num_tokens: int | None = None
) -> ColumnMask:
    """Row i sees key k iff both are in one document and k is in its prefix or k <= i.

    Args:
        documents: `(prefix, length)` of each, prefix <= length.
        padding: as in `causal_document`.
        num_tokens: as in `causal_document`.
    """
    prefixes, lengths = _pairs("documents", "(prefix, length)", documents)
    wrong = np.flatnonzero(prefixes > lengths)
    if wrong.size:
        i = wrong[0]
        raise MaskError(
            f"documents[{i}]: prefix {prefixes[i]} must be <= length {lengths[i]} "
            f"({wrong.size} of {len(lengths)} are wrong)"
        )
    whole = _Documents(lengths, padding, num_tokens)
    in_prefix = whole.key < whole.start + np.repeat(prefixes, whole.lengths)
    return whole.mask(first_visible=np.where(in_prefix, whole.start, whole.key), behind_visible=whole.end)


def prefix_lm_causal(num_rows: int, prefix: int) -> ColumnMask:
    """Row i sees key k iff k < prefix or k <= i."""
    rows, key = _rows_and_key(num_rows)
    prefix = require_int("prefix", prefix, maximum=rows)
    return _mask(rows, rows, upper=(0, np.where(key < prefix, 0, key)))


def qk_sparse(num_rows: int, stretches: Sequence[tuple[int, int]]) -> ColumnMask:
    """Causal, but a stretch does not see itself: row i misses key k <= i iff one stretch holds both.

    Args:
        num_rows: tokens.
        stretches: `(start, length)` of each, inside the tokens; they may overlap.
    """
    rows, key = _rows_and_key(num_rows)
    furthest_end = np.zeros(rows, dtype=np.int64)
    starts, lengths = _pairs("stretches", "(start, length)", stretches)
    ends = starts + lengths
    wrong = np.flatnonzero(ends > rows)
    if wrong.size:
        i = wrong[0]
        raise MaskError(
            f"stretches[{i}] = [{starts[i]}, {ends[i]}) must end at or before num_rows={rows} "
            f"({wrong.size} of {len(ends)} are wrong)"
        )
    np.maximum.at(furthest_end, starts[lengths > 0], ends[lengths > 0])
    stretch_end = np.maximum(np.maximum.accumulate(furthest_end), key)
    return _mask(rows, rows, upper=(0, stretch_end))


def random_eviction(
    num_rows: int, start_row: int, heads: int = 1, batch: int = 1, *, seed: int
) -> ColumnMask:
    """Causal, and from start_row on each row loses one more key, drawn at random from those before it.

    A cache of start_row keys: at each row from start_row on one key, uniform among the cached, leaves for
    that row and all later ones, and the row's own key takes its place. So num_rows - start_row distinct keys
    of 0..num_rows-2 leave, none before it exists; every batch entry and head draws afresh.

    Args:
        num_rows: tokens.
        start_row: first row at which a key leaves, 1..num_rows (num_rows: none leaves).
        heads: mask heads.
        batch: batch entries.
        seed: of numpy's default generator; equal seeds give equal masks.
    """
    rows, key = _rows_and_key(num_rows)
    start_row = require_int("start_row", start_row, minimum=min(1, rows), maximum=rows)
    heads, batch = require_int("heads", heads, minimum=1), require_int("batch", batch, minimum=1)
    generator = np.random.default_rng(require_int("seed", seed))
    leaves_at = np.full((batch, heads, rows), rows, dtype=np.int32)
    for draw in leaves_at.reshape(batch * heads, rows):
        evicted = _evicted_keys(generator.integers(0, max(start_row, 1), rows - start_row), start_row)
        draw[evicted] = np.arange(start_row, rows, dtype=np.int32)
    upper_end = np.broadcast_to(span.as_int32(key), leaves_at.shape)
    return ColumnMask._trusted(
        [leaves_at, np.full_like(leaves_at, rows), np.zeros_like(leaves_at), upper_end.copy()], rows
    )


PATTERNS: dict[str, Callable[..., ColumnMask]] = {
    pattern.__name__: pattern
    for pattern in (
        full,
        causal,
        sliding_window,
        causal_document,
        document,
        share_question,
        global_sliding_window,
        causal_blockwise,
        prefix_lm_document,
        prefix_lm_causal,
        qk_sparse,
        random_eviction,
    )
}
"""The patterns by name."""


class _Documents:
    """Consecutive stretches of tokens with padding behind: for each key the start and end of its own."""

    def __init__(self, lengths: ArrayLike, padding: int, num_tokens: int | None) -> None:
        self.lengths = require_ints("lengths", lengths, maximum=MAX_ROWS)
        padding = require_int("padding", padding)
        self.used = int(self.lengths.sum())
        self.num_tokens = require_int("lengths and padding together", self.used + padding, maximum=MAX_ROWS)
        if num_tokens is not None and num_tokens != self.num_tokens:
            raise MaskError(
                f"{len(self.lengths)} lengths sum to {self.used} and padding is {padding}, together "
                f"{self.num_tokens}; they must sum to num_tokens={num_tokens}"
            )
        ends = np.cumsum(self.lengths)
        self.key: NDArray[np.int64] = np.arange(self.used, dtype=np.int64)
        self.start: NDArray[np.int64] = np.repeat(ends - self.lengths, self.lengths)
        self.end: NDArray[np.int64] = np.repeat(ends, self.lengths)

    def mask(
        self, *, first_visible: Ints, behind_visible: Ints | int, gap: tuple[Ints, int] | None = None
    ) -> ColumnMask:
        """Hide the rows before first_visible, from behind_visible on, and the gap; pad keys hide all."""
        total = self.num_tokens
        padded = np.full(total, total, dtype=np.int64)
        upper_end = padded.copy()
        upper_end[: self.used] = first_visible
        tail_start = padded
        tail_start[: self.used] = behind_visible
        if gap is None:
            return _mask(total, total, lower=(tail_start, total), upper=(0, upper_end))
        gap_start = np.full(total, total, dtype=np.int64)
        gap_end = gap_start.copy()
        gap_start[: self.used], gap_end[: self.used] = gap
        spans = [
            (np.zeros(total, np.int64), upper_end),
            (gap_start, gap_end),
            (tail_start, np.full(total, total)),
        ]
        shaped = [(start.reshape(1, 1, -1), end.reshape(1, 1, -1)) for start, end in spans]
        return ColumnMask._from_spans(
            [s for s, _ in shaped], [e for _, e in shaped], total, "blocks with padding behind"
        )


def _mask(
    rows: int,
    keys: int,
    *,
    lower: tuple[Ints | int, Ints | int] | None = None,
    upper: tuple[Ints | int, Ints | int] | None = None,
) -> ColumnMask:
    """Make a mask of one head from spans [keys] or numbers, clipped to the rows; reversed ones are empty."""
    lts, lte = _span(rows, keys, lower or (rows, rows))
    uts, ute = _span(rows, keys, upper or (0, 0))
    return ColumnMask._trusted([lts, lte, uts, ute], rows)


def _span(
    rows: int, keys: int, ends: tuple[Ints | int, Ints | int]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    start = np.broadcast_to(np.clip(ends[0], 0, rows), (1, 1, keys)).astype(np.int32)
    end = np.broadcast_to(np.clip(ends[1], 0, rows), (1, 1, keys)).astype(np.int32)
    return start, np.maximum(start, end)


def _sizes(num_rows: int, num_keys: int | None) -> tuple[int, int]:
    rows = require_int("num_rows", num_rows, maximum=MAX_ROWS)
    return rows, rows if num_keys is None else require_int("num_keys", num_keys, maximum=MAX_ROWS)


def _rows_and_key(num_rows: int) -> tuple[int, NDArray[np.int64]]:
    rows = require_int("num_rows", num_rows, maximum=MAX_ROWS)
    return rows, np.arange(rows, dtype=np.int64)


def _at_most(rows: int, **distances: int) -> tuple[int, ...]:
    """Check the distances and cut them to the number of rows, which means the same and does not overflow."""
    return tuple(min(require_int(name, distance), rows) for name, distance in distances.items())


def _pairs(
    name: str, meaning: str, pairs: Sequence[Sequence[int]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first and the second numbers of all pairs, or raise naming the first pair that is wrong."""
    sizes, numbers = _flattened_rows(name, meaning, pairs)
    wrong = np.flatnonzero(sizes != 2)
    if wrong.size:
        raise MaskError(f"{name}[{wrong[0]}] must be {meaning}, got {pairs[wrong[0]]!r}")
    return numbers[0::2], numbers[1::2]


def _flattened(groups: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    meaning = "[question, answer, ...] with at least the question"
    sizes, numbers = _flattened_rows("groups", meaning, groups)
    wrong = np.flatnonzero(sizes == 0)
    if wrong.size:
        raise MaskError(f"groups[{wrong[0]}] must be {meaning}, got {groups[wrong[0]]!r}")
    return sizes, numbers


def _flattened_rows(
    name: str, meaning: str, rows: Sequence[Sequence[int]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the length of each row of integers and all integers in turn."""
    try:
        sizes = np.fromiter(map(len, rows), dtype=np.int64)
        flat = list(chain.from_iterable(rows))
    except TypeError:
        if not isinstance(rows, Sequence | np.ndarray):
            raise MaskError(f"{name} must be a sequence of {meaning}, got {rows!r}") from None
        wrong = next((i for i, row in enumerate(rows) if not isinstance(row, Sequence)), 0)
        raise MaskError(f"{name}[{wrong}] must be {meaning}, got {rows[wrong]!r}") from None
    try:
        return sizes, require_ints(name, flat, maximum=MAX_ROWS)
    except MaskError:
        for i, row in enumerate(rows):
            require_ints(f"{name}[{i}]", row, maximum=MAX_ROWS)
        raise


def _evicted_keys(slots: NDArray[np.int64], start_row: int) -> NDArray[np.int64]:
    """Return the key that leaves at each row from start_row on, given the cache slot that each row draws.

    A slot first holds the key of its own number, then the key of the row that drew it last.
    """
    rows_by_slot = np.argsort(slots, kind="stable")
    drawn_before = np.concatenate([[False], slots[rows_by_slot[1:]] == slots[rows_by_slot[:-1]]])[
        : len(slots)
    ]
    previous_row = np.concatenate([[0], rows_by_slot[:-1]])[: len(slots)]
    evicted = np.empty_like(slots)
    evicted[rows_by_slot] = np.where(drawn_before, previous_row + start_row, slots[rows_by_slot])
    return evicted
