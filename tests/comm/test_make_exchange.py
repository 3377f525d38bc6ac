"""Exact pruning, against the definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fm3_comm import check_exchange, make_exchange, routes
from fm3_core import Cluster, ColumnMask, ExchangeError, Partition, Transfer, UnknownNameError, patterns
from fm3_core import needs as needs_of


@st.composite
def _problems(draw):
    num_chunks = draw(st.integers(0, 9))
    num_ranks = draw(st.integers(1, 6))
    chunk_size = draw(st.integers(1, 5))
    num_tokens = max(0, num_chunks * chunk_size - draw(st.integers(0, chunk_size - 1)))
    owner = draw(st.lists(st.integers(0, num_ranks - 1), min_size=num_chunks, max_size=num_chunks))
    chunks = tuple(tuple(c for c in range(num_chunks) if owner[c] == r) for r in range(num_ranks))
    bits = draw(st.lists(st.booleans(), min_size=num_chunks**2, max_size=num_chunks**2))
    needs = np.array(bits, dtype=bool).reshape(num_chunks, num_chunks)
    return (
        Partition(num_tokens, chunk_size, chunks),
        needs,
        Cluster(num_ranks, draw(st.integers(1, num_ranks))),
    )


def _transfers_by_definition(partition, needs):
    return sorted(
        Transfer(chunk, source, destination)
        for chunk in range(partition.num_chunks)
        for source in range(partition.num_ranks)
        for destination in range(partition.num_ranks)
        if source != destination
        and chunk in partition.chunks_of(source)
        and any(needs[row, chunk] for row in partition.chunks_of(destination))
    )


@settings(deadline=None, max_examples=150)
@given(_problems())
def test_a_chunk_moves_iff_some_row_of_another_rank_sees_it(problem):
    partition, needs, cluster = problem
    exchange = make_exchange(partition, needs, cluster)
    assert list(exchange.transfers) == _transfers_by_definition(partition, needs)


@settings(deadline=None, max_examples=150)
@given(_problems())
def test_a_rank_gathers_what_its_rows_see_its_own_chunks_included(problem):
    partition, needs, cluster = problem
    exchange = make_exchange(partition, needs, cluster)
    assert exchange.gathered == tuple(
        tuple(
            c for c in range(partition.num_chunks) if any(needs[row, c] for row in partition.chunks_of(rank))
        )
        for rank in range(partition.num_ranks)
    )


@settings(deadline=None, max_examples=100)
@given(_problems())
def test_what_make_exchange_makes_passes_check_exchange(problem):
    partition, needs, cluster = problem
    check_exchange(make_exchange(partition, needs, cluster), needs)


@settings(deadline=None, max_examples=50)
@given(_problems())
def test_an_exchange_is_a_pure_function_of_its_arguments(problem):
    partition, needs, cluster = problem
    assert make_exchange(partition, needs, cluster) == make_exchange(partition, needs.copy(), cluster)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_pruning_agrees_with_the_dense_mask(data):
    num_tokens = data.draw(st.integers(1, 20))
    chunk_size = data.draw(st.integers(1, 6))
    num_ranks = data.draw(st.integers(1, 4))
    num_chunks = -(-num_tokens // chunk_size)
    vectors = np.sort(
        np.array(
            data.draw(st.lists(st.integers(0, num_tokens), min_size=2 * num_tokens, max_size=2 * num_tokens))
        ).reshape(num_tokens, 2),
        axis=1,
    ).astype(np.int32)
    zeros = np.zeros(num_tokens, dtype=np.int32)
    lts, lte, uts, ute = (x[None, None] for x in (vectors[:, 0], vectors[:, 1], zeros, zeros))
    mask = ColumnMask(lts, lte, uts, ute, num_rows=num_tokens)
    chunks = tuple(tuple(range(r, num_chunks, num_ranks)) for r in range(num_ranks))
    partition = Partition(num_tokens, chunk_size, chunks)
    exchange = make_exchange(partition, needs_of(mask, chunk_size=chunk_size), Cluster(num_ranks))
    visible = mask.to_dense()[0, 0]
    for rank in range(num_ranks):
        seen = np.flatnonzero(visible[partition.token_index(rank)].any(axis=0))
        assert exchange.gathered[rank] == tuple(sorted({int(key) // chunk_size for key in seen}))


def test_documents_that_stay_on_their_rank_move_nothing():
    mask = patterns.causal_document([8, 8])
    partition = Partition(16, 4, ((0, 1), (2, 3)))
    assert make_exchange(partition, needs_of(mask, chunk_size=4), Cluster(2)).transfers == ()


def test_own_chunks_that_nobody_here_sees_are_left_out():
    needs = np.array([[False, True], [False, False]])
    exchange = make_exchange(Partition(4, 2, ((0,), (1,))), needs, Cluster(2))
    assert exchange.gathered == ((1,), ())
    assert exchange.transfers == (Transfer(1, 1, 0),)


def test_one_rank_moves_nothing():
    exchange = make_exchange(Partition(7, 2, ((0, 1, 2, 3),)), np.ones((4, 4), dtype=bool), Cluster(1))
    assert exchange.gathered == ((0, 1, 2, 3),)
    assert exchange.transfers == ()


def test_more_ranks_than_chunks_leave_ranks_with_nothing():
    exchange = make_exchange(Partition(3, 2, ((), (0, 1), ())), np.ones((2, 2), dtype=bool), Cluster(3))
    assert exchange.gathered == ((), (0, 1), ())
    assert exchange.transfers == ()


def test_an_unknown_route_is_refused_with_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"unknown route 'scenic'; known: .*flat"):
        make_exchange(Partition(2, 1, ((0,), (1,))), np.ones((2, 2), dtype=bool), Cluster(2), route="scenic")


def test_a_route_that_a_user_registers_is_used():
    routes.register("none", lambda partition, gathered, cluster: [])
    try:
        exchange = make_exchange(
            Partition(2, 1, ((0,), (1,))), np.ones((2, 2), dtype=bool), Cluster(2), route="none"
        )
    finally:
        routes.unregister("none")
    assert exchange.transfers == ()


@pytest.mark.parametrize(
    ("needs", "got"),
    [
        (np.ones((2, 3), dtype=bool), r"bool \[2, 3\]"),
        (np.ones((3,), dtype=bool), r"bool \[3\]"),
        (np.ones((3, 3), dtype=np.int64), r"int64 \[3, 3\]"),
        ([[True]], r"bool \[1, 1\]"),
    ],
)
def test_needs_of_another_shape_or_dtype_are_refused(needs, got):
    with pytest.raises(
        ExchangeError, match=r"needs must be bool \[3, 3\] as the partition has 3 chunks, got " + got
    ):
        make_exchange(Partition(3, 1, ((0, 1), (2,))), needs, Cluster(2))


def test_a_cluster_with_other_ranks_is_refused():
    with pytest.raises(ExchangeError, match="partition has 2 ranks, cluster has 3"):
        make_exchange(Partition(2, 1, ((0,), (1,))), np.ones((2, 2), dtype=bool), Cluster(3))
