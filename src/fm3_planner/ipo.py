"""Compute balance by local search: the first phase of hcc_ipo alone."""

from __future__ import annotations

from dataclasses import dataclass

from fm3_core.check import require_int
from fm3_core.errors import PlanError
from fm3_planner.base import Assignment
from fm3_planner.bounds import largest_load_bound
from fm3_planner.problem import PlanProblem
from fm3_planner.search.engine import ENGINES, search
from fm3_planner.search.options import SearchOptions

COMPUTE_MOVES_PER_CHUNK = 1000
FEW_CHUNKS = 64
"""Fewer chunks get the budget of so many, and `MIXES_OF_FEW`: the time is short anyway."""

MIXES, MIXES_OF_FEW = 25, 100
"""Times that the search leaves a placement that no exchange improves."""


@dataclass(frozen=True, kw_only=True)
class Ipo:
    """Deals chunks as lpt does, then improves the heaviest rank while that helps.

    It stops at the lower bound, when the budget is spent, or where nothing it tries helps any more.

    Exchanges: one chunk for one; two for two, three for three (with one for one the best re-split of two
    ranks, up to 7 chunks a rank); around three ranks. Where none helps, the chunks of the heaviest and two
    other ranks are mixed and improved anew. Needs are not looked at.

    Attributes:
        compute_moves: exchanges to compute at most, about; None: 1000 a chunk, and 64,000 at least.
        engine: "native" (C++), "python", or "auto" for the first of them that there is; both give the same
            plan.

    Raises:
        PlanError: an option breaks its rule.
    """

    compute_moves: int | None = None
    engine: str = "auto"

    def __post_init__(self) -> None:
        """Validate every option."""
        require_moves("Ipo.compute_moves", self.compute_moves)
        require_engine("Ipo.engine", self.engine)

    def assign(self, problem: PlanProblem) -> Assignment:
        """Return the balanced placement."""
        options = SearchOptions(
            target=largest_load_bound(problem.weights.tolist(), problem.num_ranks).value,
            compute_moves=default_moves(self.compute_moves, compute_moves_of(problem.num_chunks)),
            mixes=mixes_of(problem.num_chunks),
        )
        return search(problem, options, with_traffic=False, engine=self.engine)


def compute_moves_of(num_chunks: int) -> int:
    """Return the default budget of compute balance."""
    return COMPUTE_MOVES_PER_CHUNK * max(num_chunks, FEW_CHUNKS)


def mixes_of(num_chunks: int) -> int:
    """Return how often the search leaves a placement that no exchange improves."""
    return MIXES_OF_FEW if num_chunks < FEW_CHUNKS else MIXES


def require_moves(name: str, value: int | None) -> None:
    """Raise unless a budget is None or an integer in 0..2^48."""
    if value is not None:
        require_int(name, value, minimum=0, maximum=2**48, error=PlanError)


def require_engine(name: str, value: str) -> None:
    """Raise unless an engine of that name exists."""
    if value not in ENGINES:
        raise PlanError(f"{name} must be one of {', '.join(ENGINES)}, got {value!r}")


def default_moves(value: int | None, default: int) -> int:
    """Return a budget, or the default where none is given."""
    return default if value is None else int(value)
