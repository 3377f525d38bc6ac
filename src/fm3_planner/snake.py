"""Chunks sorted by cost and dealt back and forth: what PyTorch's processing-time round robin does."""

from __future__ import annotations

from dataclasses import dataclass

from fm3_planner.base import Assignment
from fm3_planner.problem import PlanProblem


@dataclass(frozen=True)
class Snake:
    """Deals the chunks, heaviest first, to ranks 0..P-1, then P-1..0, and so on.

    Ties go to the smaller chunk number. The largest load is at most that of the heaviest chunk above the
    lightest load.
    """

    def assign(self, problem: PlanProblem) -> Assignment:
        """Return the dealt placement; needs are not looked at."""
        weights, num_ranks = problem.weights.tolist(), problem.num_ranks
        chunks_by_rank: list[list[int]] = [[] for _ in range(num_ranks)]
        heaviest_first = sorted(range(len(weights)), key=lambda chunk: (-weights[chunk], chunk))
        for place, chunk in enumerate(heaviest_first):
            deal, turn = divmod(place, num_ranks)
            chunks_by_rank[num_ranks - 1 - turn if deal % 2 else turn].append(chunk)
        return Assignment(chunks_by_rank=[sorted(chunks) for chunks in chunks_by_rank], moves=len(weights))
