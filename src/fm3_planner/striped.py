"""Chunks dealt round robin: good for a plain causal mask, whatever the documents are."""

from __future__ import annotations

from dataclasses import dataclass

from fm3_planner.base import Assignment
from fm3_planner.problem import PlanProblem


@dataclass(frozen=True)
class Striped:
    """Chunk c is on rank c mod P."""

    def assign(self, problem: PlanProblem) -> Assignment:
        """Return the stripes; no weight or need is looked at."""
        return Assignment(
            chunks_by_rank=[
                range(rank, problem.num_chunks, problem.num_ranks) for rank in range(problem.num_ranks)
            ],
            moves=problem.num_chunks,
        )
