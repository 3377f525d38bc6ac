"""Partitions of the tokens into chunks owned by ranks."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from core_masks import assert_equal
from hypothesis import given, settings
from hypothesis import strategies as st

from fm3_core import Partition, PartitionError, localize, needs, patterns
from fm3_core.partition import token_ranges

LAW = settings(deadline=None, max_examples=100)


@st.composite
def partitions(draw):
    tokens, size, ranks = draw(st.integers(0, 30)), draw(st.integers(1, 6)), draw(st.integers(1, 4))
    owners = draw(
        st.lists(st.integers(0, ranks - 1), min_size=-(-tokens // size), max_size=-(-tokens // size))
    )
    return Partition(
        tokens, size, tuple(tuple(np.flatnonzero(np.equal(owners, rank))) for rank in range(ranks))
    )


@LAW
@given(partitions())
def test_every_token_is_owned_once_and_found_again(partition):
    index = [partition.token_index(rank) for rank in range(partition.num_ranks)]
    together = np.concatenate(index)
    assert_equal(np.sort(together), np.arange(partition.num_tokens))
    assert_equal(together[partition.inverse()], np.arange(partition.num_tokens))
    for rank in range(partition.num_ranks):
        assert len(index[rank]) == partition.num_tokens_of(rank) == partition.lengths(rank).sum()
        assert_equal(index[rank], np.sort(index[rank]))
        assert_equal(partition.owner[index[rank] // partition.chunk_size], np.full(len(index[rank]), rank))


@LAW
@given(partitions())
def test_chunks_start_and_end_where_their_tokens_do(partition):
    starts = [partition.chunk_start(chunk) for chunk in range(partition.num_chunks)]
    lengths = [partition.chunk_length(chunk) for chunk in range(partition.num_chunks)]
    assert starts == [sum(lengths[:chunk]) for chunk in range(partition.num_chunks)]
    assert sum(lengths) == partition.num_tokens
    for rank in range(partition.num_ranks):
        chunks = list(partition.chunks_of(rank))
        assert partition.offsets(rank).tolist() == [starts[chunk] for chunk in chunks]
        assert partition.lengths(rank).tolist() == [lengths[chunk] for chunk in chunks]


@pytest.mark.parametrize(
    ("tokens", "ranks"), [(698, 4), (7, 2), (7 * 3 + 3, 3), (7 * 8 + 3, 8), (5, 1), (3, 5)]
)
@pytest.mark.parametrize("size", [1, 4, 16])
def test_any_length_is_shared_out_without_padding(tokens, ranks, size):
    num_chunks = -(-tokens // size)
    partition = Partition(tokens, size, tuple(tuple(range(rank, num_chunks, ranks)) for rank in range(ranks)))
    assert sum(partition.num_tokens_of(rank) for rank in range(ranks)) == tokens
    assert_equal(np.sort(partition.inverse()), np.arange(tokens))


def test_two_documents_zigzag_on_two_ranks():
    partition = Partition(16, 2, ((0, 3, 4, 7), (1, 2, 5, 6)))
    assert partition.token_index(0).tolist() == [0, 1, 6, 7, 8, 9, 14, 15]
    mask = patterns.causal_document([8, 8])
    work = [
        int(localize(mask, partition.offsets(r), partition.lengths(r)).visible_pairs()[0, 0])
        for r in range(2)
    ]
    assert work == [36, 36]


def test_contiguous_halves_of_uneven_documents_are_uneven_work():
    partition = Partition(16, 8, ((0,), (1,)))
    mask = patterns.causal_document([4, 12])
    work = [
        int(localize(mask, partition.offsets(r), partition.lengths(r)).visible_pairs()[0, 0])
        for r in range(2)
    ]
    assert work == [10 + 10, 4 * 8 + 36]


def test_a_rank_without_chunks_owns_nothing():
    partition = Partition(6, 2, ((0, 1, 2), ()))
    assert (
        partition.token_index(1).tolist()
        == partition.offsets(1).tolist()
        == partition.lengths(1).tolist()
        == []
    )
    assert partition.num_tokens_of(1) == 0


def test_a_chunk_beyond_any_integer_width_holds_every_token():
    partition = Partition(8, 10**20, ((), (0,)))
    assert partition.token_index(1).tolist() == list(range(8))
    assert partition.lengths(1).tolist() == [8]


def test_no_tokens_are_no_chunks():
    partition = Partition(0, 4, ((), ()))
    assert partition.num_chunks == 0
    assert partition.inverse().tolist() == partition.owner.tolist() == []


def test_a_partition_is_a_value():
    lists = Partition(np.int64(6), 2, [[0, np.int32(2)], np.array([1])])
    assert lists == Partition(6, 2, ((0, 2), (1,)))
    assert hash(lists) == hash(Partition(6, 2, ((0, 2), (1,))))
    assert lists.chunks_by_rank == ((0, 2), (1,))
    assert not lists.owner.flags.writeable
    again = pickle.loads(pickle.dumps(lists))
    assert again == lists
    assert not again.owner.flags.writeable


def test_padding_chunks_need_nothing():
    partition = Partition(16, 4, ((0, 1), (2, 3)))
    needed = needs(patterns.causal_document([8], padding=8), chunk_size=4)
    assert not needed[list(partition.chunks_of(1))].any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Partition(8, 2, ((0, 1), (1, 2, 3))), "chunk 1 is owned by rank 0 and again by rank 1"),
        (lambda: Partition(8, 2, ((0, 1, 1), (2, 3))), "chunk 1 is owned by rank 0 and again by rank 0"),
        (lambda: Partition(8, 2, ((0,), (3,))), "chunk 1 is owned by no rank (2 of 4 chunks are missing)"),
        (
            lambda: Partition(10**12, 1, ((0,), (3,))),
            "chunk 1 is owned by no rank (999999999998 of 1000000000000 chunks are missing)",
        ),
        (lambda: Partition(8, 2, ((1, 0), (2, 3))), "rank 0: chunk 0 follows chunk 1; chunks must ascend"),
        (lambda: Partition(8, 2, ((0, 2, 1), (3,))), "rank 0: chunk 1 follows chunk 2; chunks must ascend"),
        (lambda: Partition(8, 2, ((0, 1, 2, 4),)), "rank 0: chunk must be in 0..3, got 4"),
        (lambda: Partition(8, 2, ((0, 1, 2, -1),)), "rank 0: chunk must be in 0..3, got -1"),
        (lambda: Partition(8, 2, ((0, 1, 2.0, 3),)), "rank 0: chunk must be an integer, got 2.0 (float)"),
        (lambda: Partition(0, 2, ((0,),)), "rank 0: chunk must be in 0..-1, which holds no number, got 0"),
        (lambda: Partition(8, 2, ()), "chunks_by_rank must name at least one rank, got none"),
        (lambda: Partition(8, 2, (0, 1, 2, 3)), "chunks_by_rank[0] must be a sequence, got 0 (int)"),
        (lambda: Partition(8, 2, 4), "chunks_by_rank must be a sequence, got 4 (int)"),
        (lambda: Partition(8, 0, ((),)), "chunk_size must be >= 1, got 0"),
        (lambda: Partition(-1, 1, ((),)), "num_tokens must be >= 0, got -1"),
        (lambda: Partition(2, 2, ((0,),)).chunks_of(1), "rank must be in 0..0, got 1"),
        (lambda: Partition(2, 2, ((0,),)).chunk_start(1), "chunk must be in 0..0, got 1"),
    ],
)
def test_what_is_no_partition_is_refused_by_name(call, message):
    with pytest.raises(PartitionError) as caught:
        call()
    assert str(caught.value) == message


@LAW
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), max_size=5))
def test_token_ranges_are_the_ranges_one_after_another(pairs):
    offsets = np.array([offset for offset, _ in pairs], dtype=np.int64)
    lengths = np.array([length for _, length in pairs], dtype=np.int64)
    expected = [token for offset, length in pairs for token in range(offset, offset + length)]
    assert_equal(token_ranges(offsets, lengths), np.array(expected, dtype=np.int64))
