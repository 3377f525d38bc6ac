"""Problems, plans and calibrations as JSON text, versioned; what does not fit is refused with the reason."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fm3_core.cluster import Cluster
from fm3_core.errors import PlanError
from fm3_core.partition import Partition
from fm3_planner.bounds import Bound, Bounds
from fm3_planner.calibrate import Calibration, DirectionFit
from fm3_planner.check import check_plan
from fm3_planner.cost import PlanCost
from fm3_planner.goal import Figure, Goal, Stop
from fm3_planner.problem import PlanProblem
from fm3_planner.result import PlanResult, PlanStats, Status
from fm3_planner.weights import CostWeights

PROBLEM_FORMAT, PLAN_FORMAT, CALIBRATION_FORMAT = "fm3.problem", "fm3.plan", "fm3.calibration"
VERSION = 1


def problem_to_json(problem: PlanProblem) -> str:
    """Return a problem as one line of JSON; rows of needs are hexadecimal, most significant bit first."""
    groups = problem.weights_by_group
    return json.dumps(
        {
            "format": PROBLEM_FORMAT,
            "version": VERSION,
            "cluster": _cluster(problem.cluster),
            "num_tokens": problem.num_tokens,
            "chunk_size": problem.chunk_size,
            "fingerprint": problem.fingerprint,
            "weights": problem.weights.tolist(),
            "weights_by_group": None if groups is None else groups.tolist(),
            "chunk_bytes": problem.chunk_bytes.tolist(),
            "needs": needs_to_hex(problem.needs),
        }
    )


def problem_from_json(text: str) -> PlanProblem:
    """Return the problem of `problem_to_json`.

    Raises:
        PlanError: the text is no JSON, of another format or version, or its fields make no problem.
    """
    fields = _fields(text, PROBLEM_FORMAT)
    try:
        num_chunks = len(fields["weights"])
        return PlanProblem(
            weights=fields["weights"],
            needs=needs_from_hex(fields["needs"], num_chunks),
            chunk_bytes=fields["chunk_bytes"],
            cluster=Cluster(**fields["cluster"]),
            num_tokens=fields["num_tokens"],
            chunk_size=fields["chunk_size"],
            fingerprint=fields["fingerprint"],
            weights_by_group=fields["weights_by_group"],
        )
    except (KeyError, TypeError) as wrong:
        raise _malformed(PROBLEM_FORMAT, wrong) from wrong


def plan_to_json(result: PlanResult) -> str:
    """Return a plan as one line of JSON, with its figures, bounds, goals and what it was made for."""
    partition, cost, bounds = result.partition, result.cost, result.bounds
    return json.dumps(
        {
            "format": PLAN_FORMAT,
            "version": VERSION,
            "cluster": _cluster(result.cluster),
            "num_tokens": partition.num_tokens,
            "chunk_size": partition.chunk_size,
            "fingerprint": result.fingerprint,
            "chunks_by_rank": [list(chunks) for chunks in partition.chunks_by_rank],
            "status": result.status.name,
            "cost": {name: getattr(cost, name) for name in PlanCost.__dataclass_fields__},
            "bounds": {name: getattr(bounds, name)._asdict() for name in Bounds.__dataclass_fields__},
            "goals": [_goal(goal) for goal in result.goals],
            "stats": {name: getattr(result.stats, name) for name in PlanStats.__dataclass_fields__},
        }
    )


def plan_from_json(text: str, problem: PlanProblem | None = None) -> PlanResult:
    """Return the plan of `plan_to_json`.

    Args:
        text: what `plan_to_json` returned.
        problem: the problem that the plan must answer. Where given, a plan of another cluster, mask, length
            or chunk size is refused with every difference, and every figure is derived anew.

    Raises:
        PlanError: the text is no JSON, of another format or version, no plan, or not one of `problem`.
    """
    fields = _fields(text, PLAN_FORMAT)
    try:
        result = _plan(fields)
    except (KeyError, TypeError, AttributeError) as wrong:
        raise _malformed(PLAN_FORMAT, wrong) from wrong
    if problem is not None:
        _refuse_other_problem(result, problem)
        check_plan(problem, result)
    return result


def calibration_to_json(calibration: Calibration) -> str:
    """Return fitted cost weights and their fits as one line of JSON."""
    return json.dumps({"format": CALIBRATION_FORMAT, "version": VERSION} | asdict(calibration))


def calibration_from_json(text: str) -> Calibration:
    """Return the calibration of `calibration_to_json`.

    Raises:
        PlanError: the text is no JSON, of another format or version, or its fields make no calibration.
    """
    fields = _fields(text, CALIBRATION_FORMAT)
    try:
        seconds = fields["seconds_per_unit"]
        if not isinstance(seconds, float) or not 0 < seconds < float("inf"):
            raise PlanError(
                f"{CALIBRATION_FORMAT}: seconds_per_unit must be a finite number > 0, got {seconds!r}"
            )
        backward = fields["backward"]
        return Calibration(
            cost=CostWeights(**fields["cost"]),
            seconds_per_unit=seconds,
            forward=DirectionFit(**fields["forward"]),
            backward=None if backward is None else DirectionFit(**backward),
        )
    except (KeyError, TypeError) as wrong:
        raise _malformed(CALIBRATION_FORMAT, wrong) from wrong


def needs_to_hex(needs: NDArray[np.bool_]) -> list[str]:
    """Return each row of a bool matrix as hexadecimal, most significant bit first, filled up with zeros."""
    return [np.packbits(row).tobytes().hex() for row in needs]


def needs_from_hex(rows: list[str], num_chunks: int) -> NDArray[np.bool_]:
    """Return the bool matrix [rows, num_chunks] of `needs_to_hex`."""
    if len(rows) != num_chunks:
        raise PlanError(f"needs must have {num_chunks} rows, one a chunk, got {len(rows)}")
    width = -(-num_chunks // 8)
    needs = np.empty((num_chunks, num_chunks), dtype=np.bool_)
    for index, row in enumerate(rows):
        try:
            packed = np.frombuffer(bytes.fromhex(row), dtype=np.uint8)
        except (TypeError, ValueError):
            raise PlanError(f"needs[{index}] must be hexadecimal, got {row!r}") from None
        if len(packed) != width:
            raise PlanError(
                f"needs[{index}] must have {width} bytes for {num_chunks} chunks, got {len(packed)}"
            )
        needs[index] = np.unpackbits(packed)[:num_chunks]
    return needs


def _plan(fields: dict[str, Any]) -> PlanResult:
    cost = {name: _frozen(value) for name, value in fields["cost"].items()}
    return PlanResult(
        partition=Partition(
            fields["num_tokens"],
            fields["chunk_size"],
            tuple(tuple(chunks) for chunks in fields["chunks_by_rank"]),
        ),
        status=Status[fields["status"]],
        cost=PlanCost(**cost),
        bounds=Bounds(**{name: Bound(**bound) for name, bound in fields["bounds"].items()}),
        stats=PlanStats(**fields["stats"]),
        cluster=Cluster(**fields["cluster"]),
        fingerprint=fields["fingerprint"],
        goals=tuple(
            Goal(**(goal | {"figure": Figure[goal["figure"]], "stop": Stop[goal["stop"]]}))
            for goal in fields["goals"]
        ),
    )


def _refuse_other_problem(result: PlanResult, problem: PlanProblem) -> None:
    pairs = [
        ("cluster", result.cluster, problem.cluster),
        ("num_tokens", result.partition.num_tokens, problem.num_tokens),
        ("chunk_size", result.partition.chunk_size, problem.chunk_size),
        ("mask fingerprint", result.fingerprint, problem.fingerprint),
    ]
    reasons = [
        f"its {name} is {theirs}, the problem's is {ours}" for name, theirs, ours in pairs if theirs != ours
    ]
    if reasons:
        raise PlanError(f"the saved plan was made for another problem: {'; '.join(reasons)}")


def _fields(text: str, kind: str) -> dict[str, Any]:
    """Parse JSON of one format and version."""
    try:
        fields = json.loads(text)
    except (TypeError, ValueError) as failure:
        raise PlanError(f"{kind}: the text is no JSON: {failure}") from failure
    if not isinstance(fields, dict) or fields.get("format") != kind:
        found = fields.get("format") if isinstance(fields, dict) else type(fields).__name__
        raise PlanError(f'{kind}: the text must be an object with "format": "{kind}", got {found!r}')
    if fields.get("version") != VERSION:
        raise PlanError(
            f"{kind}: version {fields.get('version')!r} cannot be read, this FM3 reads version {VERSION}; "
            f"make the file again with this version"
        )
    return fields


def _malformed(kind: str, wrong: Exception) -> PlanError:
    what = f"field {wrong} is missing or unknown" if isinstance(wrong, KeyError) else str(wrong)
    return PlanError(f"{kind}: {what}")


def _cluster(cluster: Cluster) -> dict[str, int]:
    return {"num_ranks": cluster.num_ranks, "ranks_per_node": cluster.node_size}


def _goal(goal: Goal) -> dict[str, Any]:
    return {
        "figure": goal.figure.name,
        "value": goal.value,
        "bound": goal.bound,
        "allowed": goal.allowed,
        "stop": goal.stop.name,
        "solver": goal.solver,
    }


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
