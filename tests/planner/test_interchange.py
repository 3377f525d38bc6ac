"""Plans as permutations, load-balancer indices and split sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fm3_core import Partition, PlanError
from fm3_planner import (
    contiguous_partition,
    exchange_split_sizes,
    load_balancer_indices,
    original_order,
    plan,
    rank_major_order,
    redistribution_indices,
    redistribution_split_sizes,
    token_indices,
    traffic_matrix,
)

UNEVEN = Partition(7, 2, ((0, 3), (1, 2)))
EVEN = Partition(8, 2, ((0, 3), (1, 2)))


@st.composite
def _partitions(draw, num_tokens, num_ranks):
    chunk_size = draw(st.integers(1, num_tokens))
    num_chunks = -(-num_tokens // chunk_size)
    owners = draw(st.lists(st.integers(0, num_ranks - 1), min_size=num_chunks, max_size=num_chunks))
    chunks = tuple(
        tuple(chunk for chunk, owner in enumerate(owners) if owner == rank) for rank in range(num_ranks)
    )
    return Partition(num_tokens, chunk_size, chunks)


def test_token_indices_are_each_rank_s_tokens_ascending():
    assert [index.tolist() for index in token_indices(UNEVEN)] == [[0, 1, 6], [2, 3, 4, 5]]


def test_rank_major_order_is_rank_after_rank():
    assert rank_major_order(UNEVEN).tolist() == [0, 1, 6, 2, 3, 4, 5]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_original_order_undoes_the_rank_major_one(data):
    partition = data.draw(_partitions(data.draw(st.integers(1, 40)), data.draw(st.integers(1, 5))))
    x = np.arange(partition.num_tokens)
    assert np.array_equal(x[rank_major_order(partition)][original_order(partition)], x)


def test_load_balancer_indices_are_a_batch_of_one_and_restore_undoes_them():
    forward, back = load_balancer_indices(EVEN), load_balancer_indices(EVEN, restore=True)
    assert forward.tolist() == [[0, 1, 6, 7, 2, 3, 4, 5]]
    assert forward[0][back[0]].tolist() == list(range(8))
    assert np.array_equal(np.split(forward[0], 2)[1], EVEN.token_index(1))


def test_load_balancer_indices_refuse_ranks_of_unequal_lengths():
    with pytest.raises(PlanError, match="rank 1 owns 4 tokens and rank 0 owns 3; PyTorch gives each rank an"):
        load_balancer_indices(UNEVEN)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_an_all_to_all_by_the_split_sizes_moves_every_token_home(data):
    num_tokens, num_ranks = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 5))
    before = data.draw(_partitions(num_tokens, num_ranks))
    after = data.draw(_partitions(num_tokens, num_ranks))
    sizes = redistribution_split_sizes(before, after)
    ranks = range(num_ranks)
    indices = [redistribution_indices(before, after, rank) for rank in ranks]
    sent = [
        np.split(before.token_index(rank)[indices[rank][0]], np.cumsum(sizes[rank])[:-1]) for rank in ranks
    ]
    for rank in ranks:
        received = np.concatenate([sent[source][rank] for source in ranks])
        assert [len(sent[source][rank]) for source in ranks] == sizes[:, rank].tolist()
        assert np.array_equal(received[indices[rank][1]], after.token_index(rank))


def test_partitions_of_other_tokens_cannot_be_redistributed():
    with pytest.raises(PlanError, match="num_tokens is 7 before and 8 after"):
        redistribution_split_sizes(UNEVEN, EVEN)


def test_exchange_split_sizes_are_the_tokens_of_the_key_chunks_that_others_need(make_problem):
    needs = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 1]], dtype=bool)
    problem = make_problem([1] * 4, 2, needs=needs, num_tokens=7, chunk_size=2, chunk_bytes=[2, 2, 2, 1])
    partition = Partition(7, 2, ((0, 2), (1, 3)))
    assert exchange_split_sizes(problem, partition).tolist() == [[0, 2], [0, 0]]
    partition = Partition(7, 2, ((1, 2), (0, 3)))
    assert exchange_split_sizes(problem, partition).tolist() == [[0, 0], [2, 0]]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_traffic_matrix_sums_to_the_rank_traffic_and_its_columns_to_the_buffers(problems, data):
    problem = data.draw(problems)
    result = plan(problem, "striped")
    sent = traffic_matrix(problem, result.partition)
    assert sent.sum() == result.cost.rank_traffic
    assert tuple(sent.sum(axis=0).tolist()) == result.cost.buffer_bytes_by_rank
    assert not sent.diagonal().any()


def test_a_partition_of_another_problem_is_refused(make_problem):
    with pytest.raises(PlanError, match="the partition's num_tokens is 7, the problem's is 4"):
        traffic_matrix(make_problem([1] * 4, 2), UNEVEN)


@pytest.mark.parametrize(
    ("num_tokens", "num_ranks", "counts"),
    [(8, 2, [4, 4]), (7, 2, [4, 3]), (5, 4, [2, 2, 1, 0]), (1, 3, [1, 0, 0])],
)
def test_a_contiguous_loader_gives_equal_runs_and_the_rest_to_the_last(num_tokens, num_ranks, counts):
    partition = contiguous_partition(num_tokens, num_ranks)
    assert [partition.num_tokens_of(rank) for rank in range(num_ranks)] == counts
    assert rank_major_order(partition).tolist() == list(range(num_tokens))
