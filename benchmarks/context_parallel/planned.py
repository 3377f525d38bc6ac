"""`Planned`: this project's own step as a method, with any of its ideas off."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from context_parallel.job import Job
from context_parallel.method import Method, Results
from context_parallel.variant import Variant
from fm3_comm import gather_bytes, make_exchange
from fm3_core import ColumnMask
from fm3_runtime import ContextParallel, attention
from fm3_runtime.step import Step
from kernel.cell import Cell


def planned_step(job: Job, variant: Variant, mask: ColumnMask, chunk_size: int | None) -> Step:
    """Return the step of a variant.

    Without pruning it is given the exchange of a mask that shows everything: its own mask still hides what
    it hides, so it computes the same.
    """
    context = ContextParallel(
        planner=variant.planner,
        backend=job.handle(variant.backend, variant.segments),
        chunk_size=chunk_size,
        ranks_per_node=variant.ranks_per_node,
        route=variant.route,
        overlap=variant.overlap,
    )
    step = context.plan(mask)
    if variant.pruning:
        return step
    chunks = step.partition.num_chunks
    everything = np.ones((chunks, chunks), dtype=np.bool_)
    exchange = make_exchange(step.partition, everything, context.cluster, variant.route)
    return replace(step, exchange=exchange)


class Planned(Method):
    """Attention over a step, as a model calls it."""

    def __init__(self, cell: Cell, step: Step, engine: str) -> None:
        """Take this rank's tokens; gradients of all of them are wanted."""
        super().__init__(cell, step, engine)
        self.q, self.k, self.v = (x.requires_grad_() for x in (self.q, self.k, self.v))

    def forward(self) -> Results:
        """Return out and lse."""
        with torch.no_grad():
            return attention(self.q, self.k, self.v, self.step, return_lse=True, engine=self.engine)

    def backward(self) -> Results:
        """Return dq, dk and dv."""
        return torch.autograd.grad(self._out, (self.q, self.k, self.v), self.dout, retain_graph=True)

    def communicate(self, which: str) -> object:
        """Gather, and on the way back reduce partials of zero."""
        backend, exchange = self.step.backend, self.step.exchange
        gathered = backend.start_gather(exchange, self.k, self.v).wait()
        if which == "forward":
            return gathered
        return backend.start_reduce(exchange, *self._partials, wire_dtype=self.step.wire_dtype).wait()

    @property
    def sent_bytes(self) -> int:
        """Bytes that the handle has counted, of all steps that share it."""
        return self.step.backend.traffic.total

    @property
    def key_mask(self) -> ColumnMask:
        """The step's own mask."""
        return self.step.local_mask

    @cached_property
    def _out(self) -> Tensor:
        return attention(self.q, self.k, self.v, self.step, engine=self.engine)

    @cached_property
    def _partials(self) -> tuple[Tensor, Tensor]:
        tokens = len(self.key_tokens)
        dtype = torch.promote_types(self.k.dtype, torch.float32)
        dk, dv = (x.new_zeros((x.shape[0], tokens, *x.shape[2:]), dtype=dtype) for x in (self.k, self.v))
        return dk, dv


def between_nodes_bytes(method: Method) -> int:
    """Return the bytes that a forward pass moves between nodes; 0 where all ranks are on one."""
    exchange = method.step.exchange
    token_bytes = (method.k[:, 0].numel() + method.v[:, 0].numel()) * method.k.element_size()
    node = exchange.cluster.node_of
    return sum(
        size
        for hop, size in gather_bytes(exchange, token_bytes).items()
        if node(hop.source) != node(hop.destination)
    )
