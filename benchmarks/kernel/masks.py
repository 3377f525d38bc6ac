"""The benchmark's twelve masks over any number of tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fm3_core import ColumnMask, patterns

LENGTHS = Path(__file__).parents[1] / "data" / "document_lengths.json"


def benchmark_batch(tokens: int) -> dict[str, Any]:
    """Return the first published batch of that length, or the shortest one scaled to it."""
    batches = json.loads(LENGTHS.read_text(encoding="utf-8"))["batches"]
    if str(tokens) in batches:
        return batches[str(tokens)][0]
    shortest = min(batches, key=int)
    batch, share = batches[shortest][0], tokens / int(shortest)
    lengths = _scaled(batch["lengths"], share, tokens)
    answers = batch["question_then_answers"]
    documents = _scaled([sum(parts) for parts in answers], share, tokens)
    return {
        "lengths": lengths,
        "prefix": [length // 2 for length in lengths],
        "hidden": batch["hidden"],
        "question_then_answers": [
            _scaled(parts, length / max(1, sum(parts)), length)
            for parts, length in zip(answers, documents, strict=True)
        ],
    }


def _scaled(numbers: list[int], share: float, total: int) -> list[int]:
    """Return numbers times a share, rounded so that they sum to `total`."""
    ends = [round(end * share) for end in np.cumsum(numbers)]
    ends[-1] = total
    return [int(x) for x in np.diff([0, *(min(end, total) for end in ends)])]


def _hidden_stretches(batch: dict[str, Any]) -> list[tuple[int, int]]:
    starts = np.cumsum([0, *batch["lengths"]])
    hidden = zip(starts, batch["lengths"], batch["hidden"], strict=False)
    return [(int(start), length) for start, length, is_hidden in hidden if is_hidden] or [
        (1024, 538),
        (2358, 1700),
    ]


MASKS: dict[str, Callable[[int, dict[str, Any], int], ColumnMask]] = {
    "full": lambda n, batch, heads: patterns.full(n),
    "causal": lambda n, batch, heads: patterns.causal(n),
    "sliding_window": lambda n, batch, heads: patterns.sliding_window(n, n // 16 - 1),
    "causal_document": lambda n, batch, heads: patterns.causal_document(batch["lengths"]),
    "document": lambda n, batch, heads: patterns.document(batch["lengths"]),
    "share_question": lambda n, batch, heads: patterns.share_question(batch["question_then_answers"]),
    "global_sliding_window": lambda n, batch, heads: patterns.global_sliding_window(n, 16, n // 16, n // 16),
    "causal_blockwise": lambda n, batch, heads: patterns.causal_blockwise(batch["lengths"]),
    "prefix_lm_document": lambda n, batch, heads: patterns.prefix_lm_document(
        list(zip(batch["prefix"], batch["lengths"], strict=True))
    ),
    "prefix_lm_causal": lambda n, batch, heads: patterns.prefix_lm_causal(n, n // 2),
    "qk_sparse": lambda n, batch, heads: patterns.qk_sparse(n, _hidden_stretches(batch)),
    "random_eviction": lambda n, batch, heads: patterns.random_eviction(
        n, n // 2, heads=heads, batch=1, seed=0
    ),
}


def benchmark_mask(name: str, tokens: int, heads: int) -> ColumnMask:
    """Return a mask of the benchmark; random_eviction has a head of its own for each query head."""
    return MASKS[name](tokens, benchmark_batch(tokens), heads)
