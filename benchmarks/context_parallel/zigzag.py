"""`Zigzag`: what the baselines share: two runs of tokens a rank, and a mask over any rank's keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from context_parallel.job import Job
from context_parallel.method import Method
from fm3_comm import make_exchange
from fm3_core import Cluster, ColumnMask, localize
from fm3_planner import PlanProblem, plan
from fm3_runtime.step import Step
from kernel.cell import Cell


class Zigzag(Method):
    """A method whose ranks own equally many tokens: run r and run 2P - 1 - r of 2P equal runs.

    Args:
        job: the ranks; tensors move in its own group, not through a backend.
        cell: the whole sequence; its tokens are a multiple of 2P.
        engine: a name in `fm3_kernels.engines`.
    """

    def __init__(self, job: Job, cell: Cell, engine: str) -> None:
        """Take this rank's tokens."""
        if cell.tokens % (2 * job.num_ranks):
            raise ValueError(f"{cell.tokens} tokens are no multiple of 2 x {job.num_ranks} ranks")
        super().__init__(cell, _step(job, cell.mask), engine)
        self.job = job
        self._sent = 0

    @property
    def sent_bytes(self) -> int:
        """Bytes counted as they leave."""
        return self._sent

    @property
    def key_mask(self) -> ColumnMask:
        """This rank's rows over all keys, rank after rank."""
        return self.mask_over(range(self.job.num_ranks))

    @property
    def key_tokens(self) -> Tensor:
        """All tokens, rank after rank."""
        return torch.from_numpy(self._tokens(range(self.job.num_ranks)))

    def mask_over(self, ranks: Sequence[int]) -> ColumnMask:
        """Return this rank's rows over some ranks' keys, in the order given."""
        partition, rank = self.step.partition, self.job.rank
        rows = localize(self.cell.mask, partition.offsets(rank), partition.lengths(rank))
        return rows.take_keys(self._tokens(ranks))

    def _tokens(self, ranks: Sequence[int]) -> np.ndarray:
        return np.concatenate([self.step.partition.token_index(rank) for rank in ranks])


def _step(job: Job, mask: ColumnMask) -> Step:
    """Return the step that says who owns what; nothing moves by it."""
    problem = PlanProblem.from_mask(
        mask, chunk_size=mask.num_rows // (2 * job.num_ranks), num_ranks=job.num_ranks
    )
    result = plan(problem, "zigzag")
    exchange = make_exchange(result.partition, problem.needs, Cluster(job.num_ranks))
    return Step(mask=mask, result=result, exchange=exchange, backend=job.handle("torch_dist"))
