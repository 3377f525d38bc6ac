"""Checks of the options that exact planners share."""

from __future__ import annotations

import math
import numbers
from typing import Any

from fm3_core.check import require_int
from fm3_core.errors import PlanError
from fm3_planner.exact.search import Objective
from fm3_planner.problem import PlanProblem


def check_options(
    objective: Any, epsilon: Any, max_compute: Any, max_buffer_bytes: Any, **limits: Any
) -> None:
    """Raise PlanError naming the first option that breaks its rule.

    Args:
        objective: an `Objective`.
        epsilon: a finite number >= 0.
        max_compute: an integer >= 0 where traffic is made small and epsilon is 0, or None.
        max_buffer_bytes: an integer >= 0, or None.
        limits: by name; finite numbers > 0.
    """
    if _is_no_number(epsilon) or epsilon < 0:
        raise PlanError(f"epsilon must be a finite number >= 0, got {epsilon!r}")
    if max_compute is not None:
        require_int("max_compute", max_compute, error=PlanError)
        if objective is Objective.COMPUTE:
            raise PlanError(
                f"max_compute={max_compute} limits the load of plans of little traffic; the objective "
                f"'compute' makes the load itself small"
            )
        if epsilon:
            raise PlanError(f"max_compute={max_compute} stands in place of epsilon, got epsilon={epsilon}")
    if max_buffer_bytes is not None:
        require_int("max_buffer_bytes", max_buffer_bytes, error=PlanError)
    for name, limit in limits.items():
        if _is_no_number(limit) or limit <= 0:
            raise PlanError(f"{name} must be a finite number > 0, got {limit!r}")


def refuse_many_chunks(planner: str, max_chunks: int, problem: PlanProblem) -> None:
    """Raise PlanError if the problem has more chunks than an exact planner takes on."""
    if problem.num_chunks > max_chunks:
        raise PlanError(
            f"{planner} takes at most {max_chunks} chunks, the problem has {problem.num_chunks}; use a "
            f"heuristic planner or larger chunks"
        )


def _is_no_number(value: Any) -> bool:
    return isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value)
