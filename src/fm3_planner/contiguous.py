"""Neighbouring chunks on one rank: the least traffic of the fixed layouts, the worst balance."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from fm3_planner.base import Assignment
from fm3_planner.problem import PlanProblem


@dataclass(frozen=True)
class Contiguous:
    """Rank r owns the r-th run of neighbouring chunks; the first n mod P ranks own one more."""

    def assign(self, problem: PlanProblem) -> Assignment:
        """Return the runs; no weight or need is looked at."""
        starts = [*run_starts(problem), problem.num_chunks]
        return Assignment(
            chunks_by_rank=[range(start, end) for start, end in pairwise(starts)],
            moves=problem.num_chunks,
        )


def run_starts(problem: PlanProblem) -> list[int]:
    """Return the first chunk of each rank's run of neighbouring chunks."""
    per_rank, ranks_with_more = problem.chunks_per_rank
    return [rank * per_rank + min(rank, ranks_with_more) for rank in range(problem.num_ranks)]
