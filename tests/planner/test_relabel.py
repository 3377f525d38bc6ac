"""Relabelling moves the fewest tokens and leaves load and traffic as they are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fm3_core import Cluster, Partition, PlanError
from fm3_planner import (
    check_plan,
    contiguous_partition,
    plan,
    redistribution_split_sizes,
    relabel_plan,
    relabel_ranks,
)
from fm3_planner.matching import cheapest_matching


def _stays(partition, cluster, home):
    """Return the tokens that stay on their node, and on their rank."""
    moved = redistribution_split_sizes(home, partition)
    nodes = np.array([cluster.node_of(rank) for rank in range(cluster.num_ranks)])
    return int(moved[nodes[:, None] == nodes[None, :]].sum()), int(np.trace(moved))


def _relabellings(partition, cluster):
    """Yield the partition under every relabelling that keeps ranks of a node together."""
    nodes = [list(cluster.ranks_of(node)) for node in range(cluster.num_nodes)]
    node = [cluster.node_of(rank) for rank in range(cluster.num_ranks)]
    for order in itertools.permutations(range(cluster.num_ranks)):
        together = [{node[order[rank]] for rank in ranks} for ranks in nodes]
        sizes = [len(nodes[next(iter(to))]) == len(ranks) for to, ranks in zip(together, nodes, strict=True)]
        if all(len(to) == 1 for to in together) and all(sizes):
            chunks = [()] * cluster.num_ranks
            for rank, new in enumerate(order):
                chunks[new] = partition.chunks_of(rank)
            yield Partition(partition.num_tokens, partition.chunk_size, tuple(chunks))


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 5), seed=st.integers(0, 10_000))
def test_the_matching_is_the_cheapest_of_all(size, seed):
    cost = np.random.default_rng(seed).integers(-9, 10, (size, size))
    columns = cheapest_matching(cost.tolist())
    best = min(sum(cost[range(size), order]) for order in itertools.permutations(range(size)))
    assert sorted(columns) == list(range(size))
    assert cost[range(size), columns].sum() == best


def test_equal_costs_match_in_order():
    assert cheapest_matching([[0] * 4] * 4) == [0, 1, 2, 3]


def test_costs_beyond_64_bits_are_exact():
    assert cheapest_matching([[2**80, 2**80 + 1], [0, 2]]) == [1, 0]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), num_ranks=st.integers(1, 5), per_node=st.integers(1, 5))
def test_the_most_tokens_stay_on_their_node_then_on_their_rank(seed, num_ranks, per_node):
    rng = np.random.default_rng(seed)
    cluster = Cluster(num_ranks, per_node)
    owners = rng.permutation(np.arange(3 * num_ranks) % num_ranks)
    chunks = tuple(tuple(np.flatnonzero(owners == rank).tolist()) for rank in range(num_ranks))
    partition = Partition(6 * num_ranks - 1, 2, chunks)
    home = contiguous_partition(partition.num_tokens, num_ranks)
    best = max(_stays(other, cluster, home) for other in _relabellings(partition, cluster))
    assert _stays(relabel_ranks(partition, cluster, home), cluster, home) == best


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_load_and_traffic_stay_and_the_plan_still_passes(problems, data):
    problem = data.draw(problems)
    result = plan(problem, "lpt")
    again = relabel_plan(problem, result, contiguous_partition(problem.num_tokens, problem.num_ranks))
    check_plan(problem, again)
    figures = ("compute", "node_traffic", "rank_traffic", "buffer_bytes")
    assert [getattr(again.cost, name) for name in figures] == [getattr(result.cost, name) for name in figures]


def test_a_plan_that_is_the_loader_s_placement_with_other_numbers_comes_home():
    home = Partition(8, 1, ((0, 1), (2, 3), (4, 5), (6, 7)))
    shuffled = Partition(8, 1, ((6, 7), (4, 5), (2, 3), (0, 1)))
    assert relabel_ranks(shuffled, Cluster(4, 2), home) == home


def test_an_uneven_last_node_keeps_its_place():
    home = Partition(5, 1, ((0,), (1,), (2,), (3,), (4,)))
    partition = Partition(5, 1, ((4,), (1,), (0,), (2,), (3,)))
    assert relabel_ranks(partition, Cluster(5, 2), home).chunks_of(4) == (3,)


def test_another_number_of_ranks_is_refused():
    with pytest.raises(PlanError, match="the partition has 2 ranks, the cluster has 4"):
        relabel_ranks(contiguous_partition(4, 2), Cluster(4), contiguous_partition(4, 2))
