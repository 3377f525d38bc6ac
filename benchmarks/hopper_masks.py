"""Masks that hopper_check.py checks and times, and the best figures known for the timed ones (TFLOP/s)."""

from __future__ import annotations

import json

import numpy as np

from fm3_core import ColumnMask, patterns

BEST = {
    8192: [685, 629, 386, 511, 529, 333, 329, 525, 465, 621, 567, 350],
    32768: [706, 657, 553, 527, 598, 399, 482, 515, 493, 614, 601, 372],
    131072: [705, 663, 618, 617, 637, 524, 586, 613, 595, 594, 600, 361],
}
NAMES = [
    "full",
    "causal",
    "sliding_window",
    "causal_document",
    "document",
    "share_question",
    "global_sliding_window",
    "causal_blockwise",
    "prefix_lm_document",
    "prefix_lm_causal",
    "qk_sparse",
    "random_eviction",
]


def bench_mask(name, S, heads, data):
    """The benchmark's mask of that name for S tokens; data: document_lengths.json."""
    lengths_file = json.loads(data.read_text())
    first = lengths_file["batches"][str(S)][0]
    docs = first["lengths"]
    starts = np.cumsum([0, *docs])
    stretches = [(int(s), n) for s, n, hidden in zip(starts, docs, first["hidden"], strict=False) if hidden]
    return {
        "full": lambda: patterns.full(S),
        "causal": lambda: patterns.causal(S),
        "sliding_window": lambda: patterns.sliding_window(S, S // 16 - 1),
        "causal_document": lambda: patterns.causal_document(docs),
        "document": lambda: patterns.document(docs),
        "share_question": lambda: patterns.share_question(first["question_then_answers"]),
        "global_sliding_window": lambda: patterns.global_sliding_window(S, 16, S // 16, S // 16),
        "causal_blockwise": lambda: patterns.causal_blockwise(docs),
        "prefix_lm_document": lambda: patterns.prefix_lm_document(
            list(zip(first["prefix"], docs, strict=True))
        ),
        "prefix_lm_causal": lambda: patterns.prefix_lm_causal(S, S // 2),
        "qk_sparse": lambda: patterns.qk_sparse(S, stretches or [(1024, 538), (2358, 1700)]),
        "random_eviction": lambda: patterns.random_eviction(S, S // 2, heads, 1, seed=0),
    }[name]()


def small_masks(S, heads, batch, seed):
    """The twelve masks over S tokens, with documents drawn at random."""
    rng = np.random.default_rng(seed)
    cuts = np.sort(rng.integers(0, S + 1, 3))
    docs = [int(x) for x in np.diff([0, *cuts, S])]
    yield "full", patterns.full(S)
    yield "causal", patterns.causal(S)
    yield "window", patterns.sliding_window(S, max(1, S // 7), S // 9)
    yield "causal_document", patterns.causal_document(docs)
    yield "document", patterns.document(docs)
    yield "share_question", patterns.share_question([[d // 3, d // 3, d - 2 * (d // 3)] for d in docs])
    yield "global_window", patterns.global_sliding_window(S, min(16, S), S // 8, S // 8)
    yield "causal_blockwise", patterns.causal_blockwise(docs)
    yield "prefix_document", patterns.prefix_lm_document([(d // 3, d) for d in docs])
    yield "prefix_causal", patterns.prefix_lm_causal(S, S // 2)
    yield "qk_sparse", patterns.qk_sparse(S, [(S // 5, S // 3)])
    if S > 8:
        yield "eviction", patterns.random_eviction(S, S // 2, heads, batch, seed=seed)


def random_mask(rng, S, T, heads, batch):
    """Spans that overlap, touch, repeat or follow a diagonal."""
    shape = (batch, heads, T)
    style = rng.integers(0, 4)
    a, b = np.sort(rng.integers(0, S + 1, (2, *shape)), axis=0)
    c, d = np.sort(rng.integers(0, S + 1, (2, *shape)), axis=0)
    if style == 1:  # long constant runs, so that blocks are EMPTY and FULL too
        for x in (a, b, c, d):
            x[...] = np.repeat(x[..., ::97], 97, axis=-1)[..., :T]
        a, b = np.minimum(a, b), np.maximum(a, b)
        c, d = np.minimum(c, d), np.maximum(c, d)
    if style == 2:
        c[...], d[...] = 0, np.clip(np.arange(T) - (T - S) + rng.integers(-9, 9), 0, S)
        b[...] = S
    if style == 3:
        a[...], b[...] = np.where(rng.random(shape) < 0.5, S, a), S
        c[...], d[...] = 0, np.clip(np.arange(T) - (T - S), 0, S)
    return ColumnMask(*(x.astype(np.int32) for x in (a, b, c, d)), num_rows=S)
