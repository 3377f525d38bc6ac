"""Other numbers for the ranks of a plan, so that tokens stay near where the loader put them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fm3_core.cluster import Cluster
from fm3_core.errors import PlanError
from fm3_core.partition import Partition
from fm3_planner.cost import plan_cost
from fm3_planner.interchange import redistribution_split_sizes
from fm3_planner.matching import cheapest_matching
from fm3_planner.problem import PlanProblem
from fm3_planner.result import PlanResult


def relabel_ranks(partition: Partition, cluster: Cluster, home: Partition) -> Partition:
    """Renumber the ranks of a partition so that the fewest tokens leave their node, then their rank.

    Whole nodes trade places, then ranks inside nodes: who shares a rank and who shares a node stays, and so
    do the largest load, the traffic between nodes and the traffic between ranks. Nodes trade only with nodes
    of as many ranks.

    Args:
        partition: a plan's placement on the ranks of `cluster`.
        cluster: the ranks and their nodes.
        home: where the tokens are before, on as many ranks (`contiguous_partition` for most loaders).

    Raises:
        PlanError: the three do not have the same ranks, or the two not the same tokens.
    """
    if partition.num_ranks != cluster.num_ranks:
        raise PlanError(f"the partition has {partition.num_ranks} ranks, the cluster has {cluster.num_ranks}")
    # stays[a, b]: tokens that rank b has at home and the plan gives to its rank a.
    stays = redistribution_split_sizes(home, partition).T
    new_rank = [0] * cluster.num_ranks
    for nodes in _nodes_by_size(cluster):
        best = [[_best_inside(stays, cluster, plan_node, node) for node in nodes] for plan_node in nodes]
        # Tokens that stay on the node count first, those that stay on the rank second.
        unit = partition.num_tokens + 1
        cost = [[-(on_node * unit + on_rank) for on_node, on_rank, _ in row] for row in best]
        for index, column in enumerate(cheapest_matching(cost)):
            plan_ranks, ranks = cluster.ranks_of(nodes[index]), cluster.ranks_of(nodes[column])
            for local, target in enumerate(best[index][column][2]):
                new_rank[plan_ranks[local]] = ranks[target]
    chunks: list[tuple[int, ...]] = [()] * cluster.num_ranks
    for rank, new in enumerate(new_rank):
        chunks[new] = partition.chunks_of(rank)
    return Partition(partition.num_tokens, partition.chunk_size, tuple(chunks))


def relabel_plan(problem: PlanProblem, result: PlanResult, home: Partition) -> PlanResult:
    """Return the plan with ranks renumbered as `relabel_ranks` does; only figures by rank change.

    Raises:
        PlanError: `home` has other ranks or tokens.
    """
    partition = relabel_ranks(result.partition, result.cluster, home)
    return replace(result, partition=partition, cost=plan_cost(problem, partition))


def _nodes_by_size(cluster: Cluster) -> list[list[int]]:
    sizes: dict[int, list[int]] = {}
    for node in range(cluster.num_nodes):
        sizes.setdefault(len(cluster.ranks_of(node)), []).append(node)
    return list(sizes.values())


def _best_inside(
    stays: NDArray[np.int64], cluster: Cluster, plan_node: int, node: int
) -> tuple[int, int, list[int]]:
    """Return tokens that stay on the node and on their rank if `plan_node` becomes `node`, and how."""
    block = stays[np.ix_(list(cluster.ranks_of(plan_node)), list(cluster.ranks_of(node)))]
    if not block.any():
        return 0, 0, list(range(len(block)))
    matching = cheapest_matching((-block).tolist())
    return int(block.sum()), int(sum(block[row, column] for row, column in enumerate(matching))), matching
