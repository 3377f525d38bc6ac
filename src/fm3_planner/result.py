"""A plan that explains itself: partition, status, figures, bounds and what it took."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from fm3_core.cluster import Cluster
from fm3_core.mask import ColumnMask
from fm3_core.partition import Partition
from fm3_planner.bounds import Bound, Bounds
from fm3_planner.cost import PlanCost


class Status(Enum):
    """How good a plan is known to be; the value is the sentence that says it."""

    OPTIMAL = "optimal: the compute load equals its lower bound, so no plan has a smaller one"
    FEASIBLE = "feasible: the plan keeps every rule; its compute load is above the lower bound"

    def __str__(self) -> str:
        """Return the sentence."""
        return self.value


@dataclass(frozen=True, kw_only=True)
class Gaps:
    """How far figures are above their lower bounds, (figure - bound) / bound; for reports only.

    Attributes:
        compute: of T; 0.0 where both are equal.
        node_traffic: of N; infinite where the bound is 0 and something crosses.
    """

    compute: float
    node_traffic: float


@dataclass(frozen=True, kw_only=True)
class PlanStats:
    """What planning took.

    Attributes:
        planner: the name that the planner was asked by, or its class.
        moves: placements or exchanges that it tried.
        planning_seconds: wall clock of `assign`; two results are equal whatever it is.
    """

    planner: str
    moves: int
    planning_seconds: float = field(compare=False)


@dataclass(frozen=True, kw_only=True)
class PlanResult:
    """A checked plan.

    Attributes:
        partition: who owns which chunk, ascending in each rank.
        status: how good the plan is known to be.
        cost: exact figures of the plan.
        bounds: what no plan of this problem can go below.
        stats: planner, moves and time.
        cluster: the ranks and nodes that it was made for.
        fingerprint: of the mask that it was made for, as in the problem.
    """

    partition: Partition
    status: Status
    cost: PlanCost
    bounds: Bounds
    stats: PlanStats
    cluster: Cluster
    fingerprint: str

    @property
    def gaps(self) -> Gaps:
        """How far compute and node traffic are above their bounds."""
        return Gaps(
            compute=_gap(self.cost.compute, self.bounds.compute),
            node_traffic=_gap(self.cost.node_traffic, self.bounds.node_traffic),
        )

    def was_made_for(self, mask: ColumnMask) -> bool:
        """Say whether `mask` is the mask, or one of the masks, that the plan was made for."""
        return mask.fingerprint in self.fingerprint.split("+")


def status_of(cost: PlanCost, bounds: Bounds) -> Status:
    """Return what the figures prove about a plan."""
    return Status.OPTIMAL if cost.compute == bounds.compute.value else Status.FEASIBLE


def _gap(figure: int, bound: Bound) -> float:
    if figure == bound.value:
        return 0.0
    return (figure - bound.value) / bound.value if bound.value else float("inf")
