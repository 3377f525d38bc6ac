"""Families of spans against sets of rows."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fm3_core import span

ROWS = 7
PAIRS = st.tuples(st.integers(0, ROWS), st.integers(0, ROWS)).map(sorted)
FAMILIES = st.lists(PAIRS, min_size=2, max_size=5)


def _arrays(pairs):
    return [np.array([start]) for start, _ in pairs], [np.array([end]) for _, end in pairs]


def _rows(pairs):
    return {row for start, end in pairs for row in range(start, end)}


def _pairs(starts, ends):
    return [(int(start), int(end)) for start, end in zip(np.ravel(starts), np.ravel(ends), strict=True)]


@settings(deadline=None, max_examples=200)
@given(FAMILIES)
def test_a_union_hides_the_same_rows_in_ascending_spans_that_do_not_touch(family):
    merged = _pairs(*span.union(*_arrays(family), ROWS))
    assert _rows(merged) == _rows(family)
    real = [pair for pair in merged if pair[0] < pair[1]]
    assert merged == real + [(ROWS, ROWS)] * (len(merged) - len(real))
    assert all(before[1] < behind[0] for before, behind in pairwise(real))


@settings(deadline=None, max_examples=200)
@given(FAMILIES, FAMILIES)
def test_an_intersection_hides_the_rows_hidden_in_both(first, second):
    one, other = (tuple(map(np.stack, _arrays(family))) for family in (first, second))
    common = _pairs(*span.intersection(one, other, ROWS))
    assert _rows(common) == _rows(first) & _rows(second)


@settings(deadline=None, max_examples=100)
@given(st.lists(PAIRS, min_size=2, max_size=2))
def test_a_complement_hides_exactly_the_other_rows(family):
    merged = span.union(*_arrays(family), ROWS)
    assert _rows(_pairs(*span.complement(*merged, ROWS))) == set(range(ROWS)) - _rows(family)


@pytest.mark.parametrize(
    ("spans", "vectors"),
    [
        ([(0, 0), (0, 0)], (7, 7, 0, 0)),
        ([(0, 3), (7, 7)], (7, 7, 0, 3)),
        ([(2, 3), (7, 7)], (2, 3, 0, 0)),
        ([(0, 7), (7, 7)], (7, 7, 0, 7)),
        ([(1, 2), (4, 5)], (4, 5, 1, 2)),
        ([(4, 5), (1, 4)], (1, 5, 0, 0)),
    ],
)
def test_the_canonical_vectors_are_these(spans, vectors):
    written = span.canonical_vectors(*span.union(*_arrays(spans), ROWS), ROWS)
    assert tuple(int(vector[0]) for vector in written) == vectors


def test_row_numbers_up_to_the_largest_int32_are_merged_without_overflow():
    most = 2**31 - 1
    starts, ends = span.union(
        [np.array([most - 1]), np.array([0])], [np.array([most]), np.array([most - 1])], most
    )
    assert _pairs(starts, ends) == [(0, most), (most, most)]
