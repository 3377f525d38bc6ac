"""The cheapest one-to-one matching of rows and columns, in integers of any size."""

from __future__ import annotations

from collections.abc import Sequence


def cheapest_matching(cost: Sequence[Sequence[int]]) -> list[int]:
    """Return the column of each row of a square matrix, each column once, with the least sum of costs.

    Shortest augmenting paths with potentials (Kuhn 1955, Munkres 1957; cubic form of Jonker and Volgenant
    1987). Ties go to the smaller column, so that equal costs give equal answers everywhere.

    Args:
        cost: square; integers.
    """
    size = len(cost)
    row_potential, column_potential = [0] * (size + 1), [0] * (size + 1)
    row_of = [size] * (size + 1)  # by column; the last column is the root of each search
    for row in range(size):
        row_of[size] = row
        column = size
        least: list[int | None] = [None] * size
        came_from = [size] * size
        is_done = [False] * (size + 1)
        while row_of[column] != size:
            is_done[column] = True
            here = row_of[column]
            step: int | None = None
            nearest = size
            for other in range(size):
                if is_done[other]:
                    continue
                reduced = cost[here][other] - row_potential[here] - column_potential[other]
                known = least[other]
                if known is None or reduced < known:
                    least[other], came_from[other] = reduced, column
                    known = reduced
                if step is None or known < step:
                    step, nearest = known, other
            assert step is not None
            for other in range(size + 1):
                if is_done[other]:
                    row_potential[row_of[other]] += step
                    column_potential[other] -= step
                elif other < size:
                    known = least[other]
                    assert known is not None
                    least[other] = known - step
            column = nearest
        while column != size:
            row_of[column] = row_of[came_from[column]]
            column = came_from[column]
    column_of = [0] * size
    for column in range(size):
        column_of[row_of[column]] = column
    return column_of
