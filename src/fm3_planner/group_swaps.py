"""Compute balance for layers that wait for each other: the sum of the groups' largest loads is made small."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fm3_core.check import require_int
from fm3_core.errors import PlanError
from fm3_planner.base import Assignment, Planner, accept, require_planner
from fm3_planner.bounds import compute_bound
from fm3_planner.ipo import Ipo
from fm3_planner.problem import PlanProblem

MAX_SWAPS = 256


@dataclass(frozen=True, kw_only=True)
class GroupSwaps:
    """Starts from a plan and takes the best swap of two chunks, as long as one lowers the compute load.

    For problems with `weights_by_group`, where balancing the sums leaves single groups out of balance; it
    works on any. Of equally good swaps the one with the smallest chunk numbers is taken. Needs are not looked
    at.

    Attributes:
        start: the planner that it starts from.
        max_swaps: swaps that it takes at most.

    Raises:
        PlanError: `max_swaps` is not an integer >= 0.
    """

    start: Planner = field(default_factory=Ipo)
    max_swaps: int = MAX_SWAPS

    def __post_init__(self) -> None:
        """Validate the limit."""
        require_int("max_swaps", self.max_swaps, error=PlanError)
        require_planner("GroupSwaps.start", self.start)

    def assign(self, problem: PlanProblem) -> Assignment:
        """Return the placement when no swap helps any more, or the limit is reached."""
        partition, answer = accept(problem, self.start.assign(problem), type(self.start).__name__)
        owner = partition.owner.copy()
        target = compute_bound(problem).value
        moves, groups = answer.moves, problem.groups
        loads = np.zeros((len(groups), problem.num_ranks), dtype=np.int64)
        for group, weights in enumerate(groups):
            np.add.at(loads[group], owner, weights)
        for _ in range(self.max_swaps):
            value = int(loads.max(axis=1).sum())
            if value <= target:
                break
            # Only chunks of a rank that is the heaviest of some group can lower anything.
            movable = np.flatnonzero(np.isin(owner, loads.argmax(axis=1)))
            after = _loads_after_swaps(groups, owner, loads, movable)
            moves += after.size
            place, other = np.unravel_index(int(after.argmin()), after.shape)
            one = movable[place]
            if int(after[place, other]) >= value:
                break
            change = groups[:, other] - groups[:, one]
            loads[:, owner[one]] += change
            loads[:, owner[other]] -= change
            owner[one], owner[other] = owner[other], owner[one]
        return Assignment(
            chunks_by_rank=[np.flatnonzero(owner == rank).tolist() for rank in range(problem.num_ranks)],
            moves=moves,
        )


def _loads_after_swaps(
    groups: NDArray[np.int64],
    owner: NDArray[np.int64],
    loads: NDArray[np.int64],
    movable: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the sum of the groups' largest loads after each swap, int64 [movable chunks, chunks]."""
    total = np.zeros((len(movable), len(owner)), dtype=np.int64)
    for weights, of_ranks in zip(groups, loads, strict=True):
        gained = weights[None, :] - weights[movable][:, None]
        left = of_ranks[owner[movable]][:, None] + gained
        right = of_ranks[owner][None, :] - gained
        total += np.maximum(np.maximum(left, right), _largest_of_others(owner, of_ranks, movable))
    # Within one rank nothing changes; the sums above are not the rank's there.
    total[owner[movable][:, None] == owner[None, :]] = loads.max(axis=1).sum()
    return total


def _largest_of_others(
    owner: NDArray[np.int64], of_ranks: NDArray[np.int64], movable: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the largest load of ranks that own neither of two chunks, 0 where there is no such rank."""
    heaviest = np.argsort(-of_ranks, kind="stable")[:3]
    largest = np.zeros((len(movable), len(owner)), dtype=np.int64)
    for rank in heaviest[::-1]:
        is_owner = owner == rank
        touches = is_owner[movable][:, None] | is_owner[None, :]
        largest = np.where(touches, largest, of_ranks[rank])
    return largest
