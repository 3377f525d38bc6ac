"""Plans as others take them: token permutations, PyTorch's load-balancer indices, split sizes of all-to-all.

Everything is numpy int64; `torch.from_numpy` makes tensors of it without a copy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fm3_core.errors import PlanError
from fm3_core.partition import Partition
from fm3_planner.problem import PlanProblem
from fm3_planner.traffic import token_traffic


def token_indices(partition: Partition) -> list[NDArray[np.int64]]:
    """Return the global tokens of each rank, ascending, int64 [tokens of the rank] each."""
    return [partition.token_index(rank) for rank in range(partition.num_ranks)]


def rank_major_order(partition: Partition) -> NDArray[np.int64]:
    """Return int64 [num_tokens] so that `x[order]` is rank 0's tokens, then rank 1's and so on."""
    return np.concatenate(token_indices(partition))


def original_order(partition: Partition) -> NDArray[np.int64]:
    """Return int64 [num_tokens], the inverse: `x[rank_major_order][original_order]` is x."""
    return partition.inverse()


def load_balancer_indices(partition: Partition, *, restore: bool = False) -> NDArray[np.int64]:
    """Return the indices that a load balancer of PyTorch's context parallelism generates.

    PyTorch permutes the sequence by these indices and then gives each rank an equal run of it; with `restore`
    the indices undo the permutation. This is what `_generate_indices(restore)` of a class below
    torch.distributed.tensor.experimental's `_LoadBalancer` returns.

    Args:
        partition: the plan's placement.
        restore: whether the indices that undo the permutation are asked for.

    Returns:
        int64 [1, num_tokens].

    Raises:
        PlanError: ranks own unequal numbers of tokens, which PyTorch's equal runs cannot hold; names both.
    """
    counts = [partition.num_tokens_of(rank) for rank in range(partition.num_ranks)]
    if min(counts) != max(counts):
        most, least = counts.index(max(counts)), counts.index(min(counts))
        raise PlanError(
            f"rank {most} owns {counts[most]} tokens and rank {least} owns {counts[least]}; PyTorch gives "
            f"each rank an equal run: make the chunks a multiple of the ranks and the last chunk whole"
        )
    order = original_order(partition) if restore else rank_major_order(partition)
    return order[None, :]


def exchange_split_sizes(problem: PlanProblem, partition: Partition) -> NDArray[np.int64]:
    """Return the key tokens that each rank sends to each, int64 [sources, destinations].

    Row r holds the input split sizes of rank r in an all-to-all of the keys that others need, column r its
    output split sizes; a rank sends nothing to itself.

    Raises:
        PlanError: the partition is not one of the problem's tokens, chunks and ranks.
    """
    return token_traffic(problem, partition)


def redistribution_split_sizes(before: Partition, after: Partition) -> NDArray[np.int64]:
    """Return the tokens that move from each rank to each when data placed by `before` is to be by `after`.

    Row r holds the input split sizes of rank r in an all-to-all, column r its output split sizes; the
    diagonal stays where it is. `redistribution_indices` says in which order the tokens travel.

    Raises:
        PlanError: the partitions have different tokens or ranks.
    """
    old, new = _owners_of_tokens(before, after)
    ranks = before.num_ranks
    return np.bincount(old * ranks + new, minlength=ranks * ranks).reshape(ranks, ranks).astype(np.int64)


def redistribution_indices(
    before: Partition, after: Partition, rank: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how `rank` orders its tokens around the all-to-all of `redistribution_split_sizes`.

    Returns:
        send: int64 [tokens of the rank before]; `x[send]` is in the order of destinations.
        place: int64 [tokens of the rank after]; what arrived, in the order of sources, `[place]` is the
            rank's tokens in ascending order.

    Raises:
        PlanError: the partitions have different tokens or ranks.
    """
    old, new = _owners_of_tokens(before, after)
    send = np.argsort(new[before.token_index(rank)], kind="stable")
    mine = after.token_index(rank)
    arrival = np.argsort(old[mine], kind="stable")
    place = np.empty(len(mine), dtype=np.int64)
    place[arrival] = np.arange(len(mine))
    return send, place


def contiguous_partition(num_tokens: int, num_ranks: int) -> Partition:
    """Return the placement of a loader that gives each rank a run of tokens, the last ones shorter."""
    run = -(-num_tokens // num_ranks)
    num_runs = -(-num_tokens // run)
    return Partition(num_tokens, run, tuple((rank,) if rank < num_runs else () for rank in range(num_ranks)))


def _owners_of_tokens(before: Partition, after: Partition) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    for name in ("num_tokens", "num_ranks"):
        theirs, ours = getattr(before, name), getattr(after, name)
        if theirs != ours:
            raise PlanError(f"{name} is {theirs} before and {ours} after; only the placement may differ")
    tokens = np.arange(before.num_tokens)
    return before.owner[tokens // before.chunk_size], after.owner[tokens // after.chunk_size]
