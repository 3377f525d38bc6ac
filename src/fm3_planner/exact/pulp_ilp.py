"""Exact plans by integer programming: PuLP with the CBC that ships with it, or with HiGHS where installed."""

from __future__ import annotations

import math
import re
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar

from fm3_core.check import require_int
from fm3_core.errors import PlanError, UnknownNameError
from fm3_planner.base import Assignment, Planner, require_planner
from fm3_planner.exact.model import Model
from fm3_planner.exact.options import check_options, refuse_many_chunks
from fm3_planner.exact.search import Objective, Search
from fm3_planner.exact.solver import Found
from fm3_planner.goal import Stop
from fm3_planner.ipo import Ipo
from fm3_planner.problem import PlanProblem

SOLVERS = ("cbc", "highs")


@dataclass(frozen=True, kw_only=True)
class Ilp:
    """The best plan by the figures of `objective`, with a proof or with a bound.

    The solver counts in floats: its plans are judged anew in integers, and its bounds are taken down by what
    its tolerance may hide, so that nothing is called proved that is not. A search that `max_nodes` ends gives
    the same plan again; one that `max_seconds` ends may not, and its status says so.

    Attributes:
        objective: which figures, in which order; an `Objective` or its name.
        epsilon: share of the least load that may be spent on less traffic, >= 0; 0.02 is 2 %.
        max_nodes: branch-and-bound nodes of each figure.
        max_seconds: wall clock of each figure, for the work that nodes do not count.
        max_compute: the largest load that a plan may have, in place of searching the least and adding
            epsilon; None searches. Not for the objective "compute".
        max_buffer_bytes: the most bytes that a rank may receive, None for no limit.
        solver: "cbc", or "highs" where the package highspy is installed.
        start: planner whose plan the search starts from and never falls behind.

    Raises:
        PlanError: an option breaks its rule.
        UnknownNameError: no objective or solver has that name.
    """

    max_chunks: ClassVar[int] = 128

    objective: Objective | str = Objective.COMPUTE
    epsilon: float = 0.0
    max_nodes: int = 2000
    max_seconds: float = 60.0
    max_compute: int | None = None
    max_buffer_bytes: int | None = None
    solver: str = "cbc"
    start: Planner = field(default_factory=Ipo)

    def __post_init__(self) -> None:
        """Validate every option."""
        object.__setattr__(self, "objective", Objective.of(self.objective))
        check_options(
            self.objective,
            self.epsilon,
            self.max_compute,
            self.max_buffer_bytes,
            max_seconds=self.max_seconds,
        )
        require_planner("Ilp.start", self.start)
        require_int("max_nodes", self.max_nodes, minimum=1, error=PlanError)
        if self.solver not in SOLVERS:
            raise UnknownNameError(f"unknown solver {self.solver!r}; known: {', '.join(SOLVERS)}")

    def assign(self, problem: PlanProblem) -> Assignment:
        """Return the best plan found, with what was proved.

        Raises:
            PlanError: the problem has too many chunks or too large numbers, a package is not installed, or no
                plan within `max_compute` and `max_buffer_bytes` was found.
        """
        refuse_many_chunks("ilp", self.max_chunks, problem)
        make = _Cbc if self.solver == "cbc" else _Highs
        search = Search(
            problem=problem,
            solver=make(max_nodes=self.max_nodes, max_seconds=float(self.max_seconds)),
            epsilon=self.epsilon,
            max_compute=self.max_compute,
            max_buffer_bytes=self.max_buffer_bytes,
        )
        return search.run(Objective.of(self.objective), self.start)


@dataclass(frozen=True, kw_only=True)
class _Cbc:
    """CBC as a solver of models: a program of its own, which reports its bound only in its log."""

    max_nodes: int
    max_seconds: float
    max_total: int = 10**11  # PuLP writes 12 digits

    @cached_property
    def name(self) -> str:
        return f"CBC of PuLP {version('pulp')}"

    def solve(self, model: Model, share: float) -> Found:
        pulp = _load_pulp()
        program, variables = _program(pulp, model)
        max_nodes = max(1, int(share * self.max_nodes))
        with tempfile.TemporaryDirectory(prefix="fm3_cbc_") as folder:
            log = Path(folder) / "cbc.log"
            solver = pulp.COIN_CMD(
                path=_cbc_path(pulp),
                msg=False,
                timeLimit=self.max_seconds,
                gapRel=0.0,
                gapAbs=0.0,
                threads=1,
                maxNodes=max_nodes,
                logPath=str(log),
            )
            solver.tmpDir = folder
            try:
                program.solve(solver)
            except pulp.PulpSolverError as failure:
                raise PlanError(f"planner ilp: CBC cannot be run here: {failure}") from failure
            text = log.read_text(encoding="utf-8", errors="replace")
        has_point = program.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)
        is_infeasible = program.status == pulp.LpStatusInfeasible
        nodes = int(_number(r"^Enumerated nodes:\s+(\d+)", text) or 0)
        if program.sol_status == pulp.LpSolutionOptimal or is_infeasible:
            stop = Stop.PROVED
        else:
            stop = Stop.WORK_LIMIT if "Stopped on node limit" in text else Stop.CLOCK
        values = [round(variable.value()) for variable in variables] if has_point else None
        bound: float | None = 0.0
        if model.objective and not is_infeasible:
            bound = (
                float(pulp.value(program.objective))
                if stop is Stop.PROVED
                else _number(r"^Lower bound:\s+(\S+)", text)
            )
        return Found(
            values=values,
            bound=_safe_bound(bound, model),
            stop=stop,
            spent=min(1.0, nodes / self.max_nodes),
            work=nodes,
        )


@dataclass(frozen=True, kw_only=True)
class _Highs:
    """HiGHS as a solver of models, driven by PuLP in this process."""

    max_nodes: int
    max_seconds: float
    max_total: int = 2**50

    @cached_property
    def name(self) -> str:
        return f"HiGHS {_highs_version()}"

    def solve(self, model: Model, share: float) -> Found:
        pulp = _load_pulp()
        _highs_version()
        program, variables = _program(pulp, model)
        solver = pulp.HiGHS(
            msg=False,
            timeLimit=self.max_seconds,
            gapRel=0.0,
            gapAbs=0.0,
            threads=1,
            mip_max_nodes=max(1, int(share * self.max_nodes)),
            random_seed=0,
        )
        # Step by step: PuLP's own reading of the status does not know the one of a node limit.
        solver.createAndConfigureSolver(program)
        solver.buildSolverModel(program)
        solver.callSolver(program)
        highs = program.solverModel
        status = highs.modelStatusToString(highs.getModelStatus())
        info, point = highs.getInfo(), list(highs.getSolution().col_value)
        has_point = info.primal_solution_status == 2  # kSolutionStatusFeasible
        if status in ("Optimal", "Infeasible"):
            stop = Stop.PROVED
        else:
            stop = Stop.CLOCK if status == "Time limit reached" else Stop.WORK_LIMIT
        nodes = max(0, int(info.mip_node_count))
        return Found(
            values=[round(point[variable.index]) for variable in variables] if has_point else None,
            bound=_safe_bound(info.mip_dual_bound if status != "Infeasible" else 0.0, model),
            stop=stop,
            spent=min(1.0, nodes / self.max_nodes),
            work=nodes,
        )


def _program(pulp: Any, model: Model) -> tuple[Any, Sequence[Any]]:
    """Return the model as a PuLP program, and its variables in the model's order."""
    with warnings.catch_warnings():
        # PuLP 3.3 announces the calls of PuLP 4, which earlier ones do not have.
        warnings.simplefilter("ignore", DeprecationWarning)
        return _build(pulp, model)


def _build(pulp: Any, model: Model) -> tuple[Any, Sequence[Any]]:
    program = pulp.LpProblem("fm3", pulp.LpMinimize)
    variables = [
        pulp.LpVariable(f"v{number:06d}", lower, upper, cat=pulp.LpInteger)
        for number, (lower, upper) in enumerate(zip(model.lower, model.upper, strict=True))
    ]
    program.addVariables(variables)

    def form(terms: list[tuple[int, int]]) -> Any:
        return pulp.LpAffineExpression(
            [(variables[variable], coefficient) for coefficient, variable in terms]
        )

    program.setObjective(form(model.objective))
    for row in model.rows:
        if not row.terms:
            continue
        expression = form(row.terms)
        if row.lower is not None and row.lower == row.upper:
            program.addConstraint(expression == row.lower)
            continue
        if row.lower is not None:
            program.addConstraint(expression >= row.lower)
        if row.upper is not None:
            program.addConstraint(expression <= row.upper)
    return program, variables


def _safe_bound(bound: float | None, model: Model) -> int:
    """Return the integer bound that holds though the solver's rows hold to a tolerance only."""
    if bound is None or not math.isfinite(bound):
        return 0
    return math.ceil(bound - 1e-6 * (1 + abs(bound))) + model.objective_constant


def _number(pattern: str, text: str) -> float | None:
    found = re.findall(pattern, text, re.MULTILINE)
    return float(found[-1]) if found else None


def _cbc_path(pulp: Any) -> str | None:
    """Return the CBC that ships with PuLP; later versions of PuLP find it by themselves."""
    shipped = getattr(pulp, "PULP_CBC_CMD", None)
    path: str | None = getattr(shipped, "pulp_cbc_path", None)
    return path


def _load_pulp() -> Any:
    try:
        import pulp
    except ImportError as missing:
        raise PlanError(
            f"planner ilp needs the package pulp, which cannot be imported ({missing}): pip install pulp"
        ) from missing
    return pulp


def _highs_version() -> str:
    try:
        return version("highspy")
    except PackageNotFoundError as missing:
        raise PlanError(
            'planner ilp with solver="highs" needs the package highspy, which is not installed: '
            "pip install highspy"
        ) from missing
