"""The oracle: every placement with equal counts is tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from fm3_core.errors import PlanError
from fm3_planner.base import Assignment
from fm3_planner.bounds import Bound
from fm3_planner.problem import PlanProblem


@dataclass(frozen=True)
class BruteForce:
    """The smallest largest load, proved by enumeration.

    Of several placements with that load it answers the first by owner of chunk 0, then of chunk 1 and so on.
    """

    max_chunks: ClassVar[int] = 10

    def assign(self, problem: PlanProblem) -> Assignment:
        """Return a placement of least compute; needs are not looked at.

        Raises:
            PlanError: the problem has more than `max_chunks` chunks.
        """
        if problem.num_chunks > self.max_chunks:
            raise PlanError(
                f"brute_force tries every placement of at most {self.max_chunks} chunks, the problem has "
                f"{problem.num_chunks}; use a heuristic planner"
            )
        groups = problem.groups.tolist()
        num_tried, least = 0, sum(problem.weights.tolist()) + 1
        best: tuple[int, ...] = ()
        for owners in placements(problem):
            num_tried += 1
            compute = 0
            for weights in groups:
                loads = [0] * problem.num_ranks
                for chunk, rank in enumerate(owners):
                    loads[rank] += weights[chunk]
                compute += max(loads)
            if compute < least:
                least, best = compute, owners
        return Assignment(
            chunks_by_rank=[
                [chunk for chunk, owner in enumerate(best) if owner == rank]
                for rank in range(problem.num_ranks)
            ],
            moves=num_tried,
            compute_bound=Bound(least, f"enumeration: the best of all {num_tried} placements"),
        )


def placements(problem: PlanProblem) -> Iterator[tuple[int, ...]]:
    """Yield the owner of each chunk for every placement with equal counts, up to the order of ranks."""
    per_rank, ranks_with_more = problem.chunks_per_rank
    owners: list[int] = []
    counts = [0] * problem.num_ranks

    def place_next() -> Iterator[tuple[int, ...]]:
        if len(owners) == problem.num_chunks:
            yield tuple(owners)
            return
        num_full = sum(count > per_rank for count in counts)
        for rank in range(problem.num_ranks):
            if counts[rank] < per_rank or (counts[rank] == per_rank and num_full < ranks_with_more):
                first_use = counts[rank] == 0
                owners.append(rank)
                counts[rank] += 1
                yield from place_next()
                counts[rank] -= 1
                owners.pop()
                if first_use:
                    break

    return place_next()
