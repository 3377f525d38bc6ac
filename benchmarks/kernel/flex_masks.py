"""What FlexAttention's users write for the benchmark's masks: rules, or the numbers of documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kernel.masks import benchmark_batch

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def usual_mask_mod(name: str, tokens: int, device: torch.device | str) -> MaskMod | None:
    """Return the usual `mask_mod` of a mask, or None where there is none: then four vectors say it."""
    if name == "causal":
        return lambda batch, head, row, key: row >= key
    if name == "sliding_window":
        left = tokens // 16 - 1
        return lambda batch, head, row, key: (row >= key) & (row - key <= left)
    if name == "prefix_lm_causal":
        prefix = tokens // 2
        return lambda batch, head, row, key: (row >= key) | (key < prefix)
    if name in ("document", "causal_document"):
        number = _numbers(benchmark_batch(tokens)["lengths"], device)
        if name == "document":
            return lambda batch, head, row, key: number[row] == number[key]
        return lambda batch, head, row, key: (number[row] == number[key]) & (row >= key)
    return None


def _numbers(lengths: Sequence[int], device: torch.device | str) -> Tensor:
    """Return the number of each token's document."""
    counts = torch.tensor(lengths, device=device)
    return torch.arange(len(lengths), device=device).repeat_interleave(counts)
