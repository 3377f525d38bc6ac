"""The cluster as a graph: routes take the fastest links, loads add up, congested links are named."""

from __future__ import annotations

import numpy as np
import pytest

from fm3_core import Cluster, PlanError
from fm3_planner import ClusterGraph, LinkSpeeds, plan, traffic_matrix

TWO_NODES = ClusterGraph(Cluster(4, 2))


def test_every_rank_is_on_its_switch_and_on_a_card_of_its_rail():
    graph = TWO_NODES.graph
    assert sorted(graph.neighbors(("rank", 3))) == [("card", 1, 1), ("nvlink", 1)]
    assert graph.number_of_edges() == 4 * 3 + 2
    assert graph.edges[("rank", 3), ("nvlink", 1)]["bytes_per_second"] == 450e9


@pytest.mark.parametrize(
    ("source", "destination", "route"),
    [
        (0, 0, [("rank", 0)]),
        (0, 1, [("rank", 0), ("nvlink", 0), ("rank", 1)]),
        (0, 2, [("rank", 0), ("card", 0, 0), ("rail", 0), ("card", 1, 0), ("rank", 2)]),
    ],
)
def test_ranks_of_a_node_meet_over_nvlink_and_ranks_of_a_rail_on_the_rail(source, destination, route):
    assert TWO_NODES.route(source, destination) == route


def test_a_rank_of_another_rail_is_reached_over_nvlink_where_the_spine_is_slow():
    route = TWO_NODES.route(0, 3)
    assert ("spine", 0) not in route
    assert sum(vertex[0] == "nvlink" for vertex in route) == 1


def test_a_fast_spine_is_taken():
    graph = ClusterGraph(Cluster(4, 2), LinkSpeeds(nvlink=1e9, spine=1e15))
    assert ("spine", 0) in graph.route(0, 3)


def test_one_card_a_node_is_shared_by_its_ranks():
    graph = ClusterGraph(Cluster(4, 2), cards_per_node=1)
    assert graph.route(1, 3)[1:-1] == [("card", 0, 0), ("rail", 0), ("card", 1, 0)]
    traffic = np.zeros((4, 4), dtype=np.int64)
    traffic[0, 2], traffic[1, 3] = 7, 5
    worst = graph.link_loads(traffic)[0]
    assert (worst.source, worst.destination, worst.num_bytes) == (("card", 0, 0), ("rail", 0), 12)
    assert worst.seconds == pytest.approx(12 / 50e9)


def test_the_bytes_that_leave_and_reach_each_rank_are_those_of_the_plan(make_problem):
    problem = make_problem([3, 1, 2, 5, 4, 4, 6, 1], 4, 2)
    traffic = traffic_matrix(problem, plan(problem, "striped").partition)
    loads = TWO_NODES.link_loads(traffic)
    for rank in range(4):
        passing = sum(load.num_bytes for load in loads if load.destination == ("rank", rank))
        leaving = sum(load.num_bytes for load in loads if load.source == ("rank", rank))
        assert passing - leaving == traffic[:, rank].sum() - traffic[rank].sum()
    assert [load.seconds for load in loads] == sorted((load.seconds for load in loads), reverse=True)


def test_congested_links_are_those_near_the_slowest():
    traffic = np.zeros((4, 4), dtype=np.int64)
    traffic[0, 2], traffic[1, 3] = 100, 60
    assert {load.num_bytes for load in TWO_NODES.congested(traffic)} == {100, 60}
    assert {load.num_bytes for load in TWO_NODES.congested(traffic, share=0.9)} == {100}


def test_no_traffic_has_no_congested_link():
    assert TWO_NODES.congested(np.zeros((4, 4), dtype=np.int64)) == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: LinkSpeeds(card=0),
            "LinkSpeeds.card must be a finite number of bytes per second > 0, got 0",
        ),
        (lambda: LinkSpeeds(spine=float("nan")), "LinkSpeeds.spine must be a finite number"),
        (lambda: ClusterGraph(Cluster(4, 2), cards_per_node=3), r"cards_per_node must be in 1..2, got 3"),
        (lambda: TWO_NODES.route(0, 4), r"destination must be in 0..3, got 4"),
        (lambda: TWO_NODES.link_loads(np.zeros((2, 2))), r"traffic must have shape \[4, 4\], got \[2, 2\]"),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(PlanError, match=message):
        make()
