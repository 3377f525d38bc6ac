"""Balance as a choice of rank contents: few contents have a load that a better plan can have.

If no rank's load is above `most`, none is below the total - (P - 1) most. Chunks of one weight are
interchangeable. Where few multisets of weights fit between the two, choosing P of them that use up all chunks
is a far smaller search than placing chunk by chunk, and that there is no choice proves that every plan has a
load above `most`. (Cutting-stock patterns as of Gilmore and Gomory, 1961, with equal counts.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fm3_planner.exact.model import Model, Row
from fm3_planner.problem import PlanProblem

MAX_PATTERNS = 5_000
_MAX_STEPS = 40 * MAX_PATTERNS


@dataclass(frozen=True, kw_only=True)
class PatternModel:
    """The model, and how a point of it is read.

    Attributes:
        model: has a point where, and only where, there is such a plan; no objective.
        chunks_by_weight: chunks of each distinct weight, heavy weights first.
        patterns: how many chunks of each distinct weight a rank has; one variable each, the first ones.
    """

    model: Model
    chunks_by_weight: list[list[int]]
    patterns: list[tuple[int, ...]]

    @property
    def uses_every_weight(self) -> bool:
        """Whether every weight is in some pattern; otherwise the model has no point."""
        return all(any(of) for of in zip(*self.patterns, strict=True)) if self.patterns else False

    def owners(self, values: Sequence[int]) -> list[int]:
        """Return the rank of each chunk at a point of the model."""
        left = [list(chunks) for chunks in self.chunks_by_weight]
        owner = [0] * sum(len(chunks) for chunks in left)
        rank = 0
        for pattern, times in zip(self.patterns, values, strict=False):
            for _ in range(times):
                for chunks, count in zip(left, pattern, strict=True):
                    for chunk in chunks[:count]:
                        owner[chunk] = rank
                    del chunks[:count]
                rank += 1
        return owner


def pattern_model(problem: PlanProblem, most: int) -> PatternModel | None:
    """Return the model of plans with a load of `most` or less, or None where it would have too many patterns.

    Args:
        problem: one group of weights.
        most: the largest load that a plan may have.
    """
    weights: list[int] = problem.weights.tolist()
    distinct = sorted(set(weights), reverse=True)
    chunks_by_weight = [[chunk for chunk, weight in enumerate(weights) if weight == of] for of in distinct]
    per_rank, ranks_with_more = problem.chunks_per_rank
    fewest = sum(weights) - (problem.num_ranks - 1) * most
    patterns: list[tuple[int, ...]] = []
    multiplicity = [len(chunks) for chunks in chunks_by_weight]
    for size in {per_rank, per_rank + bool(ranks_with_more)}:
        found = _patterns(distinct, multiplicity, size, fewest, most)
        if found is None or len(patterns) + len(found) > MAX_PATTERNS:
            return None
        patterns += found
    patterns.sort(key=lambda pattern: (_load(distinct, pattern), pattern))
    return PatternModel(
        model=_choose(multiplicity, patterns, problem.num_ranks),
        chunks_by_weight=chunks_by_weight,
        patterns=patterns,
    )


def _choose(multiplicity: list[int], patterns: list[tuple[int, ...]], num_ranks: int) -> Model:
    model = Model()
    for pattern in patterns:
        times = min(of // count for of, count in zip(multiplicity, pattern, strict=True) if count)
        model.variable(0, times, 0)
    for index, of in enumerate(multiplicity):
        users = [(pattern[index], number) for number, pattern in enumerate(patterns) if pattern[index]]
        model.rows.append(Row(terms=users, lower=of, upper=of))
    model.rows.append(
        Row(terms=[(1, number) for number in range(len(patterns))], lower=num_ranks, upper=num_ranks)
    )
    return model


def _load(distinct: list[int], pattern: tuple[int, ...]) -> int:
    return sum(weight * count for weight, count in zip(distinct, pattern, strict=True))


def _patterns(
    distinct: list[int], multiplicity: list[int], size: int, fewest: int, most: int
) -> list[tuple[int, ...]] | None:
    """Return the multisets of `size` weights whose sum is in [fewest, most], or None if they are too many."""
    found: list[tuple[int, ...]] = []
    last = len(distinct) - 1
    low, high = _extremes(distinct, multiplicity, size)
    counts = [0] * len(distinct)
    stack: list[tuple[int, int, int, int]] = [(0, size, 0, -1)]
    steps = 0
    while stack:
        kind, left, load, tried = stack.pop()
        steps += 1
        if steps > _MAX_STEPS or len(found) > MAX_PATTERNS:
            return None
        if tried < 0:
            if not left:
                if fewest <= load <= most:
                    found.append((*counts[:kind], *([0] * (len(distinct) - kind))))
                continue
            if kind > last or load + low[kind][left] > most or load + high[kind][left] < fewest:
                continue
            tried = min(left, multiplicity[kind]) + 1
        if tried == 0:
            continue
        count = tried - 1
        counts[kind] = count
        stack.append((kind, left, load, count))
        stack.append((kind + 1, left - count, load + count * distinct[kind], -1))
    return found


def _extremes(
    distinct: list[int], multiplicity: list[int], size: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Return least and largest sums of k weights among each kind and the lighter ones; impossible is huge."""
    huge = sum(weight * of for weight, of in zip(distinct, multiplicity, strict=True)) + 1
    low, high = [], []
    for kind in range(len(distinct)):
        descending = [
            weight
            for weight, of in zip(distinct[kind:], multiplicity[kind:], strict=True)
            for _ in range(min(of, size))
        ]
        sums_low, sums_high = [0], [0]
        for taken in range(1, size + 1):
            enough = taken <= len(descending)
            sums_low.append(sums_low[-1] + descending[-taken] if enough else huge)
            sums_high.append(sums_high[-1] + descending[taken - 1] if enough else -huge)
        low.append(sums_low)
        high.append(sums_high)
    return low, high
