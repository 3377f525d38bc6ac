"""What an exact planner says of its search: what each figure reached, its bound and why it ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Figure(Enum):
    """A figure of a plan that can be made small; the value is the name of its field in `PlanCost`."""

    COMPUTE = "compute"
    NODE_TRAFFIC = "node_traffic"
    RANK_TRAFFIC = "rank_traffic"


class Stop(Enum):
    """Why a search ended; the value is the end of the sentence that says it."""

    PROVED = "searched to its end"
    WORK_LIMIT = "stopped at its work limit, which gives the same plan again"
    CLOCK = "stopped by the clock, so that another run may give another plan"

    def __str__(self) -> str:
        """Return the words."""
        return self.value


NO_SOLVER = "lower bound"
"""The solver of a goal that no solver was needed for."""


@dataclass(frozen=True, kw_only=True)
class Goal:
    """One figure made small while those of earlier goals stay allowed.

    Attributes:
        figure: what was made small.
        value: the least that was found, an exact integer.
        bound: no plan that earlier goals allow is below; equal to `value` where the search proved it.
        allowed: the most that later goals, and so the plan, may have of this figure; >= value.
        stop: why the search ended.
        solver: what searched, with its version; `NO_SOLVER` where a heuristic's plan reached a simple bound.
    """

    figure: Figure
    value: int
    bound: int
    allowed: int
    stop: Stop
    solver: str

    @property
    def is_proved(self) -> bool:
        """Whether no allowed plan has less."""
        return self.value == self.bound

    @property
    def gap(self) -> float:
        """How far the value is above the bound, (value - bound) / bound; infinite above a bound of 0."""
        if self.is_proved:
            return 0.0
        return (self.value - self.bound) / self.bound if self.bound else float("inf")

    def __str__(self) -> str:
        """Return a line that says all of it."""
        known = "proved least" if self.is_proved else f"at least {self.bound}, gap {self.gap:.2%}"
        slack = "" if self.allowed == self.value else f", up to {self.allowed} allowed"
        how = "its lower bound is reached" if self.solver == NO_SOLVER else f"{self.solver} {self.stop}"
        return f"{self.figure.value} {self.value} ({known}{slack}): {how}"
