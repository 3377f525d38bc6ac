"""From a problem and a planner to a checked result."""

from __future__ import annotations

import time

from fm3_core.errors import PlanError
from fm3_planner.base import Planner, accept
from fm3_planner.bounds import Bounds, lower_bounds
from fm3_planner.cost import PlanCost, plan_cost
from fm3_planner.goal import Goal
from fm3_planner.problem import PlanProblem
from fm3_planner.registry import planners
from fm3_planner.result import PlanResult, PlanStats, status_of

DEFAULT_PLANNER = "hcc_ipo"


def plan(problem: PlanProblem, planner: str | Planner = DEFAULT_PLANNER) -> PlanResult:
    """Place the problem's chunks on its ranks.

    The planner only says who owns what; its answer is checked here, and every figure is computed here.

    Args:
        problem: what is to be placed, and on what.
        planner: a registered name, or an object with `assign(problem)`.

    Returns:
        The plan with its figures, bounds and status.

    Raises:
        UnknownNameError: no planner has that name; the message lists those that exist.
        PlanError: the planner's answer breaks a rule (see `Planner`), or the planner refuses the problem.
    """
    if not isinstance(problem, PlanProblem):
        raise PlanError(f"problem must be a PlanProblem, got {type(problem).__name__}")
    name, solver = _resolve(planner)
    started = time.perf_counter()
    answer = solver.assign(problem)
    planning_seconds = time.perf_counter() - started
    partition, details = accept(problem, answer, name)
    cost, bounds = plan_cost(problem, partition), lower_bounds(problem)
    proved = details.compute_bound
    if proved is not None and proved.value > cost.compute:
        raise PlanError(
            f"planner {name!r}: its compute_bound says that no plan has a load below {proved.value}, "
            f"but its own plan has {cost.compute}"
        )
    _refuse_unkept_goals(name, details.goals, cost)
    if proved is not None and proved.value > bounds.compute.value:
        bounds = Bounds(compute=proved, node_traffic=bounds.node_traffic)
    return PlanResult(
        partition=partition,
        status=status_of(cost, bounds, details.goals),
        cost=cost,
        bounds=bounds,
        stats=PlanStats(planner=name, moves=int(details.moves), planning_seconds=planning_seconds),
        cluster=problem.cluster,
        fingerprint=problem.fingerprint,
        goals=details.goals,
    )


def _refuse_unkept_goals(planner: str, goals: tuple[Goal, ...], cost: PlanCost) -> None:
    """Refuse a plan that does not have what its goals say that it has."""
    for index, goal in enumerate(goals):
        figure = getattr(cost, goal.figure.value)
        if figure > goal.allowed:
            raise PlanError(
                f"planner {planner!r}: goals[{index}] allows a {goal.figure.value} of {goal.allowed}, "
                f"but its plan has {figure}"
            )
        if index == len(goals) - 1 and figure != goal.value:
            raise PlanError(
                f"planner {planner!r}: goals[{index}] says a {goal.figure.value} of {goal.value}, "
                f"but its plan has {figure}"
            )


def _resolve(planner: str | Planner) -> tuple[str, Planner]:
    """Return a planner's name and the object."""
    if isinstance(planner, str):
        name, thing = planner, planners.get(planner)
        solver = thing() if isinstance(thing, type) or not hasattr(thing, "assign") else thing
    else:
        name, solver = type(planner).__name__, planner
    if isinstance(solver, type) or not callable(getattr(solver, "assign", None)):
        raise PlanError(f"planner must be a name or an object with assign(problem), got {planner!r}")
    return name, solver
