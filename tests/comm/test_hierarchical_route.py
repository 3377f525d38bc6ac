"""Hierarchical routes: who pulls from whom, what crosses between nodes, and how often."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fm3_comm import check_exchange, gather_bytes, hops, make_exchange
from fm3_core import Cluster, Exchange, ExchangeError, Partition, Transfer


@st.composite
def _problems(draw):
    num_ranks = draw(st.integers(1, 12))
    num_chunks = draw(st.integers(0, 16))
    owner = draw(st.lists(st.integers(0, num_ranks - 1), min_size=num_chunks, max_size=num_chunks))
    chunks = tuple(tuple(c for c in range(num_chunks) if owner[c] == r) for r in range(num_ranks))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    needs = rng.random((num_chunks, num_chunks)) < draw(st.sampled_from([0.0, 0.1, 0.4, 1.0]))
    return Partition(num_chunks, 1, chunks), needs, Cluster(num_ranks, draw(st.integers(1, num_ranks)))


def _between_nodes(exchange):
    node = exchange.cluster.node_of
    return [hop for hop in hops(exchange) if node(hop.source) != node(hop.destination)]


@settings(deadline=None, max_examples=150)
@given(_problems())
def test_a_hierarchical_exchange_passes_the_check_and_gathers_what_the_flat_one_does(problem):
    partition, needs, cluster = problem
    exchange = make_exchange(partition, needs, cluster, route="hierarchical")
    check_exchange(exchange, needs)
    flat = make_exchange(partition, needs, cluster)
    assert exchange.gathered == flat.gathered
    assert [(t.chunk, t.source, t.destination) for t in exchange.transfers] == [
        (t.chunk, t.source, t.destination) for t in flat.transfers
    ]


@settings(deadline=None, max_examples=150)
@given(_problems())
def test_a_chunk_crosses_once_to_each_node_that_needs_it(problem):
    partition, needs, cluster = problem
    exchange = make_exchange(partition, needs, cluster, route="hierarchical")
    crossings = sorted((hop.chunk, cluster.node_of(hop.destination)) for hop in _between_nodes(exchange))
    needed = {
        (chunk, cluster.node_of(rank))
        for rank, chunks in enumerate(exchange.gathered)
        for chunk in chunks
        if cluster.node_of(int(partition.owner[chunk])) != cluster.node_of(rank)
    }
    assert crossings == sorted(needed)


@settings(deadline=None, max_examples=150)
@given(_problems())
def test_ranks_pull_between_nodes_within_their_congruence_class_only(problem):
    partition, needs, cluster = problem
    exchange = make_exchange(partition, needs, cluster, route="hierarchical")
    for hop in _between_nodes(exchange):
        place = cluster.local_rank(hop.source) % len(cluster.ranks_of(cluster.node_of(hop.destination)))
        assert cluster.local_rank(hop.destination) == place
    for transfer in exchange.transfers:
        assert len(transfer.route) <= 1
        for relay in transfer.route:
            assert cluster.node_of(relay) == cluster.node_of(transfer.destination)
            assert cluster.node_of(relay) != cluster.node_of(transfer.source)


@pytest.mark.parametrize(
    ("num_ranks", "per_node", "flat", "hierarchical"),
    [(32, 8, 24, 3), (16, 8, 8, 1), (64, 8, 56, 7), (12, 3, 9, 3), (8, 8, 0, 0), (6, 1, 5, 5)],
)
def test_ranks_that_are_pulled_from_between_nodes_fall_from_all_remote_ones_to_n_minus_1(
    num_ranks, per_node, flat, hierarchical
):
    partition = Partition(num_ranks, 1, tuple((rank,) for rank in range(num_ranks)))
    everything = np.ones((num_ranks, num_ranks), dtype=bool)
    pulls = {}
    for route in ("flat", "hierarchical"):
        exchange = make_exchange(partition, everything, Cluster(num_ranks, per_node), route=route)
        pairs = {(hop.source, hop.destination) for hop in _between_nodes(exchange)}
        pulls[route] = [sum(end == rank for _, end in pairs) for rank in range(num_ranks)]
    assert pulls == {"flat": [flat] * num_ranks, "hierarchical": [hierarchical] * num_ranks}


def test_in_an_uneven_last_node_pulls_stay_within_the_stated_bound():
    num_ranks, per_node = 11, 4
    partition = Partition(num_ranks, 1, tuple((rank,) for rank in range(num_ranks)))
    everything = np.ones((num_ranks, num_ranks), dtype=bool)
    cluster = Cluster(num_ranks, per_node)
    exchange = make_exchange(partition, everything, cluster, route="hierarchical")
    pairs = {(hop.source, hop.destination) for hop in _between_nodes(exchange)}
    pulls = [sum(end == rank for _, end in pairs) for rank in range(num_ranks)]
    # Full nodes: 2 others. The last of 3 ranks: places 0 and 3 come to its first rank from each of 2 nodes.
    assert pulls == [2, 2, 2, 1, 2, 2, 2, 1, 4, 2, 2]
    assert max(pulls) <= (cluster.num_nodes - 1) * -(-per_node // 3)


def test_bytes_between_nodes_shrink_by_the_peers_that_share_them():
    partition = Partition(8, 1, tuple((rank,) for rank in range(8)))
    cluster = Cluster(8, 4)
    moved = {}
    for route in ("flat", "hierarchical"):
        exchange = make_exchange(partition, np.ones((8, 8), dtype=bool), cluster, route=route)
        crossing = set(_between_nodes(exchange))
        moved[route] = sum(size for hop, size in gather_bytes(exchange, 10).items() if hop in crossing)
    assert moved == {"flat": 8 * 4 * 10, "hierarchical": 8 * 10}


def test_a_relay_that_needs_nothing_itself_still_receives_what_it_passes_on():
    needs = np.zeros((4, 4), dtype=bool)
    needs[3, 0] = True
    partition = Partition(4, 1, ((0,), (1,), (2,), (3,)))
    exchange = make_exchange(partition, needs, Cluster(4, 2), route="hierarchical")
    assert exchange.transfers == (Transfer(0, 0, 3, (2,)),)
    assert exchange.gathered[2] == ()
    assert hops(exchange) == (Transfer(0, 0, 2), Transfer(0, 2, 3))


def test_routes_that_bring_a_chunk_to_a_rank_twice_are_found():
    partition = Partition(4, 1, ((0,), (1,), (2,), (3,)))
    needs = np.zeros((4, 4), dtype=bool)
    needs[3, 0] = needs[2, 0] = True
    wrong = Exchange(
        partition, Cluster(4), ((), (), (0,), (0,)), (Transfer(0, 0, 2), Transfer(0, 0, 3, (1, 2)))
    )
    with pytest.raises(ExchangeError, match="chunk 0 reaches rank 2 both from rank 0 and from rank 1"):
        check_exchange(wrong, needs)
