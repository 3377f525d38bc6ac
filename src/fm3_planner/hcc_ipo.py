"""The default planner: compute balance first, then traffic between nodes at a slack of compute."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from fractions import Fraction

from fm3_core.check import require_int
from fm3_core.errors import PlanError
from fm3_planner.base import Assignment
from fm3_planner.bounds import largest_load_bound
from fm3_planner.ipo import compute_moves_of, default_moves, mixes_of, require_engine, require_moves
from fm3_planner.problem import PlanProblem
from fm3_planner.search.engine import search
from fm3_planner.search.options import SLACK_UNIT, SearchOptions

MOST_EPSILON = 1000
LONGEST_RUN = 8
"""Neighbouring chunks that annealing swaps at once, at most."""

CHUNKS_WITH_RUNS = 192
"""Up to so many chunks annealing swaps runs; with more, what a run costs is better spent on single chunks."""


@dataclass(frozen=True, kw_only=True)
class HccIpo:
    """Hierarchical, communication- and compute-aware, iterative.

    1. Balances compute between all ranks, as `Ipo` does; the largest load it reaches is T_best.
    2. Lowers the bytes that cross nodes while every load stays within (1 + epsilon) T_best. Starts are the
       balanced placement, those of lpt and zigzag where they are within it, and, in turn and several times,
       contiguous chunks and the best placement so far: annealing decides which node owns what, by swaps of
       chunks and, up to 192 of them, of runs of up to 8 neighbours; the chunks of a node are dealt to its
       ranks, and where a rank is too heavy annealing goes on between ranks. Swaps between nodes follow, while
       one lowers the traffic.
    3. Balances compute inside each node, which leaves the traffic between nodes as it is.

    Phases 2 and 3 alternate while the traffic falls; of all starts the plan with the least traffic, then the
    least load, is kept. On one node it is `Ipo`. Where groups of layers wait for each other, loads are
    those of all groups together. Chance comes from a fixed seed and all arithmetic is in integers: the same
    problem gives the same plan everywhere.

    Attributes:
        epsilon: how much more compute than the best balance traffic may cost; read to nine decimals. 0.02
            about halves the traffic of the default, 0.002.
        compute_moves: exchanges that phase 1 computes at most, about, and phase 3 for each start; None: 1000
            a chunk, and 64,000 at least.
        traffic_moves: exchanges that annealing computes, but for the last repair; None: 18432 for 32 to 64
            chunks, then about 300 for each chunk.
        runs: annealing runs that this allows where no rank needs a repair; None: 12 for less than 48
            chunks, then 8, less from 193 chunks on, where each needs more moves.
        engine: "native" (C++), "python", or "auto" for the first of them that there is; both give the same
            plan.

    Raises:
        PlanError: an option breaks its rule.
    """

    epsilon: float = 0.002
    compute_moves: int | None = None
    traffic_moves: int | None = None
    runs: int | None = None
    engine: str = "auto"

    def __post_init__(self) -> None:
        """Validate every option."""
        epsilon = self.epsilon
        if isinstance(epsilon, bool) or not isinstance(epsilon, numbers.Real) or not math.isfinite(epsilon):
            raise PlanError(f"HccIpo.epsilon must be a finite number >= 0, got {epsilon!r}")
        if not 0 <= epsilon <= MOST_EPSILON:
            raise PlanError(f"HccIpo.epsilon must be in 0..{MOST_EPSILON}, got {epsilon!r}")
        require_moves("HccIpo.compute_moves", self.compute_moves)
        require_moves("HccIpo.traffic_moves", self.traffic_moves)
        if self.runs is not None:
            require_int("HccIpo.runs", self.runs, minimum=0, maximum=10_000, error=PlanError)
        require_engine("HccIpo.engine", self.engine)

    def assign(self, problem: PlanProblem) -> Assignment:
        """Return the placement of the last phase."""
        num_chunks = problem.num_chunks
        options = SearchOptions(
            target=largest_load_bound(problem.weights.tolist(), problem.num_ranks).value,
            compute_moves=default_moves(self.compute_moves, compute_moves_of(num_chunks)),
            mixes=mixes_of(num_chunks),
            slack=int(Fraction(str(float(self.epsilon))) * SLACK_UNIT),
            traffic_moves=default_moves(self.traffic_moves, _traffic_moves(num_chunks)),
            runs=_runs(num_chunks) if self.runs is None else int(self.runs),
            longest_run=LONGEST_RUN if num_chunks <= CHUNKS_WITH_RUNS else 1,
        )
        return search(problem, options, with_traffic=True, engine=self.engine)


def _traffic_moves(num_chunks: int) -> int:
    """Return the default budget of phase 2: what fits the planning times of docs/notes/planner-search.md."""
    if num_chunks < 64:
        return min(18432, 18 * num_chunks**2)  # few chunks have few exchanges
    return min(384 * num_chunks - 6144, 256 * num_chunks + 26624)


def _runs(num_chunks: int) -> int:
    """Return the default number of annealing runs: few chunks need short runs, and many of them."""
    return 12 if num_chunks < 48 else min(8, max(1, 1536 // num_chunks))
