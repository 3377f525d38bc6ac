"""Balanced largest differencing: what is uneven most is evened out first, at equal counts."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from fm3_planner.base import Assignment
from fm3_planner.problem import PlanProblem


@dataclass(frozen=True)
class KarmarkarKarp:
    """Sorted chunks are cut into groups of P, and the two most uneven groups are merged until one is left.

    Each group is P stacks with one chunk more a merge; the heaviest stack of one joins the lightest of the
    other, the second heaviest the second lightest, and so on. A group's unevenness is the difference of its
    heaviest and lightest stack; ties go to the group that is older. Where P does not divide n the last group
    is filled with nothing, so that counts differ by one.

    Source: B.-H. Tsai, "Asymptotic analysis of an algorithm for balanced parallel processor scheduling", SIAM
    J. Comput. 21 (1992), and W. Michiels, J. Korst, E. Aarts, J. van Leeuwen, "Performance ratios for the
    differencing method applied to the balanced number partitioning problem", STACS 2003.
    """

    def assign(self, problem: PlanProblem) -> Assignment:
        """Return the balanced placement; needs are not looked at."""
        weights, num_ranks = problem.weights.tolist(), problem.num_ranks
        order = sorted(range(len(weights)), key=lambda chunk: (-weights[chunk], chunk))
        groups: list[tuple[int, int, list[tuple[int, list[int]]]]] = []
        for age, first in enumerate(range(0, len(order), num_ranks)):
            stacks = [(weights[chunk], [chunk]) for chunk in order[first : first + num_ranks]]
            stacks += [(0, []) for _ in range(num_ranks - len(stacks))]
            groups.append((stacks[-1][0] - stacks[0][0], age, stacks))
        age = len(groups)
        heapq.heapify(groups)
        while len(groups) > 1:
            (_, _, first_stacks), (_, _, second_stacks) = heapq.heappop(groups), heapq.heappop(groups)
            merged = [
                (heavy + light, [*above, *below])
                for (heavy, above), (light, below) in zip(first_stacks, reversed(second_stacks), strict=True)
            ]
            merged.sort(key=lambda stack: -stack[0])
            heapq.heappush(groups, (merged[-1][0] - merged[0][0], age, merged))
            age += 1
        return Assignment(
            chunks_by_rank=[sorted(chunks) for _, chunks in groups[0][2]],
            moves=len(weights) * 2,
        )
