"""What a partition costs: the load of each rank, the bytes between ranks and nodes, the receive buffers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fm3_core.partition import Partition
from fm3_planner.problem import PlanProblem


@dataclass(frozen=True, kw_only=True)
class PlanCost:
    """The figures of a partition, exact integers. The letters are those of the problem's definition.

    Attributes:
        compute: T, the largest load of a rank, in units of the weights; of a problem with groups of layers
            that wait for each other, the sum over groups of the largest load.
        loads: the load of each rank, over all groups.
        node_traffic: N, bytes that cross nodes when a chunk goes to each node once: the sum over key chunks
            of its bytes times (nodes of its owner and its users - 1).
        rank_traffic: C, bytes that leave their rank: the same with ranks, which is the connectivity metric
            (km1) of the hypergraph that has one net a key chunk.
        buffer_bytes: M, the largest receive buffer of a rank.
        buffer_bytes_by_rank: bytes of the key chunks that each rank needs and does not own; they sum to C.
    """

    compute: int
    loads: tuple[int, ...]
    node_traffic: int
    rank_traffic: int
    buffer_bytes: int
    buffer_bytes_by_rank: tuple[int, ...]


def plan_cost(problem: PlanProblem, partition: Partition) -> PlanCost:
    """Compute every figure of `partition`, in integers.

    Args:
        problem: the problem that the partition answers.
        partition: of the problem's tokens, chunk size and ranks; every rank owns a chunk.
    """
    order = np.array([chunk for chunks in partition.chunks_by_rank for chunk in chunks], dtype=np.int64)
    counts = [len(chunks) for chunks in partition.chunks_by_rank]
    first_chunk = np.concatenate([[0], np.cumsum(counts)[:-1]])
    first_rank = np.array([problem.cluster.ranks_of(node).start for node in range(problem.cluster.num_nodes)])

    loads_by_group = np.add.reduceat(problem.groups[:, order], first_chunk, axis=1)
    packed = np.packbits(problem.needs, axis=1)  # eight times less to gather
    by_rank = np.bitwise_or.reduceat(packed[order], first_chunk, axis=0)
    needed = np.unpackbits(by_rank, axis=1, count=problem.num_chunks).view(np.bool_)
    owned = partition.owner[None, :] == np.arange(partition.num_ranks)[:, None]
    received = needed & ~owned
    buffers = np.where(received, problem.chunk_bytes, 0).sum(axis=1)
    on_node = np.logical_or.reduceat(needed | owned, first_rank, axis=0)
    return PlanCost(
        compute=int(loads_by_group.max(axis=1).sum()),
        loads=tuple(loads_by_group.sum(axis=0).tolist()),
        node_traffic=_times_crossed(problem.chunk_bytes, on_node),
        rank_traffic=_times_crossed(problem.chunk_bytes, needed | owned),
        buffer_bytes=int(buffers.max()),
        buffer_bytes_by_rank=tuple(buffers.tolist()),
    )


def _times_crossed(chunk_bytes: NDArray[np.int64], touched: NDArray[np.bool_]) -> int:
    """Sum each chunk's bytes times (places that it touches - 1); touched is bool [places, chunks]."""
    return int((chunk_bytes * (touched.sum(axis=0, dtype=np.int64) - 1)).sum())
