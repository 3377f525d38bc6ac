"""Head and tail of every document on one rank: balance for causal documents, whatever their lengths."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fm3_planner.base import Assignment
from fm3_planner.problem import PlanProblem


@dataclass(frozen=True)
class PerDocumentZigzag:
    """Gives each rank a run from the head and one from the tail of every document.

    A document is a run of neighbouring chunks that no need leaves: documents that share a chunk count as one.
    Its chunks are spread evenly; those that are left over go to the ranks with the fewest chunks so far, ties
    to the smaller number, so that counts of all chunks are even as well.
    """

    def assign(self, problem: PlanProblem) -> Assignment:
        """Return the runs; no weight is looked at."""
        chunks_by_rank: list[list[int]] = [[] for _ in range(problem.num_ranks)]
        for document in documents(problem):
            each, left_over = divmod(len(document), problem.num_ranks)
            by_fewest = sorted(range(problem.num_ranks), key=lambda rank: len(chunks_by_rank[rank]))
            with_one_more = set(by_fewest[:left_over])
            head, tail = document.start, document.stop
            for rank, chunks in enumerate(chunks_by_rank):
                count = each + (rank in with_one_more)
                in_head = -(-count // 2)
                in_tail = count - in_head
                chunks += [*range(head, head + in_head), *range(tail - in_tail, tail)]
                head, tail = head + in_head, tail - in_tail
        return Assignment(
            chunks_by_rank=[sorted(chunks) for chunks in chunks_by_rank], moves=problem.num_chunks
        )


def documents(problem: PlanProblem) -> list[range]:
    """Return the shortest runs of chunks such that no chunk needs one of another run, in order."""
    linked = problem.needs | problem.needs.T | np.eye(problem.num_chunks, dtype=np.bool_)
    furthest = np.maximum.accumulate(problem.num_chunks - 1 - linked[:, ::-1].argmax(axis=1))
    ends = [chunk + 1 for chunk, last in enumerate(furthest.tolist()) if last == chunk]
    return [range(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
