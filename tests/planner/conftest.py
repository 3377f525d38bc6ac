"""Builders and strategies of planning problems from plain integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import strategies as st

from fm3_core import Cluster
from fm3_planner import PlanProblem

MakeProblem = Callable[..., PlanProblem]


def _make_problem(
    weights: Sequence[int],
    num_ranks: int,
    ranks_per_node: int | None = None,
    *,
    needs: np.ndarray | None = None,
    chunk_bytes: Sequence[int] | None = None,
    num_tokens: int | None = None,
    chunk_size: int = 1,
    fingerprint: str = "",
    groups: np.ndarray | None = None,
) -> PlanProblem:
    num_chunks = len(weights)
    return PlanProblem(
        weights=weights,
        needs=np.tril(np.ones((num_chunks, num_chunks), dtype=np.bool_)) if needs is None else needs,
        chunk_bytes=[10] * num_chunks if chunk_bytes is None else chunk_bytes,
        cluster=Cluster(num_ranks, ranks_per_node),
        num_tokens=num_chunks * chunk_size if num_tokens is None else num_tokens,
        chunk_size=chunk_size,
        fingerprint=fingerprint,
        weights_by_group=groups,
    )


@st.composite
def _problems(draw: st.DrawFn, max_chunks: int) -> PlanProblem:
    num_chunks = draw(st.integers(1, max_chunks))
    num_ranks = draw(st.integers(1, num_chunks))
    values = draw(st.sampled_from([st.integers(0, 3), st.integers(0, 100), st.integers(0, 2**40)]))
    bits = draw(st.integers(0, 2 ** (num_chunks * num_chunks) - 1))
    flat = [bool(bits >> place & 1) for place in range(num_chunks * num_chunks)]
    return _make_problem(
        draw(st.lists(values, min_size=num_chunks, max_size=num_chunks)),
        num_ranks,
        draw(st.integers(1, num_ranks)),
        needs=np.array(flat, dtype=np.bool_).reshape(num_chunks, num_chunks),
        chunk_bytes=draw(st.lists(st.integers(0, 50), min_size=num_chunks, max_size=num_chunks)),
    )


@pytest.fixture(scope="session")
def make_problem() -> MakeProblem:
    """Return a builder: weights, ranks, ranks of a node; the rest has defaults (causal needs, 10 bytes)."""
    return _make_problem


@pytest.fixture(scope="session")
def problems() -> st.SearchStrategy[PlanProblem]:
    """Return a strategy of problems of up to 24 chunks."""
    return _problems(24)


@pytest.fixture(scope="session")
def small_problems() -> st.SearchStrategy[PlanProblem]:
    """Return a strategy of problems that brute force can solve quickly."""
    return _problems(7)
