"""What exact planners ask of a solver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fm3_planner.exact.model import Model
from fm3_planner.goal import Stop


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a solver found in a model.

    Attributes:
        values: of every variable, None where it found no point.
        bound: no point of the model has a smaller objective, as far as the solver proved.
        stop: why it ended; PROVED without values is a proof that the model has no point.
        spent: share of the limit that was used, in 0..1.
        work: nodes or branches that were tried.
    """

    values: Sequence[int] | None
    bound: int
    stop: Stop
    spent: float
    work: int


class Solver(Protocol):
    """Solves a model within its limits; makes the same of the same model, unless it stops by the clock."""

    @property
    def name(self) -> str:
        """Name and version, for reports."""
        ...

    @property
    def max_total(self) -> int:
        """The largest sum of weights, or of bytes, that it handles."""
        ...

    def solve(self, model: Model, share: float) -> Found:
        """Return the best point found and the bound proved, within `share` of the limit, in 0..1."""
        ...
