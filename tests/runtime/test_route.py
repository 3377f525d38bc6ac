"""The route of an exchange changes what crosses between nodes, and no result but its last bits."""

from __future__ import annotations

import pytest
from ranks import attend_on_rank, worst_difference

from fm3_comm import backends, loopback
from fm3_core import PlanError, UnknownNameError, patterns
from fm3_runtime import ContextParallel

LENGTHS = [10, 0, 20, 7, 1, 13, 48]
HERE = [name for name in backends.names() if backends.get(name).why_unavailable() is None]


@pytest.mark.parametrize("backend_name", HERE)
@pytest.mark.parametrize("ranks_per_node", [1, 2, 4])
def test_ranks_equal_one_rank_on_hierarchical_routes(make_problem, backend_name, ranks_per_node):
    problem = make_problem(patterns.causal_document(LENGTHS))
    results = backends.get(backend_name).run(
        5,
        lambda backend: attend_on_rank(
            backend,
            problem.mask,
            problem.inputs,
            problem.dout,
            problem.dlse,
            planner="zigzag",
            chunk_size=6,
            ranks_per_node=ranks_per_node,
            route="hierarchical",
        ),
    )
    assert worst_difference(results, problem.one_rank()) < 1e-12


def test_the_step_has_the_route_that_was_asked_for():
    def relays(backend):
        cp = ContextParallel(backend=backend, chunk_size=4, ranks_per_node=2, route="hierarchical")
        return {len(transfer.route) for transfer in cp.plan(patterns.causal(64)).exchange.transfers}

    assert loopback.run(4, relays) == [{0, 1}] * 4


def test_an_unknown_route_is_refused_with_the_known_ones():
    with pytest.raises(UnknownNameError, match="flat, hierarchical"):
        ContextParallel(route="scenic")


def test_ranks_with_different_routes_are_told_so_when_they_verify():
    def work(backend):
        route = "flat" if backend.rank else "hierarchical"
        ContextParallel(backend=backend, ranks_per_node=1, route=route).plan(patterns.causal(64), verify=True)

    with pytest.raises(PlanError, match=r"one mask but different plans: rank 0: .*; rank 1: "):
        loopback.run(2, work)
