"""Who sends how many bytes to whom when each rank gets the key chunks that its rows need."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fm3_core.errors import PlanError
from fm3_core.partition import Partition
from fm3_planner.problem import PlanProblem


def traffic_matrix(problem: PlanProblem, partition: Partition) -> NDArray[np.int64]:
    """Return the bytes that each rank sends to each other one, int64 [sources, destinations].

    Every needed chunk goes from its owner straight to each rank that needs it; the entries sum to
    `PlanCost.rank_traffic`, and gradients of keys and values take the same ways back.

    Raises:
        PlanError: the partition is not one of the problem's tokens, chunks and ranks.
    """
    return _sums_by_owner(problem, partition, problem.chunk_bytes)


def token_traffic(problem: PlanProblem, partition: Partition) -> NDArray[np.int64]:
    """Return the key tokens that each rank sends to each other one, int64 [sources, destinations].

    Raises:
        PlanError: as `traffic_matrix`.
    """
    chunks = np.arange(problem.num_chunks)
    lengths = np.minimum(problem.chunk_size, problem.num_tokens - chunks * problem.chunk_size)
    return _sums_by_owner(problem, partition, lengths)


def _sums_by_owner(problem: PlanProblem, partition: Partition, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    for name, theirs, ours in (
        ("num_tokens", partition.num_tokens, problem.num_tokens),
        ("chunk_size", partition.chunk_size, problem.chunk_size),
        ("num_ranks", partition.num_ranks, problem.num_ranks),
    ):
        if theirs != ours:
            raise PlanError(f"the partition's {name} is {theirs}, the problem's is {ours}")
    ranks = partition.num_ranks
    sent = np.zeros((ranks, ranks), dtype=np.int64)
    for destination in range(ranks):
        needed = problem.needs[list(partition.chunks_of(destination))].any(axis=0)
        np.add.at(sent[:, destination], partition.owner[needed], sizes[needed])
    np.fill_diagonal(sent, 0)
    return sent
