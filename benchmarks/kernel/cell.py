"""`Cell`: one mask at one length, with tensors on the device."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from fm3_core import ColumnMask
from fm3_planner.calibrate import TimedCell
from kernel.masks import benchmark_mask
from kernel.peers import shape_key

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
        return shape_key(self.heads, self.kv_heads, self.dim, str(self.dtype).removeprefix("torch."))


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

    @property
    def density(self) -> float:
        """Visible pairs over all pairs."""
        batch, rows, heads, _ = self.q.shape
        return self.pairs / (batch * heads * rows * self.k.shape[1])

    def tflops(self, which: str, seconds: float) -> float:
        """Return the speed on visible pairs."""
        return FLOPS[which] * self.pairs * self.q.shape[3] / seconds / 1e12

    def counted(self, which: str, seconds: float, blocks: tuple[int, int]) -> dict[str, Any]:
        """Return a pass with the blocks that it visits, as `fm3 calibrate` reads it.

        Args:
            which: "forward" or "backward".
            seconds: time of the pass.
            blocks: rows and keys of the kernel's block.
        """
        call = TimedCell.of_call(
            self.mask,
            direction=which,
            seconds=seconds,
            batch=self.q.shape[0],
            query_heads=self.q.shape[2],
            block_rows=blocks[0],
            block_keys=blocks[1],
        )
        return asdict(call)
