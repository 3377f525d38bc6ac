"""`Cell`: one mask at one length, with tensors on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fm3_core import BlockMap, ColumnMask
from kernel.masks import benchmark_mask

FLOPS = {"forward": 4, "backward": 10, "both": 14}
"""Floating-point operations of each pass, a visible pair and element of the head dim."""


@dataclass(frozen=True)
class Shape:
    """Tensors of a cell: tokens over the batch, heads, head dim, dtype."""

    tokens: int = 131072
    heads: int = 32
    kv_heads: int = 32
    dim: int = 128
    dtype: torch.dtype = torch.bfloat16

    @property
    def key(self) -> dict[str, int | str]:
        """What tells results of one shape from those of another."""
        return {"heads": self.heads, "kv_heads": self.kv_heads, "dim": self.dim, "dtype": str(self.dtype)[6:]}


@dataclass(frozen=True, eq=False)
class Cell:
    """One mask at one length."""

    name: str
    tokens: int
    mask: ColumnMask
    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor

    @classmethod
    def draw(cls, name: str, tokens: int, shape: Shape, device: str) -> Cell:
        """Draw a cell's tensors, the same at each call."""
        batch = max(1, shape.tokens // tokens)
        generator = torch.Generator(device).manual_seed(tokens)

        def normal(heads: int) -> Tensor:
            size = (batch, tokens, heads, shape.dim)
            return torch.randn(size, generator=generator, device=device, dtype=shape.dtype)

        mask = benchmark_mask(name, tokens, shape.heads)
        q, dout = normal(shape.heads), normal(shape.heads)
        return cls(name, tokens, mask, q, normal(shape.kv_heads), normal(shape.kv_heads), dout)

    @property
    def repeats(self) -> int:
        """(batch entry, query head) pairs that share one head of the mask."""
        batch, heads = self.q.shape[0], self.q.shape[2]
        return (heads // self.mask.heads) * (batch // self.mask.batch)

    @property
    def pairs(self) -> int:
        """Visible pairs over batch and query heads."""
        return int(self.mask.visible_pairs().sum()) * self.repeats

    def tflops(self, which: str, seconds: float) -> float:
        """Return the speed on visible pairs."""
        return FLOPS[which] * self.pairs * self.q.shape[3] / seconds / 1e12

    def blocks(self, block_rows: int, block_keys: int) -> dict[str, int]:
        """Return how many blocks of each kind a pass visits, as `fm3 calibrate` reads them."""
        kinds = BlockMap.from_mask(self.mask, block_rows, block_keys, method="extrema").kinds
        return {
            "full_blocks": int((kinds == 2).sum()) * self.repeats,
            "partial_blocks": int((kinds == 1).sum()) * self.repeats,
            "row_blocks": self.q.shape[0] * self.q.shape[2] * kinds.shape[2],
            "block_rows": block_rows,
            "block_keys": block_keys,
        }
