"""What exact planners share: figure after figure, each solved under what the earlier ones allow."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction

import numpy as np

from fm3_core.cluster import Cluster
from fm3_core.errors import PlanError, UnknownNameError
from fm3_core.partition import Partition
from fm3_planner.base import Assignment, Planner, accept
from fm3_planner.bounds import Bound, lower_bounds
from fm3_planner.contiguous import Contiguous
from fm3_planner.cost import PlanCost, plan_cost
from fm3_planner.exact.balance import Balance
from fm3_planner.exact.model import Formulation, first_labels
from fm3_planner.exact.solver import Found, Solver
from fm3_planner.goal import NO_SOLVER, Figure, Goal, Stop
from fm3_planner.hcc_ipo import MOST_EPSILON, HccIpo
from fm3_planner.problem import PlanProblem

Owner = list[int]
_SHARE_OF_PATTERNS = 0.5  # of the limit of the load's goal; measured on planbench


class Objective(Enum):
    """What an exact planner makes small, figure after figure."""

    COMPUTE = "compute"
    NODE_TRAFFIC = "node_traffic"
    COMPUTE_THEN_NODE_TRAFFIC = "compute_then_node_traffic"
    NODE_THEN_RANK_TRAFFIC = "node_then_rank_traffic"

    @classmethod
    def of(cls, objective: Objective | str) -> Objective:
        """Return the objective of that name; an unknown one is an error that lists the known ones."""
        try:
            return cls(objective)
        except ValueError:
            known = ", ".join(sorted(member.value for member in cls))
            raise UnknownNameError(f"unknown objective {objective!r}; known: {known}") from None

    @property
    def figures(self) -> tuple[Figure, ...]:
        """The figures, in their order; compute comes first in all."""
        return {
            Objective.COMPUTE: (Figure.COMPUTE,),
            Objective.NODE_TRAFFIC: (Figure.COMPUTE, Figure.NODE_TRAFFIC),
            Objective.COMPUTE_THEN_NODE_TRAFFIC: (Figure.COMPUTE, Figure.NODE_TRAFFIC),
            Objective.NODE_THEN_RANK_TRAFFIC: (Figure.COMPUTE, Figure.NODE_TRAFFIC, Figure.RANK_TRAFFIC),
        }[self]


@dataclass(kw_only=True)
class Search:
    """The goals of one exact plan.

    Args:
        problem: what is to be placed.
        solver: what solves each goal.
        epsilon: share of the least load that traffic may cost, >= 0.
        max_compute: the largest load allowed, in place of a search for the least; None searches.
        max_buffer_bytes: the most bytes that a rank may receive, None for no limit.
    """

    problem: PlanProblem
    solver: Solver
    epsilon: float
    max_compute: int | None
    max_buffer_bytes: int | None

    def run(self, objective: Objective, start: Planner) -> Assignment:
        """Solve the figures of `objective` in their order, from the plan of `start`; return the last plan.

        Raises:
            PlanError: the solver found no plan with small enough buffers, or numbers are too large for it.
        """
        problem, units = _in_units(self.problem)
        limit = None if self.max_buffer_bytes is None else self.max_buffer_bytes // units[Figure.NODE_TRAFFIC]
        figures = objective.figures
        allowed: dict[Figure, int] = {}
        if self.max_compute is not None:
            figures = figures[1:]
            allowed[Figure.COMPUTE] = self.max_compute // units[Figure.COMPUTE]
        owner = _first_that_keeps(problem, [start, Contiguous()], allowed, limit)
        goals: list[Goal] = []
        work = 0
        for figure in figures:
            owner, goal, tried = self._goal(problem, figure, owner, allowed, limit, start)
            work += tried
            if figure is Figure.COMPUTE and len(figures) > 1:
                slack = 0.0 if objective is Objective.COMPUTE_THEN_NODE_TRAFFIC else self.epsilon
                most = with_slack(goal.value * units[figure], slack) // units[figure]
                goal = replace(goal, allowed=most)
            allowed[figure] = goal.allowed
            goals.append(_scaled(goal, units[figure]))
        assert owner is not None
        proof = goals[0] if goals[0].figure is Figure.COMPUTE and limit is None else None
        return Assignment(
            chunks_by_rank=_chunks_by_rank(problem, owner),
            moves=work,
            compute_bound=Bound(proof.bound, f"solver: {proof.solver} {proof.stop}") if proof else None,
            goals=tuple(goals),
        )

    def _goal(
        self,
        problem: PlanProblem,
        figure: Figure,
        owner: Owner | None,
        allowed: dict[Figure, int],
        limit: int | None,
        start: Planner,
    ) -> tuple[Owner, Goal, int]:
        """Solve one figure; return the best plan known, what is known of it, and the work that it took."""
        if figure is Figure.COMPUTE:
            # Loads do not depend on who shares a node: all ranks are interchangeable.
            problem = replace(problem, cluster=Cluster(problem.num_ranks))
        elif owner is not None:
            owner = _least(problem, figure, [owner, *_plans_of_little_traffic(problem, allowed, limit)])
        least = _known_bound(problem, figure)
        value = None if owner is None else getattr(_cost(problem, owner), figure.value)
        if value is not None and value == least:
            assert owner is not None
            stop = Goal(
                figure=figure, value=value, bound=least, allowed=value, stop=Stop.PROVED, solver=NO_SOLVER
            )
            return owner, stop, 0
        self._refuse_large(problem)
        spent, work = 0.0, 0
        if figure is Figure.COMPUTE and owner is not None and value is not None and self._is_plain(limit):
            balance = Balance(problem=problem, solver=self.solver, least=least, value=value)
            balance.narrow(_SHARE_OF_PATTERNS)
            owner = owner if balance.owner is None else balance.owner
            least, value, spent, work = balance.least, balance.value, balance.spent, balance.work
        reason = Stop.PROVED
        if value is None or least < value:
            guess = owner if owner is not None else _start(problem, start)
            formulation = Formulation(
                problem, first_labels(problem, guess), allowed=allowed, max_buffer_bytes=limit
            )
            found = self.solver.solve(formulation.minimise(figure, least), 1.0 - spent)
            owner = self._better(problem, figure, owner, found, formulation, allowed, limit)
            value = getattr(_cost(problem, owner), figure.value)
            least = min(value, max(least, found.bound))
            # A float solver may end without a proof that holds in integers.
            reason = Stop.WORK_LIMIT if found.stop is Stop.PROVED and least < value else found.stop
            work += found.work
        assert owner is not None
        goal = Goal(
            figure=figure, value=value, bound=least, allowed=value, stop=reason, solver=self.solver.name
        )
        return owner, goal, work

    def _is_plain(self, limit: int | None) -> bool:
        """Say whether only the largest load counts."""
        return limit is None and self.problem.weights_by_group is None

    def _better(
        self,
        problem: PlanProblem,
        figure: Figure,
        owner: Owner | None,
        found: Found,
        formulation: Formulation,
        allowed: dict[Figure, int],
        limit: int | None,
    ) -> Owner:
        """Return the better of the plan known and the plan found, both judged in integers."""
        candidates = [] if owner is None else [owner]
        if found.values is not None:
            new = formulation.owners(list(found.values))
            if _has_equal_counts(problem, new) and _keeps(problem, new, allowed, limit):
                candidates.append(new)
        if not candidates:
            rules = " and ".join(
                f"{what} of at most {most}{unit}"
                for what, most, unit in (
                    ("a load", self.max_compute, ""),
                    ("buffers", self.max_buffer_bytes, " bytes"),
                )
                if most is not None
            )
            raise PlanError(
                f"no plan has {rules}"
                if found.stop is Stop.PROVED
                else f"{self.solver.name} found no plan with {rules} within its limit"
            )
        return _least(problem, figure, candidates)

    def _refuse_large(self, problem: PlanProblem) -> None:
        """Refuse sums that the solver's arithmetic does not hold."""
        most = self.solver.max_total
        for name, total in (
            ("weights", sum(problem.weights.tolist())),
            ("chunk_bytes over all ranks", sum(problem.chunk_bytes.tolist()) * problem.num_ranks),
        ):
            if total > most:
                raise PlanError(
                    f"{name} sum to {total}, divided by what they have in common; {self.solver.name} is "
                    f"exact up to {most}: use smaller numbers"
                )


def with_slack(value: int, epsilon: float) -> int:
    """Return floor((1 + epsilon) value); epsilon is the decimal that is written, not its binary neighbour."""
    return math.floor((1 + Fraction(str(float(epsilon)))) * value)


def _in_units(problem: PlanProblem) -> tuple[PlanProblem, dict[Figure, int]]:
    """Divide weights and bytes by what they have in common; return the problem and the units by figure."""
    unit = math.gcd(*problem.groups.ravel().tolist()) or 1
    unit_bytes = math.gcd(*problem.chunk_bytes.tolist()) or 1
    groups = None if problem.weights_by_group is None else problem.weights_by_group // unit
    reduced = replace(
        problem,
        weights=problem.weights // unit,
        chunk_bytes=problem.chunk_bytes // unit_bytes,
        weights_by_group=groups,
    )
    return reduced, {
        Figure.COMPUTE: unit,
        Figure.NODE_TRAFFIC: unit_bytes,
        Figure.RANK_TRAFFIC: unit_bytes,
    }


def _scaled(goal: Goal, unit: int) -> Goal:
    return replace(goal, value=goal.value * unit, bound=goal.bound * unit, allowed=goal.allowed * unit)


def _start(problem: PlanProblem, start: Planner) -> Owner:
    partition, _ = accept(problem, start.assign(problem), type(start).__name__)
    owner: Owner = partition.owner.tolist()
    return owner


def _first_that_keeps(
    problem: PlanProblem, starts: list[Planner], allowed: dict[Figure, int], limit: int | None
) -> Owner | None:
    """Return the first of the planners' plans that keeps every limit, None where none does."""
    owners = (_start(problem, start) for start in starts)
    return next((owner for owner in owners if _keeps(problem, owner, allowed, limit)), None)


def _plans_of_little_traffic(
    problem: PlanProblem, allowed: dict[Figure, int], limit: int | None
) -> list[Owner]:
    """Return those plans of heuristics for traffic that keep every limit."""
    least = max(1, lower_bounds(problem).compute.value)
    slack = Fraction(allowed[Figure.COMPUTE] - least, least)
    shares = (slack, slack / 2, Fraction(0))
    heuristics: list[Planner] = [
        Contiguous(),
        *(HccIpo(epsilon=float(min(max(share, Fraction(0)), Fraction(MOST_EPSILON)))) for share in shares),
    ]
    owners = (_start(problem, heuristic) for heuristic in heuristics)
    return [owner for owner in owners if _keeps(problem, owner, allowed, limit)]


def _known_bound(problem: PlanProblem, figure: Figure) -> int:
    if figure is Figure.COMPUTE:
        return lower_bounds(problem).compute.value
    cluster = problem.cluster if figure is Figure.NODE_TRAFFIC else Cluster(problem.num_ranks, 1)
    return lower_bounds(replace(problem, cluster=cluster)).node_traffic.value


def _least(problem: PlanProblem, figure: Figure, candidates: list[Owner]) -> Owner:
    """Return the first candidate with the least of the figure, then of the load."""
    costs = [_cost(problem, owner) for owner in candidates]
    best = min(
        range(len(candidates)),
        key=lambda index: (getattr(costs[index], figure.value), costs[index].compute, index),
    )
    return candidates[best]


def _keeps(problem: PlanProblem, owner: Owner, allowed: dict[Figure, int], limit: int | None) -> bool:
    cost = _cost(problem, owner)
    return all(getattr(cost, figure.value) <= most for figure, most in allowed.items()) and (
        limit is None or cost.buffer_bytes <= limit
    )


def _has_equal_counts(problem: PlanProblem, owner: Owner) -> bool:
    counts = np.bincount(owner, minlength=problem.num_ranks)
    return int(counts.max()) - int(counts.min()) <= 1


def _cost(problem: PlanProblem, owner: Owner) -> PlanCost:
    return plan_cost(
        problem, Partition(problem.num_tokens, problem.chunk_size, _chunks_by_rank(problem, owner))
    )


def _chunks_by_rank(problem: PlanProblem, owner: Owner) -> tuple[tuple[int, ...], ...]:
    chunks: list[list[int]] = [[] for _ in range(problem.num_ranks)]
    for chunk, rank in enumerate(owner):
        chunks[rank].append(chunk)
    return tuple(tuple(of_rank) for of_rank in chunks)
