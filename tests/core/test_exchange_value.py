"""Transfers and exchanges as values."""

from __future__ import annotations

import pickle

import pytest

from fm3_core import Cluster, Exchange, ExchangeError, Partition, Transfer

PARTITION = Partition(7, 2, ((0, 3), (1,), (2,)))
CLUSTER = Cluster(3, 2)
GATHERED = ((0, 3), (0, 1, 3), ())
TRANSFERS = (Transfer(3, 0, 1), Transfer(0, 0, 1))


def _exchange(partition=PARTITION, cluster=CLUSTER, gathered=GATHERED, transfers=TRANSFERS):
    return Exchange(partition, cluster, gathered, transfers)


def test_transfers_are_sorted_and_found_by_source_and_destination():
    exchange = _exchange()
    assert exchange.transfers == (Transfer(0, 0, 1), Transfer(3, 0, 1))
    assert exchange.sends(0) == exchange.receives(1) == exchange.transfers
    assert exchange.sends(1) == exchange.sends(2) == exchange.receives(0) == exchange.receives(2) == ()


def test_gathered_keys_are_the_tokens_of_the_gathered_chunks_with_a_short_tail():
    exchange = _exchange()
    assert exchange.key_index(1).tolist() == [0, 1, 2, 3, 6]
    assert exchange.gathered_lengths(1).tolist() == [2, 2, 1]
    assert exchange.key_index(2).tolist() == exchange.gathered_lengths(2).tolist() == []


def test_an_exchange_is_a_value():
    lists = _exchange(gathered=[[0, 3], [0, 1, 3], []], transfers=list(TRANSFERS))
    assert lists == _exchange()
    assert hash(lists) == hash(_exchange())
    assert pickle.loads(pickle.dumps(lists)) == lists


def test_changing_the_given_lists_afterwards_changes_nothing():
    gathered, transfers = [[0, 3], [0, 1, 3], []], list(TRANSFERS)
    exchange = _exchange(gathered=gathered, transfers=transfers)
    gathered[2].append(1)
    transfers.clear()
    assert exchange == _exchange()


def test_transfers_order_by_chunk_then_ranks_then_route():
    ordered = [
        Transfer(0, 1, 0),
        Transfer(0, 1, 2),
        Transfer(0, 1, 2, (0,)),
        Transfer(0, 2, 0),
        Transfer(1, 0, 1),
    ]
    shuffled = [ordered[i] for i in (3, 1, 4, 0, 2)]
    assert sorted(shuffled) == ordered
    assert Transfer(0, 1, 2).route == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"cluster": Cluster(4)},
            "partition has 3 ranks, cluster 4, gathered 3; they must be equal",
        ),
        ({"gathered": GATHERED[:2]}, "partition has 3 ranks, cluster 3, gathered 2; they must be equal"),
        ({"gathered": ((0, 3), (1, 0, 3), ())}, "gathered[1]: chunk 0 follows chunk 1; chunks must ascend"),
        ({"gathered": ((0, 3), (0, 1, 1), ())}, "gathered[1]: chunk 1 follows chunk 1; chunks must ascend"),
        ({"gathered": ((0, 3), (0, 1, 4), ())}, "gathered[1][2] must be in 0..3, got 4 (1 of 3 are wrong)"),
        (
            {"transfers": (Transfer(0, 0, 3),)},
            "Transfer(chunk=0, source=0, destination=3, route=()): "
            "source, destination and route must be ranks in 0..2",
        ),
        (
            {"transfers": (Transfer(0, 0, 1, (-1,)),)},
            "Transfer(chunk=0, source=0, destination=1, route=(-1,)): "
            "source, destination and route must be ranks in 0..2",
        ),
        (
            {"transfers": (Transfer(4, 0, 1),)},
            "Transfer(chunk=4, source=0, destination=1, route=()): chunk must be in 0..3",
        ),
    ],
)
def test_what_is_no_exchange_of_the_partition_is_refused(change, message):
    with pytest.raises(ExchangeError) as caught:
        _exchange(**change)
    assert str(caught.value) == message


def test_a_rank_that_does_not_exist_is_refused():
    with pytest.raises(ExchangeError, match=r"rank must be in 0\.\.2, got 3"):
        _exchange().sends(3)
