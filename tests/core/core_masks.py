"""Random masks and chunk choices for the core's tests, and a comparison that names the first difference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fm3_core import ColumnMask

_DATA = Path(__file__).parents[2] / "benchmarks" / "data" / "document_lengths.json"


@st.composite
def masks(draw, *, max_rows=9, max_keys=7, shape=None, batch=None, heads=None):
    """Draw a mask with overlapping, touching, nested and empty spans; `shape` fixes (rows, keys)."""
    rows, keys = shape or (draw(st.integers(0, max_rows)), draw(st.integers(0, max_keys)))
    batch = draw(st.integers(1, 2)) if batch is None else batch
    heads = draw(st.integers(1, 2)) if heads is None else heads
    bounds = draw(hnp.arrays(np.int64, (4, batch, heads, keys), elements=st.integers(0, rows)))
    lower, upper = np.sort(bounds[:2], axis=0), np.sort(bounds[2:], axis=0)
    return ColumnMask(*lower, *upper, num_rows=rows)


@st.composite
def mask_pairs(draw, *, max_rows=9, max_keys=7):
    """Draw two masks whose rows and keys are equal and whose batch and heads broadcast."""
    shape = draw(st.integers(0, max_rows)), draw(st.integers(0, max_keys))
    batch, heads = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    first = draw(masks(shape=shape, batch=batch, heads=heads))
    second = draw(
        masks(shape=shape, batch=draw(st.sampled_from([1, batch])), heads=draw(st.sampled_from([1, heads])))
    )
    return first, second


@st.composite
def chunks(draw, num_rows):
    """Draw disjoint ascending chunks of 0..num_rows-1: (offsets, lengths), with gaps and empty ones."""
    cuts = sorted(draw(st.lists(st.integers(0, num_rows), max_size=8)))
    pairs = [(cuts[i], cuts[i + 1] - cuts[i]) for i in range(0, len(cuts) - 1, draw(st.integers(1, 2)))]
    return [start for start, _ in pairs], [length for _, length in pairs]


def random_mask(rng: np.random.Generator, batch: int, heads: int, rows: int, keys: int) -> ColumnMask:
    """Return a mask with random spans, about a third of them empty."""
    bounds = np.sort(rng.integers(0, rows + 1, (2, 2, batch, heads, keys)), axis=1)
    empty = rng.random((2, batch, heads, keys)) < 0.3
    bounds[:, 1] = np.where(empty, bounds[:, 0], bounds[:, 1])
    return ColumnMask(bounds[0, 0], bounds[0, 1], bounds[1, 0], bounds[1, 1], num_rows=rows)


def mask_of_columns(num_rows: int, *columns: tuple[int, int, int, int]) -> ColumnMask:
    """Return the mask of one head with the columns (lts, lte, uts, ute)."""
    vectors = np.array(columns, dtype=np.int64).reshape(-1, 4).T[:, None, None, :]
    return ColumnMask(*vectors, num_rows=num_rows)


def benchmark_batch(num_tokens: int) -> dict[str, Any]:
    """Return the first sample batch of a total: lengths, prefix, hidden, question_then_answers."""
    return json.loads(_DATA.read_text())["batches"][str(num_tokens)][0]


def assert_equal(actual: np.ndarray, expected: np.ndarray, what: str = "values") -> None:
    """Assert equal shapes and values; a failure names the first position and how many differ."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, expected {expected.shape}"
    wrong = np.argwhere(actual != expected)
    first = tuple(wrong[0].tolist()) if len(wrong) else ()
    assert not len(wrong), (
        f"{what}: {len(wrong)} of {actual.size} differ, the first at {first}: "
        f"{actual[first]} instead of {expected[first]}"
    )
