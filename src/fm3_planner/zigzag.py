"""Head and tail of the sequence on one rank: exact balance for one causal document."""

from __future__ import annotations

from dataclasses import dataclass

from fm3_planner.base import Assignment
from fm3_planner.problem import PlanProblem


@dataclass(frozen=True)
class Zigzag:
    """Rank r owns the r-th run of the sequence's first half and the r-th from the end of its second half.

    This is the dual-chunk layout of ring attention for a causal mask: of 2P runs rank r owns runs r and 2P -
    1 - r. A rank with an odd number of chunks has the extra one in its first run.
    """

    def assign(self, problem: PlanProblem) -> Assignment:
        """Return both runs of each rank; no weight or need is looked at."""
        per_rank, ranks_with_more = problem.chunks_per_rank
        chunks_by_rank = []
        head, tail = 0, problem.num_chunks
        for rank in range(problem.num_ranks):
            count = per_rank + (1 if rank < ranks_with_more else 0)
            in_head = -(-count // 2)
            in_tail = count - in_head
            chunks_by_rank.append([*range(head, head + in_head), *range(tail - in_tail, tail)])
            head, tail = head + in_head, tail - in_tail
        return Assignment(chunks_by_rank=chunks_by_rank, moves=problem.num_chunks)
