"""`AllGather`: the plain baseline: everything to everybody, then attention, then a reduce-scatter.

Legend: P ranks, B batch, S own tokens, G key-value heads, D head dim; T = P S.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

import fm3_kernels
from context_parallel.job import Job
from context_parallel.method import Results
from context_parallel.zigzag import Zigzag
from kernel.cell import Cell


class AllGather(Zigzag):
    """One collective each way around one attention over all keys; nothing overlaps, nothing is pruned."""

    def __init__(self, job: Job, cell: Cell, engine: str) -> None:
        """Take this rank's tokens."""
        super().__init__(job, cell, engine)
        self._saved: tuple[Tensor, Tensor] | None = None

    def forward(self) -> Results:
        """Gather, then attend."""
        out, lse = fm3_kernels.attention_forward(self.q, *self._gather(), self._mask, engine=self.engine)
        self._saved = out, lse
        return out, lse

    def backward(self) -> Results:
        """Gather again as this project does, attend, and sum partials in float32."""
        assert self._saved is not None
        dq, dk, dv = fm3_kernels.attention_backward(
            self.dout, self.q, *self._gather(), *self._saved, self._mask,
            engine=self.engine, kv_grad_dtype=torch.promote_types(self.k.dtype, torch.float32),
        )  # fmt: skip
        own_dk, own_dv = self._reduce(dk, dv)
        return dq, own_dk.to(self.k.dtype), own_dv.to(self.v.dtype)

    def communicate(self, which: str) -> object:
        """Gather, and on the way back reduce zeros."""
        k, v = self._gather()
        if which == "forward":
            return k, v
        dtype = torch.promote_types(k.dtype, torch.float32)
        return self._reduce(torch.zeros_like(k, dtype=dtype), torch.zeros_like(v, dtype=dtype))

    def _gather(self) -> tuple[Tensor, Tensor]:
        """Return all keys and values, [B, T, G, D], rank after rank."""
        own = torch.stack([self.k, self.v])
        gathered = own.new_empty(self.job.num_ranks * own.shape[0], *own.shape[1:])
        dist.all_gather_into_tensor(gathered, own, group=self.job.data)
        self._count(own)
        k, v = gathered.unflatten(0, (self.job.num_ranks, 2)).movedim(0, 2).flatten(2, 3)
        return k, v

    def _reduce(self, dk: Tensor, dv: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums of all ranks' partials [B, T, G, D] for this rank's tokens, [B, S, G, D]."""
        parts = torch.stack([dk, dv]).unflatten(2, (self.job.num_ranks, -1)).movedim(2, 0).contiguous()
        own = parts.new_empty(parts.shape[1:])
        dist.reduce_scatter_tensor(own, parts.flatten(0, 1), group=self.job.data)
        self._count(own)
        return own[0], own[1]

    def _count(self, own: Tensor) -> None:
        """Count a share that every rank but one's own sends once, as on a ring or directly."""
        self._sent += (self.job.num_ranks - 1) * own.numel() * own.element_size()
