"""The densities of the benchmark's masks, which speeds are stated for."""

from __future__ import annotations

import pytest
from core_masks import benchmark_batch

from fm3_core import patterns

MEASURED = {
    "full": (1.000, 1.000, 1.000),
    "causal": (0.500, 0.500, 0.500),
    "sliding_window": (0.061, 0.061, 0.061),
    "causal_document": (0.170, 0.054, 0.052),
    "document": (0.340, 0.109, 0.104),
    "share_question": (0.075, 0.033, 0.027),
    "global_sliding_window": (0.125, 0.122, 0.121),
    "causal_blockwise": (0.397, 0.136, 0.127),
    "prefix_lm_document": (0.179, 0.057, 0.054),
    "prefix_lm_causal": (0.625, 0.625, 0.625),
    "qk_sparse": (0.464, 0.475, 0.477),
    "random_eviction": (0.375, 0.375, 0.375),
}
TOTALS = (8192, 32768, 131072)


def _stretches(batch):
    flagged = [
        (sum(batch["lengths"][:i]), length)
        for i, length in enumerate(batch["lengths"])
        if batch.get("hidden", [0] * len(batch["lengths"]))[i]
    ]
    return flagged or [(1024, 538), (2358, 1700)]


def _benchmark_mask(name, tokens):
    batch = benchmark_batch(tokens)
    window = tokens // 16
    arguments = {
        "full": (tokens,),
        "causal": (tokens,),
        "sliding_window": (tokens, window - 1),
        "causal_document": (batch["lengths"],),
        "document": (batch["lengths"],),
        "share_question": (batch["question_then_answers"],),
        "global_sliding_window": (tokens, 16, window, window),
        "causal_blockwise": (batch["lengths"],),
        "prefix_lm_document": (list(zip(batch["prefix"], batch["lengths"], strict=True)),),
        "prefix_lm_causal": (tokens, tokens // 2),
        "qk_sparse": (tokens, _stretches(batch)),
        "random_eviction": (tokens, tokens // 2),
    }
    keywords = {"random_eviction": {"seed": 0, "heads": 2}}
    return patterns.PATTERNS[name](*arguments[name], **keywords.get(name, {}))


@pytest.mark.parametrize("tokens", TOTALS)
@pytest.mark.parametrize("name", MEASURED)
def test_the_benchmark_mask_has_the_density_that_its_table_states(name, tokens):
    mask = _benchmark_mask(name, tokens)
    assert mask.shape[2:] == (tokens, tokens)
    assert round(mask.density, 3) == pytest.approx(MEASURED[name][TOTALS.index(tokens)], abs=1e-9)
