"""`Method`: what every way of sharing a sequence can do: its passes, their computing and their moving alone.

Legend: B batch, S own tokens, T keys, H query heads, G key-value heads, D head dim.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property

import torch
from torch import Tensor

import fm3_kernels
from fm3_core import ColumnMask
from fm3_kernels import DeviceMask
from fm3_runtime.step import Step
from kernel.cell import Cell

PASSES = ("forward", "backward")

Results = tuple[Tensor, ...]


class Method(ABC):
    """One rank of one way over one cell; every rank must make the same calls in the same order.

    Args:
        cell: the whole sequence, the same on every rank.
        step: who owns what, and who sees what.
        engine: a name in `fm3_kernels.engines`.
    """

    def __init__(self, cell: Cell, step: Step, engine: str) -> None:
        """Take this rank's tokens."""
        self.cell = cell
        self.step = step
        self.engine = engine
        self.q, self.k, self.v, self.dout = (step.scatter(x) for x in (cell.q, cell.k, cell.v, cell.dout))

    def run(self, which: str) -> Results:
        """Return out and lse of "forward", or dq, dk and dv of "backward", of this rank's tokens."""
        return self.forward() if which == "forward" else self.backward()

    @abstractmethod
    def forward(self) -> Results:
        """Return out [B, S, H, D] and lse [B, H, S]."""

    @abstractmethod
    def backward(self) -> Results:
        """Return dq [B, S, H, D], dk and dv [B, S, G, D], from a forward pass that was made before."""

    @abstractmethod
    def communicate(self, which: str) -> object:
        """Move what a pass moves, and compute nothing."""

    @property
    @abstractmethod
    def sent_bytes(self) -> int:
        """Bytes that this rank has sent to others since it began."""

    @property
    @abstractmethod
    def key_mask(self) -> ColumnMask:
        """This rank's rows over the keys that it gathers."""

    def compute(self, which: str) -> object:
        """Compute what this rank computes in a pass, all keys at once, and move nothing."""
        k, v = self._keys
        if which == "forward":
            return fm3_kernels.attention_forward(self.q, k, v, self._mask, engine=self.engine)
        return fm3_kernels.attention_backward(
            self.dout, self.q, k, v, *self._computed, self._mask,
            engine=self.engine, kv_grad_dtype=torch.promote_types(k.dtype, torch.float32),
        )  # fmt: skip

    @property
    def key_tokens(self) -> Tensor:
        """Global tokens of the keys of `key_mask`, int64 [T]."""
        return torch.from_numpy(self.step.exchange.key_index(self.step.rank))

    @cached_property
    def _keys(self) -> tuple[Tensor, Tensor]:
        tokens = self.key_tokens.to(self.q.device)
        return self.cell.k.index_select(1, tokens), self.cell.v.index_select(1, tokens)

    @cached_property
    def _mask(self) -> DeviceMask:
        return DeviceMask.from_mask(self.key_mask, self.q.device)

    @cached_property
    def _computed(self) -> tuple[Tensor, Tensor]:
        return fm3_kernels.attention_forward(self.q, *self._keys, self._mask, engine=self.engine)
