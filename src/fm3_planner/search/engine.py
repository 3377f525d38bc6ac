"""One search, two engines: C++ where it was built, Python everywhere."""

from __future__ import annotations

import importlib
from types import ModuleType

from fm3_core.errors import PlanError
from fm3_planner.base import Assignment
from fm3_planner.problem import PlanProblem
from fm3_planner.search.options import SearchOptions
from fm3_planner.search.phases import search_in_python
from fm3_planner.search.placement import Layout
from fm3_planner.search.traffic import Needs

ENGINES = ("auto", "native", "python")
"""Names of engines: "auto" is "native" where it was built, else "python"."""


def search(problem: PlanProblem, options: SearchOptions, *, with_traffic: bool, engine: str) -> Assignment:
    """Place the chunks; the engines give the same answer.

    Args:
        problem: what is to be placed, and on what.
        options: targets and budgets.
        with_traffic: False for phase 1 only; phases 2 and 3 need several nodes and bytes that could cross.
        engine: one of `ENGINES`.

    Raises:
        PlanError: "native" was asked for and is not built.
    """
    native = None if engine == "python" else _native()
    if native is None and engine == "native":
        raise PlanError(
            "engine 'native' needs fm3_planner._C, which this install was built without: reinstall where a "
            "C++17 compiler is found, or ask for engine 'auto' or 'python'"
        )
    cluster = problem.cluster
    with_traffic = with_traffic and cluster.num_nodes > 1 and bool(problem.chunk_bytes.any())
    if native is None:
        layout = Layout(
            num_chunks=problem.num_chunks, num_ranks=problem.num_ranks, ranks_per_node=cluster.node_size
        )
        weights = problem.weights.tolist() + [0] * (layout.num_slots - problem.num_chunks)
        needs = Needs(problem.needs, problem.chunk_bytes) if with_traffic else None
        items, moves = search_in_python(layout, weights, needs, options)
    else:
        found, moves = native.search(
            weights=problem.weights,
            needs=problem.needs if with_traffic else None,
            chunk_bytes=problem.chunk_bytes if with_traffic else None,
            num_ranks=problem.num_ranks,
            ranks_per_node=cluster.node_size,
            target=options.target,
            compute_moves=options.compute_moves,
            mixes=options.mixes,
            slack=options.slack,
            traffic_moves=options.traffic_moves,
            runs=options.runs,
            longest_run=options.longest_run,
        )
        items = found.tolist()
    per_rank = len(items) // problem.num_ranks
    return Assignment(
        chunks_by_rank=[
            sorted(item for item in items[start : start + per_rank] if item < problem.num_chunks)
            for start in range(0, len(items), per_rank)
        ],
        moves=moves,
    )


def _native() -> ModuleType | None:
    """Return the extension, or None where the install has none; one that cannot be loaded is an error."""
    try:
        return importlib.import_module("fm3_planner._C")
    except ModuleNotFoundError:
        return None
