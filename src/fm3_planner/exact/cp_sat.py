"""Exact plans by constraint programming: OR-Tools' CP-SAT with one worker, which repeats itself."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from typing import Any, ClassVar

from fm3_core.errors import PlanError
from fm3_planner.base import Assignment, Planner, require_planner
from fm3_planner.exact.model import Model
from fm3_planner.exact.options import check_options, refuse_many_chunks
from fm3_planner.exact.search import Objective, Search
from fm3_planner.exact.solver import Found
from fm3_planner.goal import Stop
from fm3_planner.ipo import Ipo
from fm3_planner.problem import PlanProblem


@dataclass(frozen=True, kw_only=True)
class CpSat:
    """The best plan by the figures of `objective`, with a proof or with a bound.

    One worker and a limit in deterministic time, which counts the solver's work: the same problem, limit and
    version of OR-Tools give the same plan, on a slow machine too.

    Attributes:
        objective: which figures, in which order; an `Objective` or its name.
        epsilon: share of the least load that may be spent on less traffic, >= 0; 0.02 is 2 %.
        max_work: deterministic seconds of each figure; about one second each on a machine of 2024.
        max_compute: the largest load that a plan may have, in place of searching the least and adding
            epsilon; None searches. Not for the objective "compute".
        max_buffer_bytes: the most bytes that a rank may receive, None for no limit.
        start: planner whose plan the search starts from and never falls behind.

    Raises:
        PlanError: an option breaks its rule.
        UnknownNameError: no objective has that name.
    """

    max_chunks: ClassVar[int] = 128

    objective: Objective | str = Objective.COMPUTE
    epsilon: float = 0.0
    max_work: float = 10.0
    max_compute: int | None = None
    max_buffer_bytes: int | None = None
    start: Planner = field(default_factory=Ipo)

    def __post_init__(self) -> None:
        """Validate every option."""
        object.__setattr__(self, "objective", Objective.of(self.objective))
        check_options(
            self.objective, self.epsilon, self.max_compute, self.max_buffer_bytes, max_work=self.max_work
        )
        require_planner("CpSat.start", self.start)

    def assign(self, problem: PlanProblem) -> Assignment:
        """Return the best plan found, with what was proved.

        Raises:
            PlanError: the problem has too many chunks or too large numbers, OR-Tools is not installed, or no
                plan within `max_compute` and `max_buffer_bytes` was found.
        """
        refuse_many_chunks("cp_sat", self.max_chunks, problem)
        search = Search(
            problem=problem,
            solver=_Solver(max_work=float(self.max_work)),
            epsilon=self.epsilon,
            max_compute=self.max_compute,
            max_buffer_bytes=self.max_buffer_bytes,
        )
        return search.run(Objective.of(self.objective), self.start)


@dataclass(frozen=True, kw_only=True)
class _Solver:
    """CP-SAT as a solver of models."""

    max_work: float
    max_total: int = 2**60

    @cached_property
    def name(self) -> str:
        return f"CP-SAT {version('ortools')}"

    def solve(self, model: Model, share: float) -> Found:
        cp_model = _load()
        program = cp_model.CpModel()
        variables = [
            program.new_int_var(lower, upper, "")
            for lower, upper in zip(model.lower, model.upper, strict=True)
        ]

        def form(terms: list[tuple[int, int]]) -> Any:
            return cp_model.LinearExpr.weighted_sum(
                [variables[variable] for _, variable in terms], [coefficient for coefficient, _ in terms]
            )

        for row in model.rows:
            expression = form(row.terms)
            if row.lower is not None and row.lower == row.upper:
                program.add(expression == row.lower)
                continue
            if row.lower is not None:
                program.add(expression >= row.lower)
            if row.upper is not None:
                program.add(expression <= row.upper)
        solver = cp_model.CpSolver()
        if model.objective:
            program.minimize(form(model.objective))
        for variable, value in zip(variables, model.hint, strict=True):
            program.add_hint(variable, value)

        # Choices of patterns are set partitions, where linear relaxations decide most.
        solver.parameters.linearization_level = 1 if model.objective else 2
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        solver.parameters.max_deterministic_time = max(share, 1e-3) * self.max_work
        solver.parameters.relative_gap_limit = 0.0
        solver.parameters.absolute_gap_limit = 0.0
        status = solver.solve(program)
        has_point = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
        if status == cp_model.MODEL_INVALID:
            raise PlanError(f"{self.name} refuses the model: {program.validate()}")
        bound = solver.best_objective_bound if has_point or status == cp_model.UNKNOWN else 0.0
        return Found(
            values=[solver.value(variable) for variable in variables] if has_point else None,
            bound=_rounded_up(bound) + model.objective_constant,
            stop=Stop.PROVED if status in (cp_model.OPTIMAL, cp_model.INFEASIBLE) else Stop.WORK_LIMIT,
            spent=solver.response_proto.deterministic_time / self.max_work,
            work=solver.num_branches,
        )


def _rounded_up(bound: float) -> int:
    """Return the integer bound that CP-SAT proved; it is reported as a float, and rounded beyond 2^52."""
    if not math.isfinite(bound):
        return 0
    return math.floor(bound * (1 - 2**-50)) if bound > 2**52 else math.ceil(bound - 1e-6)


def _load() -> Any:
    try:
        from ortools.sat.python import cp_model
    except ImportError as missing:
        raise PlanError(
            f"planner cp_sat needs the package ortools, which cannot be imported ({missing}): "
            f"pip install ortools"
        ) from missing
    return cp_model
