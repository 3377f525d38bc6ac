"""What a planner is, what it answers, and what the framework accepts as an answer."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NoReturn, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fm3_core.errors import PlanError
from fm3_core.partition import Partition
from fm3_planner.bounds import Bound
from fm3_planner.goal import Goal
from fm3_planner.problem import PlanProblem


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """A planner's answer with what it knows besides the chunks.

    Attributes:
        chunks_by_rank: chunk ids of each rank, ascending in each rank.
        moves: how many placements or exchanges were tried; the unit of work budgets.
        compute_bound: a lower bound of the largest load that the planner proved, None for none.
        goals: what an exact planner's search reached and proved, figure after figure; () for a heuristic.
    """

    chunks_by_rank: Sequence[Sequence[int]]
    moves: int = 0
    compute_bound: Bound | None = None
    goals: tuple[Goal, ...] = ()


Answer: TypeAlias = Assignment | Sequence[Iterable[int]] | NDArray[np.integer[Any]]
"""What `assign` may return: an Assignment, or the chunk ids of each rank in any order."""


@runtime_checkable
class Planner(Protocol):
    """An object that places chunks on ranks.

    A planner is deterministic: the same integers give the same answer, on any machine and in any process, so
    that ranks can plan alone and agree. It decides by integers, breaks ties by chunk and rank number, and
    counts work in moves, never in seconds. One that handles small problems only states the most chunks as
    `max_chunks` and refuses more.
    """

    def assign(self, problem: PlanProblem) -> Answer:
        """Return the chunk ids of each rank.

        Every chunk is on one rank, and counts of ranks differ by at most one. Plain lists may have any order
        inside a rank, the framework sorts them; the chunks of an `Assignment` are ascending already.
        """
        ...


def accept(problem: PlanProblem, answer: Answer, planner: str) -> tuple[Partition, Assignment]:
    """Return a planner's answer as a checked partition, and with what it said besides.

    Args:
        problem: the problem that was asked.
        answer: what `assign` returned.
        planner: the planner's name, for messages.

    Raises:
        PlanError: a rank is too many or missing, a chunk is not an integer, out of range, given twice,
            missing or (in an `Assignment`) not ascending, or the counts of ranks differ by more than one. It
            names the planner, the rank and the chunk.
    """
    if isinstance(answer, Assignment):
        chunks_by_rank = _as_integers(problem, answer.chunks_by_rank, planner)
        _refuse_unsorted(chunks_by_rank, planner)
        details = answer
    else:
        chunks_by_rank = _as_integers(problem, answer, planner)
        details = Assignment(chunks_by_rank=())
    _refuse_wrong_cover(problem, chunks_by_rank, planner)
    _refuse_uneven_counts(problem, chunks_by_rank, planner)
    _refuse_wrong_details(details, planner)
    ascending = tuple(tuple(sorted(chunks)) for chunks in chunks_by_rank)
    return Partition(problem.num_tokens, problem.chunk_size, ascending), details


def _as_integers(problem: PlanProblem, answer: Any, planner: str) -> list[list[int]]:
    """Return the answer as lists of integers in 0..chunks-1, one list a rank, or raise."""
    try:
        by_rank = [list(chunks) for chunks in answer]
    except TypeError:
        _refuse(planner, f"assign must return the chunk ids of each rank, got {type(answer).__name__}")
    if len(by_rank) != problem.num_ranks:
        _refuse(
            planner, f"chunks of {len(by_rank)} ranks were given, the problem has {problem.num_ranks} ranks"
        )
    last = problem.num_chunks - 1
    for rank, chunks in enumerate(by_rank):
        for chunk in chunks:
            if isinstance(chunk, bool) or not isinstance(chunk, numbers.Integral):
                _refuse(planner, f"rank {rank} has chunk {chunk!r}; a chunk id is an integer")
            if not 0 <= int(chunk) <= last:
                _refuse(planner, f"rank {rank} has chunk {chunk}, out of range; chunks are 0..{last}")
    return [[int(chunk) for chunk in chunks] for chunks in by_rank]


def _refuse_unsorted(chunks_by_rank: list[list[int]], planner: str) -> None:
    for rank, chunks in enumerate(chunks_by_rank):
        for before, chunk in pairwise(chunks):
            if chunk < before:
                _refuse(
                    planner,
                    f"rank {rank} is unsorted: chunk {chunk} follows chunk {before}; an Assignment is "
                    f"ascending in each rank",
                )


def _refuse_wrong_cover(problem: PlanProblem, chunks_by_rank: list[list[int]], planner: str) -> None:
    """Refuse duplicate and missing chunks."""
    num_chunks = problem.num_chunks
    owner: dict[int, int] = {}
    duplicates = []
    for rank, chunks in enumerate(chunks_by_rank):
        for chunk in chunks:
            if chunk in owner:
                duplicates.append((chunk, owner[chunk], rank))
            owner.setdefault(chunk, rank)
    if duplicates:
        chunk, first, second = duplicates[0]
        _refuse(
            planner,
            f"chunk {chunk} is a duplicate: rank {first} has it and rank {second} again "
            f"({len(duplicates)} duplicates)",
        )
    missing = [chunk for chunk in range(num_chunks) if chunk not in owner]
    if missing:
        shortest = min(range(problem.num_ranks), key=lambda rank: len(chunks_by_rank[rank]))
        _refuse(
            planner,
            f"chunk {missing[0]} is missing: no rank of 0..{problem.num_ranks - 1} has it; rank {shortest} "
            f"has the fewest chunks, {len(chunks_by_rank[shortest])} "
            f"({len(missing)} of {num_chunks} chunks are missing)",
        )


def _refuse_uneven_counts(problem: PlanProblem, chunks_by_rank: list[list[int]], planner: str) -> None:
    per_rank, ranks_with_more = problem.chunks_per_rank
    most = per_rank + (1 if ranks_with_more else 0)
    for rank, chunks in enumerate(chunks_by_rank):
        if not per_rank <= len(chunks) <= most:
            rule = f"{per_rank}" if most == per_rank else f"{per_rank} or {most}"
            _refuse(
                planner,
                f"rank {rank} has {len(chunks)} chunks; {problem.num_chunks} chunks on "
                f"{problem.num_ranks} ranks are {rule} each",
            )


def _refuse_wrong_details(details: Assignment, planner: str) -> None:
    moves, bound = details.moves, details.compute_bound
    if isinstance(moves, bool) or not isinstance(moves, numbers.Integral) or int(moves) < 0:
        _refuse(planner, f"moves must be an integer >= 0, got {moves!r}")
    if bound is not None and not (
        isinstance(bound, Bound)
        and isinstance(bound.value, numbers.Integral)
        and isinstance(bound.reason, str)
        and bound.reason
    ):
        _refuse(planner, f"compute_bound must be a Bound of an integer and a reason, got {bound!r}")
    if not isinstance(details.goals, tuple) or not all(isinstance(goal, Goal) for goal in details.goals):
        _refuse(planner, f"goals must be a tuple of Goal, got {details.goals!r}")
    for index, goal in enumerate(details.goals):
        if not 0 <= goal.bound <= goal.value <= goal.allowed:
            _refuse(
                planner,
                f"goals[{index}] must satisfy 0 <= bound <= value <= allowed, got bound={goal.bound}, "
                f"value={goal.value}, allowed={goal.allowed}",
            )


def _refuse(planner: str, fact: str) -> NoReturn:
    raise PlanError(f"planner {planner!r}: {fact}")


def require_planner(name: str, value: object) -> None:
    """Raise PlanError unless `value` is an object with assign(problem); a name or a class is none."""
    if isinstance(value, type) or not callable(getattr(value, "assign", None)):
        raise PlanError(f"{name} must be an object with assign(problem), got {value!r}")
