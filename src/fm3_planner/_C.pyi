"""The search in C++, where it was built: `_C` is absent where the install found no C++ compiler."""

import numpy as np
from numpy.typing import NDArray

def search(
    *,
    weights: NDArray[np.int64],
    needs: NDArray[np.bool_] | None,
    chunk_bytes: NDArray[np.int64] | None,
    num_ranks: int,
    ranks_per_node: int,
    target: int,
    compute_moves: int,
    mixes: int,
    slack: int,
    traffic_moves: int,
    runs: int,
    longest_run: int,
) -> tuple[NDArray[np.int32], int]:
    """Place chunks as `fm3_planner.search.phases.search_in_python` does, decision for decision.

    Args:
        weights: int64 [chunks], contiguous.
        needs: bool [chunks, chunks], contiguous; None for phase 1 only.
        chunk_bytes: int64 [chunks], contiguous; None with `needs`.
        num_ranks: ranks, at most as many as chunks.
        ranks_per_node: ranks of a node; the last may have fewer.
        target: see `SearchOptions`, like those that follow.
        compute_moves: likewise.
        mixes: likewise.
        slack: likewise.
        traffic_moves: likewise.
        runs: likewise.
        longest_run: likewise.

    Returns:
        The item of each slot, int32 [slots], and the moves spent.

    Raises:
        ValueError: sizes do not fit each other.
    """
