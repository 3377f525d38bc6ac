"""Lower bounds that hold for every plan of a problem, each with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fm3_planner.problem import PlanProblem


class Bound(NamedTuple):
    """A figure that no plan can go below, and why."""

    value: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The lower bounds of a problem.

    Attributes:
        compute: of T, the largest load of a rank.
        node_traffic: of N, the bytes that cross nodes.
    """

    compute: Bound
    node_traffic: Bound


def lower_bounds(problem: PlanProblem) -> Bounds:
    """Return the bounds of compute and of node traffic."""
    return Bounds(compute=compute_bound(problem), node_traffic=node_traffic_bound(problem))


def tightest_bounds(bounds: Iterable[Bounds]) -> Bounds:
    """Return the largest of each of several bounds of one problem, of equal ones the first.

    What one planner proved holds for the plans of all, so that plans are compared with one bound.
    """
    known = list(bounds)
    return Bounds(
        compute=max((one.compute for one in known), key=lambda bound: bound.value),
        node_traffic=max((one.node_traffic for one in known), key=lambda bound: bound.value),
    )


def compute_bound(problem: PlanProblem) -> Bound:
    """Return the largest of the bounds by the average, by the largest chunk and by the pigeonhole principle.

    Pigeonhole: of the (q-1)P+1 largest chunks some rank holds q; their q smallest and, as that rank holds
    m = floor(n / P) chunks or more, the m - q smallest of all are what it has at least. (With m = ceil(n / P)
    this would be wrong where P does not divide n, as a rank may own one chunk less.)

    Where groups of layers wait for each other, the bounds of the groups add up.
    """
    best = largest_load_bound(problem.weights.tolist(), problem.num_ranks)
    if problem.weights_by_group is not None:
        by_group = [
            largest_load_bound(weights, problem.num_ranks).value for weights in problem.groups.tolist()
        ]
        if sum(by_group) > best.value:
            best = Bound(sum(by_group), f"groups: the bounds of {len(by_group)} groups of layers add up")
    return best


def largest_load_bound(weights: list[int], num_ranks: int) -> Bound:
    """Return the bound of `compute_bound` for one group of weights; there are no more ranks than weights."""
    per_rank = len(weights) // num_ranks
    descending = sorted(weights, reverse=True)
    total = sum(descending)
    best = Bound(-(-total // num_ranks), f"average: a total of {total} on {num_ranks} ranks")
    if descending[0] > best.value:
        best = Bound(descending[0], f"largest chunk: one chunk alone costs {descending[0]}")

    ascending_sums = [0]
    for weight in reversed(descending):
        ascending_sums.append(ascending_sums[-1] + weight)
    for together in range(1, (len(descending) - 1) // num_ranks + 2):
        largest = (together - 1) * num_ranks + 1
        others = max(0, per_rank - together)
        value = sum(descending[largest - together : largest]) + ascending_sums[others]
        if value > best.value:
            best = Bound(
                value,
                f"pigeonhole: one of {num_ranks} ranks owns {together} of the {largest} largest chunks "
                f"and {others} chunks or more beside them",
            )
    return best


def node_traffic_bound(problem: PlanProblem) -> Bound:
    """Return the larger of two bounds that follow from how many chunks a node can hold.

    Users: a key chunk with u users, itself counted, touches ceil(u / capacity) nodes or more. Components:
        chunks that are connected by need touch ceil(size / capacity) nodes or more, and each node but one
        costs at least the cheapest chunk that has another user.
    """
    if problem.cluster.num_nodes == 1:
        return Bound(0, "one node: nothing can cross")
    capacity = node_capacity(problem)
    num_users = problem.needs.sum(axis=0, dtype=np.int64) + ~problem.needs.diagonal()  # and itself
    by_users = int((problem.chunk_bytes * (-(-num_users // capacity) - 1)).sum())

    by_components = 0
    shared = num_users > 1
    for component in need_components(problem):
        nodes_but_one = -(-len(component) // capacity) - 1
        if nodes_but_one:
            cheapest = min(int(problem.chunk_bytes[chunk]) for chunk in component if shared[chunk])
            by_components += nodes_but_one * cheapest

    if max(by_users, by_components) == 0:
        return Bound(0, f"nothing must cross: users and connected chunks fit the {capacity} chunks of a node")
    if by_users >= by_components:
        return Bound(by_users, f"users: key chunks with more users than the {capacity} chunks of a node")
    return Bound(
        by_components, f"components: chunks connected by need are more than the {capacity} chunks of a node"
    )


def node_capacity(problem: PlanProblem) -> int:
    """Return the most chunks that one node can own when chunk counts of ranks differ by at most one."""
    per_rank, ranks_with_more = problem.chunks_per_rank
    ranks = problem.cluster.node_size
    return ranks * per_rank + min(ranks, ranks_with_more)


def need_components(problem: PlanProblem) -> list[list[int]]:
    """Return the connected components of the need graph, by their first chunk, each ascending.

    Sets of chunks are Python integers: a row of needs joins the components that it meets, so that no column,
    slow to reach in memory, is looked at.
    """
    packed = np.packbits(problem.needs, axis=1, bitorder="little")
    first_of: list[int] = list(range(problem.num_chunks))  # a chunk of the same component, or itself
    members: dict[int, int] = {}
    seen = 0
    for chunk in range(problem.num_chunks):
        row = int.from_bytes(packed[chunk].tobytes(), "little") | 1 << chunk
        joined, met = row & ~seen, row & seen
        for new in _members(joined):
            first_of[new] = chunk
        while met:
            first = _lowest(met)
            while first not in members:
                first = first_of[first]
            joined |= members[first]
            met &= ~members.pop(first)
            first_of[first] = chunk
        first_of[chunk] = chunk
        members[chunk] = joined
        seen |= joined
    return sorted(list(_members(component)) for component in members.values())


def _members(chunks: int) -> Iterator[int]:
    """Yield the members of a set, ascending."""
    while chunks:
        yield _lowest(chunks)
        chunks &= chunks - 1


def _lowest(chunks: int) -> int:
    """Return the least member of a set that is not empty."""
    return (chunks & -chunks).bit_length() - 1
