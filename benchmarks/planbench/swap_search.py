"""The plain way to less traffic, as a yardstick: swap pairs of chunks between nodes while that lowers it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fm3_planner import Planner, PlanProblem


@dataclass(frozen=True, kw_only=True)
class SwapSearch:
    """Starts from a plan; takes every swap between nodes that lowers traffic and keeps the load allowed.

    Attributes:
        start: the planner that it starts from.
        max_compute: the largest load allowed.
    """

    start: Planner
    max_compute: int

    def assign(self, problem: PlanProblem) -> list[list[int]]:
        """Return the chunks of each rank when no swap helps any more."""
        answer = self.start.assign(problem)
        chunks_by_rank = getattr(answer, "chunks_by_rank", answer)
        owner = np.empty(problem.num_chunks, dtype=np.int64)
        for rank, chunks in enumerate(chunks_by_rank):
            owner[list(chunks)] = rank
        node_of = np.array([problem.cluster.node_of(rank) for rank in range(problem.num_ranks)])
        loads = np.bincount(owner, weights=problem.weights, minlength=problem.num_ranks).astype(np.int64)
        pins = problem.needs.T | np.eye(problem.num_chunks, dtype=np.bool_)  # [key chunk, user or itself]
        counts = np.stack([pins[:, node_of[owner] == node].sum(axis=1) for node in range(node_of.max() + 1)])
        while self._improve(problem, owner, node_of, loads, pins, counts):
            pass
        return [np.flatnonzero(owner == rank).tolist() for rank in range(problem.num_ranks)]

    def _improve(self, problem, owner, node_of, loads, pins, counts) -> bool:
        """Go over all pairs once; say whether a swap was taken."""
        weights, sizes = problem.weights, problem.chunk_bytes
        is_better = False
        for one in range(problem.num_chunks):
            for other in range(one + 1, problem.num_chunks):
                a, b = owner[one], owner[other]
                here, there = node_of[a], node_of[b]
                change = weights[other] - weights[one]
                if here == there or max(loads[a] + change, loads[b] - change) > self.max_compute:
                    continue
                moved = pins[:, other].astype(np.int64) - pins[:, one]
                before = (counts[here] > 0).astype(np.int64) + (counts[there] > 0)
                after = (counts[here] + moved > 0).astype(np.int64) + (counts[there] - moved > 0)
                if int((sizes * (after - before)).sum()) < 0:
                    counts[here] += moved
                    counts[there] -= moved
                    loads[a] += change
                    loads[b] -= change
                    owner[one], owner[other] = b, a
                    is_better = True
        return is_better
