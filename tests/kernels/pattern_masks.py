"""The twelve patterns, and masks beyond patterns, over any number of rows and keys."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fm3_core import ColumnMask, localize, patterns

PATTERNS: dict[str, Callable[[int], ColumnMask]] = {
    "full": patterns.full,
    "causal": patterns.causal,
    "sliding_window": lambda n: patterns.sliding_window(n, max(1, n // 7), n // 9),
    "causal_document": lambda n: patterns.causal_document(_documents(n)),
    "document": lambda n: patterns.document(_documents(n)),
    "share_question": lambda n: patterns.share_question(
        [[d // 3, d // 3, d - 2 * (d // 3)] for d in _documents(n)]
    ),
    "global_sliding_window": lambda n: patterns.global_sliding_window(n, min(16, n), n // 8, n // 8),
    "causal_blockwise": lambda n: patterns.causal_blockwise(_documents(n)),
    "prefix_lm_document": lambda n: patterns.prefix_lm_document([(d // 3, d) for d in _documents(n)]),
    "prefix_lm_causal": lambda n: patterns.prefix_lm_causal(n, n // 2),
    "qk_sparse": lambda n: patterns.qk_sparse(n, [(n // 5, n // 3)]),
    "random_eviction": lambda n: patterns.random_eviction(n, max(1, n // 2), heads=1, seed=n),
}


def _documents(tokens: int) -> list[int]:
    """Return four document lengths, one of them 0 or small, that fill `tokens`."""
    rng = np.random.default_rng(tokens)
    cuts = np.sort(rng.integers(0, tokens + 1, 2))
    return [int(x) for x in np.diff([0, 0, *cuts, tokens])]


def pattern(name: str, rows: int, keys: int) -> ColumnMask:
    """Return a pattern over max(rows, keys) tokens, cut to its last `rows` rows and first `keys` keys."""
    tokens = max(rows, keys)
    whole = localize(PATTERNS[name](tokens), [tokens - rows], [rows])
    return ColumnMask(
        *(vector[:, :, :keys] for vector in (whole.lts, whole.lte, whole.uts, whole.ute)), num_rows=rows
    )


def stacked(masks: list[ColumnMask], batch: int, heads: int) -> ColumnMask:
    """Return batch x heads masks, taken in turns from a list of one-head masks of one shape."""
    chosen = [masks[i % len(masks)] for i in range(batch * heads)]
    vectors = (
        np.concatenate([getattr(mask, name) for mask in chosen]).reshape(batch, heads, -1)
        for name in ("lts", "lte", "uts", "ute")
    )
    return ColumnMask(*vectors, num_rows=chosen[0].num_rows)


def random_spans(
    rng: np.random.Generator, rows: int, keys: int, batch: int = 1, heads: int = 1
) -> ColumnMask:
    """Return two spans a column that overlap, touch, repeat over runs of columns, or follow a diagonal."""
    shape = (batch, heads, keys)
    lower = np.sort(rng.integers(0, rows + 1, (2, *shape)), axis=0)
    upper = np.sort(rng.integers(0, rows + 1, (2, *shape)), axis=0)
    style = rng.integers(0, 5)
    if style == 1:  # long runs of equal columns, so that blocks are EMPTY and FULL too
        run = int(rng.integers(1, 200))
        lower, upper = (np.repeat(x[..., ::run], run, axis=-1)[..., :keys] for x in (lower, upper))
    diagonal = np.clip(np.arange(keys) - (keys - rows) + rng.integers(-9, 9), 0, rows)
    if style in (2, 3):
        upper = np.stack([np.zeros(shape, int), np.broadcast_to(diagonal, shape)])
    if style == 3:
        start = np.where(rng.random(shape) < 0.5, rows, lower[0])
        lower = np.stack([start, np.full(shape, rows)])
    if style == 4:  # touching: the lower span starts where the upper one ends
        upper[1] = np.minimum(upper[1], rows)
        lower = np.stack([upper[1], np.maximum(upper[1], lower[1])])
    return ColumnMask(lower[0], lower[1], upper[0], upper[1], num_rows=rows)
