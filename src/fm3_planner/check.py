"""An independent check of a plan: slow, obvious code that shares no line with the fast one."""

from __future__ import annotations

from typing import Any

from fm3_core.errors import PlanError
from fm3_planner.exact.brute_force import BruteForce
from fm3_planner.goal import Figure, Stop
from fm3_planner.problem import PlanProblem
from fm3_planner.result import PlanResult, Status


def check_plan(problem: PlanProblem, result: PlanResult) -> None:
    """Derive every figure of `result` anew from the definitions and compare.

    A compute bound above the one that is derived here is a planner's own proof: it must not exceed the plan's
    load and, where the problem is small enough to try every placement, not the optimum.

    Args:
        problem: the problem that the result answers.
        result: the result to check.

    Raises:
        PlanError: a figure differs; the message names the first, what it says and what it is.
    """
    _same("fingerprint", result.fingerprint, problem.fingerprint)
    _same("cluster", result.cluster, problem.cluster)
    _same("partition.num_tokens", result.partition.num_tokens, problem.num_tokens)
    _same("partition.chunk_size", result.partition.chunk_size, problem.chunk_size)
    chunks_by_rank = result.partition.chunks_by_rank
    _check_chunks(problem, chunks_by_rank)
    _check_cost(problem, result)
    _check_bounds(problem, result)
    _check_goals(result)
    _same("status", result.status, _status(result))
    if result.stats.moves < 0 or result.stats.planning_seconds < 0:
        raise PlanError(f"stats must not be negative, got {result.stats}")


def _check_chunks(problem: PlanProblem, chunks_by_rank: tuple[tuple[int, ...], ...]) -> None:
    _same("number of ranks", len(chunks_by_rank), problem.cluster.num_ranks)
    for rank, chunks in enumerate(chunks_by_rank):
        _same(f"order of chunks of rank {rank}", list(chunks), sorted(chunks))
    for chunk in range(len(problem.weights)):
        owners = [rank for rank, chunks in enumerate(chunks_by_rank) if chunk in chunks]
        if len(owners) != 1:
            raise PlanError(f"chunk {chunk} is owned by ranks {owners}, it must be owned by exactly one")
    _same("number of chunks owned", sum(len(chunks) for chunks in chunks_by_rank), len(problem.weights))
    counts = [len(chunks) for chunks in chunks_by_rank]
    if max(counts) - min(counts) > 1:
        raise PlanError(f"chunk counts of ranks differ by more than one: {counts}")


def _check_cost(problem: PlanProblem, result: PlanResult) -> None:
    chunks_by_rank, cost = result.partition.chunks_by_rank, result.cost
    weights, chunk_bytes = problem.weights.tolist(), problem.chunk_bytes.tolist()
    ranks = range(len(chunks_by_rank))
    loads = [sum(weights[chunk] for chunk in chunks_by_rank[rank]) for rank in ranks]
    _same("cost.loads", cost.loads, tuple(loads))
    compute = sum(
        max(sum(weights_of_group[chunk] for chunk in chunks_by_rank[rank]) for rank in ranks)
        for weights_of_group in _weights_by_group(problem)
    )
    _same("cost.compute", cost.compute, compute)

    needed_by_rank: list[set[int]] = []
    for rank in ranks:
        needed: set[int] = set()
        for query_chunk in chunks_by_rank[rank]:
            row = problem.needs[query_chunk].tolist()
            needed.update(key_chunk for key_chunk, is_needed in enumerate(row) if is_needed)
        needed_by_rank.append(needed)

    rank_traffic = node_traffic = 0
    buffers = [0] * len(chunks_by_rank)
    for key_chunk, size in enumerate(chunk_bytes):
        owner = next(rank for rank in ranks if key_chunk in chunks_by_rank[rank])
        users = {rank for rank in ranks if key_chunk in needed_by_rank[rank]}
        rank_traffic += size * (len(users | {owner}) - 1)
        node_traffic += size * (len({problem.cluster.node_of(rank) for rank in users | {owner}}) - 1)
        for rank in users - {owner}:
            buffers[rank] += size
    _same("cost.node_traffic", cost.node_traffic, node_traffic)
    _same("cost.rank_traffic", cost.rank_traffic, rank_traffic)
    _same("cost.buffer_bytes_by_rank", cost.buffer_bytes_by_rank, tuple(buffers))
    _same("cost.buffer_bytes", cost.buffer_bytes, max(buffers))


def _check_bounds(problem: PlanProblem, result: PlanResult) -> None:
    compute, node_traffic = result.bounds.compute, result.bounds.node_traffic
    derived = _compute_bound(problem)
    if compute.value > derived:
        if compute.value > result.cost.compute:
            raise PlanError(
                f"bounds.compute is {compute.value}, above the plan's own load {result.cost.compute}"
            )
        if problem.num_chunks <= BruteForce.max_chunks:
            proof = BruteForce().assign(problem).compute_bound
            assert proof is not None
            if compute.value > proof.value:
                raise PlanError(f"bounds.compute is {compute.value}, a plan with load {proof.value} exists")
    else:
        _same("bounds.compute", compute.value, derived)
    _same("bounds.node_traffic", node_traffic.value, _node_traffic_bound(problem))
    for name, bound in (("compute", compute), ("node_traffic", node_traffic)):
        if not bound.reason:
            raise PlanError(f"bounds.{name} has no reason")


def _check_goals(result: PlanResult) -> None:
    """Check what an exact planner says of its search against the plan's own figures."""
    for index, goal in enumerate(result.goals):
        if not 0 <= goal.bound <= goal.value <= goal.allowed:
            raise PlanError(f"goals[{index}] must satisfy 0 <= bound <= value <= allowed, got {goal}")
        figure = getattr(result.cost, goal.figure.value)
        if figure > goal.allowed:
            raise PlanError(f"goals[{index}].allowed is {goal.allowed}, the plan has {figure}")
    if result.goals:
        last = result.goals[-1]
        _same(f"goals[{len(result.goals) - 1}].value", last.value, getattr(result.cost, last.figure.value))


def _status(result: PlanResult) -> Status:
    stops = {goal.stop for goal in result.goals if goal.value > goal.bound}
    if stops:
        return Status.CLOCK if Stop.CLOCK in stops else Status.WORK_LIMIT
    if result.goals and {goal.figure for goal in result.goals} != {Figure.COMPUTE}:
        return Status.PROVED
    return Status.OPTIMAL if result.cost.compute == result.bounds.compute.value else Status.FEASIBLE


def _compute_bound(problem: PlanProblem) -> int:
    """Return the larger of the bound of the sums and the sum of the groups' bounds."""
    of_sums = _bound_of_weights(problem, problem.weights.tolist())
    return max(of_sums, sum(_bound_of_weights(problem, weights) for weights in _weights_by_group(problem)))


def _weights_by_group(problem: PlanProblem) -> list[list[int]]:
    by_group = problem.weights_by_group
    return [problem.weights.tolist()] if by_group is None else by_group.tolist()


def _bound_of_weights(problem: PlanProblem, weights: list[int]) -> int:
    """Return the largest of average, largest chunk and pigeonhole, each from its definition."""
    num_ranks = problem.cluster.num_ranks
    fewest = len(weights) // num_ranks
    candidates = [(sum(weights) + num_ranks - 1) // num_ranks, max(weights)]
    together = 1
    while (together - 1) * num_ranks + 1 <= len(weights):
        heavy = sorted(sorted(weights)[-((together - 1) * num_ranks + 1) :])
        candidates.append(sum(heavy[:together]) + sum(sorted(weights)[: max(0, fewest - together)]))
        together += 1
    return max(candidates)


def _node_traffic_bound(problem: PlanProblem) -> int:
    """Return the larger of the bounds by users and by components, each from its definition."""
    cluster, num_chunks = problem.cluster, len(problem.weights)
    counts = [num_chunks // cluster.num_ranks] * cluster.num_ranks
    for rank in range(num_chunks % cluster.num_ranks):
        counts[rank] += 1
    capacity = sum(counts[: len(cluster.ranks_of(0))])
    chunk_bytes: list[int] = problem.chunk_bytes.tolist()

    users = [{chunk} for chunk in range(num_chunks)]
    for query_chunk, row in enumerate(problem.needs.tolist()):
        for key_chunk, is_needed in enumerate(row):
            if is_needed:
                users[key_chunk].add(query_chunk)
    by_users = sum(
        size * (-(-len(of_chunk) // capacity) - 1) for size, of_chunk in zip(chunk_bytes, users, strict=True)
    )

    component_of = list(range(num_chunks))
    for key_chunk, of_chunk in enumerate(users):
        for query_chunk in of_chunk:
            old, new = component_of[query_chunk], component_of[key_chunk]
            if old != new:
                component_of = [new if component == old else component for component in component_of]
    by_components = 0
    for component in sorted(set(component_of)):
        members = [chunk for chunk in range(num_chunks) if component_of[chunk] == component]
        shared = [chunk_bytes[chunk] for chunk in members if len(users[chunk]) > 1]
        by_components += (-(-len(members) // capacity) - 1) * min(shared, default=0)
    return max(by_users, by_components)


def _same(name: str, stated: Any, derived: Any) -> None:
    if stated != derived:
        raise PlanError(f"{name} is {stated}, derived anew it is {derived}")
