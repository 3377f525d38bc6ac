"""`Ring`: the other baseline: each rank's keys and values go round, and partial results are merged.

Legend: B batch, S own tokens, G key-value heads, D head dim.
"""

from __future__ import annotations

from functools import cached_property

import torch
import torch.distributed as dist
from torch import Tensor

import fm3_kernels
from context_parallel.job import Job
from context_parallel.method import Results
from context_parallel.zigzag import Zigzag
from fm3_kernels import DeviceMask
from kernel.cell import Cell

Pair = tuple[Tensor, Tensor]


class Ring(Zigzag):
    """P steps: attend to the block at hand while it goes on to the next rank and another comes.

    A block that no row of this rank sees is passed on and not attended to. Backward sends the blocks round
    again; the partial gradients of a block follow it one step behind, summed on the way in float32.
    """

    def __init__(self, job: Job, cell: Cell, engine: str) -> None:
        """Take this rank's tokens."""
        super().__init__(job, cell, engine)
        self._saved: Pair | None = None
        self._exact = torch.promote_types(self.k.dtype, torch.float32)

    def forward(self) -> Results:
        """Attend to one block after the other; merge all results at once, so that P adds no roundings."""
        block, found = (self.k, self.v), []
        for step in range(self.job.num_ranks):
            coming = self._pass_on(block) if step < self.job.num_ranks - 1 else None
            if (mask := self._masks[self._owner(step)]) is not None:
                found.append(
                    fm3_kernels.attention_forward(
                        self.q, *block, mask, engine=self.engine, out_dtype=self._exact
                    )
                )
            block = block if coming is None else coming.wait()
        out, lse = fm3_kernels.merge(found) if found else self._nothing_seen()
        self._saved = out.to(self.q.dtype), lse
        return self._saved

    def backward(self) -> Results:
        """Add dq here, and pass dk and dv on until they are with their owner."""
        assert self._saved is not None
        block = (self.k, self.v)
        dq = torch.zeros_like(self.q, dtype=self._exact)
        following: _Passing | None = None
        for step in range(self.job.num_ranks):
            coming = self._pass_on(block) if step < self.job.num_ranks - 1 else None
            mask = self._masks[self._owner(step)]
            if mask is None:
                partial = [torch.zeros_like(x, dtype=self._exact) for x in block]
            else:
                found, *partial = fm3_kernels.attention_backward(
                    self.dout, self.q, *block, *self._saved, mask,
                    engine=self.engine, kv_grad_dtype=self._exact,
                )  # fmt: skip
                dq += found
            if following is not None:
                partial = [mine + theirs for mine, theirs in zip(partial, following.wait(), strict=True)]
            following = self._pass_on((partial[0], partial[1]))
            block = block if coming is None else coming.wait()
        assert following is not None
        dk, dv = following.wait()
        return dq.to(self.q.dtype), dk.to(self.k.dtype), dv.to(self.v.dtype)

    def communicate(self, which: str) -> object:
        """Send blocks round, and on the way back as many partials as there are ranks."""
        block, partial = (self.k, self.v), None
        for step in range(self.job.num_ranks):
            if which == "backward":
                zeros = [torch.zeros_like(x, dtype=self._exact) for x in (self.k, self.v)]
                partial = self._pass_on((zeros[0], zeros[1]) if partial is None else partial.wait())
            if step < self.job.num_ranks - 1:
                block = self._pass_on(block).wait()
        return block if partial is None else partial.wait()

    @cached_property
    def _masks(self) -> list[DeviceMask | None]:
        """By owner of a block the mask over its keys, None where nothing is seen."""
        masks = (self.mask_over([owner]) for owner in range(self.job.num_ranks))
        return [
            DeviceMask.from_mask(mask, self.q.device) if int(mask.visible_pairs().sum()) else None
            for mask in masks
        ]

    def _owner(self, step: int) -> int:
        return (self.job.rank - step) % self.job.num_ranks

    def _nothing_seen(self) -> Pair:
        batch, tokens, heads, _ = self.q.shape
        lse = torch.full((batch, heads, tokens), -torch.inf, dtype=self._exact, device=self.q.device)
        return torch.zeros_like(self.dout), lse

    def _pass_on(self, pair: Pair) -> _Passing:
        """Start to send a pair to the next rank and to take another one from the rank before."""
        if self.job.num_ranks > 1:
            self._sent += sum(x.numel() * x.element_size() for x in pair)
        return _Passing(self.job, pair)


class _Passing:
    """A pair on its way round; what is sent is kept until it has left."""

    def __init__(self, job: Job, pair: Pair) -> None:
        self._sent = tuple(x.contiguous() for x in pair)
        if job.num_ranks == 1:
            self._taken, self._works = self._sent, []
            return
        self._taken = tuple(torch.empty_like(x) for x in self._sent)
        after, before = (job.rank + 1) % job.num_ranks, (job.rank - 1) % job.num_ranks
        sends = [dist.P2POp(dist.isend, x, after, job.data) for x in self._sent]
        takes = [dist.P2POp(dist.irecv, x, before, job.data) for x in self._taken]
        self._works = dist.batch_isend_irecv(sends + takes)

    def wait(self) -> Pair:
        for work in self._works:
            work.wait()
        self._works = []
        k, v = self._taken
        return k, v
