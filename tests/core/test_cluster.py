"""Ranks and nodes."""

from __future__ import annotations

import pickle

import pytest

from fm3_core import Cluster, PartitionError


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 7, 31, 32, 33, 63, 64, 65])
@pytest.mark.parametrize("ranks_per_node", [1, 2, 3, 8, 64, None])
def test_nodes_share_the_ranks_out_in_order(num_ranks, ranks_per_node):
    cluster = Cluster(num_ranks, ranks_per_node)
    by_node = [list(cluster.ranks_of(node)) for node in range(cluster.num_nodes)]
    assert [rank for ranks in by_node for rank in ranks] == list(range(num_ranks))
    assert [len(ranks) for ranks in by_node[:-1]] == [cluster.node_size] * (cluster.num_nodes - 1)
    for rank in range(num_ranks):
        assert by_node[cluster.node_of(rank)][cluster.local_rank(rank)] == rank


def test_the_last_node_may_be_smaller():
    cluster = Cluster(10, 4)
    assert (cluster.num_nodes, cluster.ranks_of(2)) == (3, range(8, 10))


def test_all_ranks_live_on_one_node_by_default_and_a_node_is_no_larger_than_the_cluster():
    assert Cluster(4).num_nodes == 1
    assert Cluster(4) == Cluster(4, 4) == Cluster(4, 8)
    assert hash(Cluster(4)) == hash(Cluster(4, 4))
    assert pickle.loads(pickle.dumps(Cluster(5, 2))) == Cluster(5, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Cluster(0), "num_ranks must be >= 1, got 0"),
        (lambda: Cluster(4, 0), "ranks_per_node must be >= 1, got 0"),
        (lambda: Cluster(4.0), "num_ranks must be an integer, got 4.0 (float)"),
        (lambda: Cluster(4, 2).node_of(4), "rank must be in 0..3, got 4"),
        (lambda: Cluster(4, 2).local_rank(-1), "rank must be in 0..3, got -1"),
        (lambda: Cluster(4, 2).ranks_of(2), "node must be in 0..1, got 2"),
    ],
)
def test_what_is_no_cluster_rank_or_node_is_refused(call, message):
    with pytest.raises(PartitionError) as caught:
        call()
    assert str(caught.value) == message
