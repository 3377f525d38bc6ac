"""Longest processing time first, with equal chunk counts."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from fm3_planner.base import Assignment
from fm3_planner.problem import PlanProblem


@dataclass(frozen=True)
class Lpt:
    """The heaviest chunk that is left goes to the least loaded rank that has room.

    Ties go to the smaller chunk number and the smaller rank. Source: R. L. Graham, "Bounds on multiprocessing
    timing anomalies", SIAM J. Appl. Math. 17 (1969), here with a cap on the number of chunks.
    """

    def assign(self, problem: PlanProblem) -> Assignment:
        """Return the greedy placement; needs are not looked at."""
        per_rank, ranks_with_more = problem.chunks_per_rank
        weights = problem.weights.tolist()
        chunks_by_rank: list[list[int]] = [[] for _ in range(problem.num_ranks)]
        open_ranks = [(0, rank) for rank in range(problem.num_ranks)]
        for chunk in sorted(range(len(weights)), key=lambda chunk: (-weights[chunk], chunk)):
            load, rank = heapq.heappop(open_ranks)
            while len(chunks_by_rank[rank]) == per_rank and not ranks_with_more:
                load, rank = heapq.heappop(open_ranks)
            chunks_by_rank[rank].append(chunk)
            if len(chunks_by_rank[rank]) > per_rank:
                ranks_with_more -= 1
            else:
                heapq.heappush(open_ranks, (load + weights[chunk], rank))
        return Assignment(chunks_by_rank=[sorted(chunks) for chunks in chunks_by_rank], moves=len(weights))
