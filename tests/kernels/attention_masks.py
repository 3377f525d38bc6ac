"""Small masks of every pattern, at lengths that no block size divides."""

from __future__ import annotations

from fm3_core import ColumnMask, patterns

LENGTHS = [0, 70, 1, 3, 7, 50, 64]
NUM_TOKENS = sum(LENGTHS)

MASKS: dict[str, ColumnMask] = {
    "full": patterns.full(100, 161),
    "causal": patterns.causal(NUM_TOKENS),
    "causal, more rows": patterns.causal(161, 70),
    "causal, more keys": patterns.causal(70, 161),
    "sliding_window": patterns.sliding_window(193, 20, 3),
    "causal_document": patterns.causal_document(LENGTHS, padding=13),
    "document": patterns.document(LENGTHS),
    "share_question": patterns.share_question([[30, 21, 17], [40, 9, 1, 24], [5]]),
    "global_sliding_window": patterns.global_sliding_window(165, 5, 11, 9),
    "causal_blockwise": patterns.causal_blockwise([33, 64, 1, 50]),
    "prefix_lm_document": patterns.prefix_lm_document([(10, 70), (1, 1), (0, 37), (65, 80)]),
    "prefix_lm_causal": patterns.prefix_lm_causal(150, 70),
    "qk_sparse": patterns.qk_sparse(170, [(10, 33), (80, 70)]),
    "random_eviction": patterns.random_eviction(140, 70, heads=2, seed=7),
}
