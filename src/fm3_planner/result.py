"""A plan that explains itself: partition, status, figures, bounds and what it took."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from fm3_core.cluster import Cluster
from fm3_core.mask import ColumnMask
from fm3_core.partition import Partition
from fm3_planner.bounds import Bound, Bounds
from fm3_planner.cost import PlanCost
from fm3_planner.goal import Figure, Goal, Stop


class Status(Enum):
    """How good a plan is known to be; the value is the sentence that says it."""

    OPTIMAL = "optimal: the compute load equals its lower bound, so no plan has a smaller one"
    FEASIBLE = "feasible: the plan keeps every rule; its compute load is above the lower bound"
    PROVED = "proved: no plan is better by the figures that were asked for, taken in their order"
    WORK_LIMIT = (
        "stopped at a work limit: the plan keeps every rule, its goals say how far it may be from the best; "
        "the same limit gives the same plan again"
    )
    CLOCK = (
        "stopped by the clock: the plan keeps every rule, its goals say how far it may be from the best; "
        "another run may give another plan, so plan once and share the result"
    )

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
        goals: what an exact planner reached and proved, figure after figure; () for a heuristic.
    """

    partition: Partition
    status: Status
    cost: PlanCost
    bounds: Bounds
    stats: PlanStats
    cluster: Cluster
    fingerprint: str
    goals: tuple[Goal, ...] = ()

    @property
    def gaps(self) -> Gaps:
        """How far compute and node traffic are above their bounds."""
        return self.gaps_to(self.bounds)

    def gaps_to(self, bounds: Bounds) -> Gaps:
        """Return how far compute and node traffic are above other bounds of the same problem."""
        return Gaps(
            compute=_gap(self.cost.compute, bounds.compute),
            node_traffic=_gap(self.cost.node_traffic, bounds.node_traffic),
        )

    def explain(self) -> str:
        """Return a few plain lines: what the plan costs, what is known of the best, and what it took."""
        return explanation(self)

    def was_made_for(self, mask: ColumnMask) -> bool:
        """Say whether `mask` is the mask, or one of the masks, that the plan was made for."""
        return mask.fingerprint in self.fingerprint.split("+")


def status_of(cost: PlanCost, bounds: Bounds, goals: tuple[Goal, ...] = ()) -> Status:
    """Return what the figures and the goals of an exact search prove about a plan."""
    open_goals = [goal for goal in goals if not goal.is_proved]
    if any(goal.stop is Stop.CLOCK for goal in open_goals):
        return Status.CLOCK
    if open_goals:
        return Status.WORK_LIMIT
    if any(goal.figure is not Figure.COMPUTE for goal in goals):
        return Status.PROVED
    return Status.OPTIMAL if cost.compute == bounds.compute.value else Status.FEASIBLE


def _gap(figure: int, bound: Bound) -> float:
    if figure == bound.value:
        return 0.0
    return (figure - bound.value) / bound.value if bound.value else float("inf")


def explanation(result: PlanResult) -> str:
    """Return a plan in a few plain lines."""
    cost, bounds, gaps, stats = result.cost, result.bounds, result.gaps, result.stats
    counts = [len(chunks) for chunks in result.partition.chunks_by_rank]
    per_rank = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} or {max(counts)}"
    heaviest = max(range(len(cost.loads)), key=lambda rank: (cost.loads[rank], -rank))
    lines = [
        f"{stats.planner} placed {result.partition.num_chunks} chunks of {result.partition.chunk_size} "
        f"tokens on {result.cluster.num_ranks} ranks in {_plural(result.cluster.num_nodes, 'node')}, "
        f"{per_rank} chunks a rank.",
        f"Compute: the slowest rank has {cost.compute} (rank {heaviest} is the heaviest), "
        f"{_above(gaps.compute)} {bounds.compute.value} ({bounds.compute.reason}).",
        f"Between nodes: {cost.node_traffic} bytes, {_above(gaps.node_traffic)} {bounds.node_traffic.value} "
        f"({bounds.node_traffic.reason}).",
        f"Between ranks: {cost.rank_traffic} bytes; the largest receive buffer has {cost.buffer_bytes}.",
        f"Status: {result.status}.",
        *(f"Goal {index}: {goal}." for index, goal in enumerate(result.goals, start=1)),
        f"Planning took {1000 * stats.planning_seconds:.3g} ms and {_plural(stats.moves, 'move')}.",
    ]
    return "\n".join(lines)


def _above(gap: float) -> str:
    if gap == 0:
        return "which is the lower bound"
    if gap == float("inf"):
        return "where the lower bound is"
    return f"{gap:.2%} above the lower bound"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
