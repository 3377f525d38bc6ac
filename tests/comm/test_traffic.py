"""Predicted bytes."""

from __future__ import annotations

import numpy as np

from fm3_comm import Traffic, bytes_by_pair, gather_bytes, make_exchange, reduce_bytes
from fm3_core import Cluster, Partition, Transfer

# Chunks of 3, 3, 1 tokens.
EXCHANGE = make_exchange(Partition(7, 3, ((0, 2), (1,))), np.ones((3, 3), dtype=bool), Cluster(2))


def test_a_gather_moves_each_chunk_with_its_own_length():
    assert gather_bytes(EXCHANGE, 10) == {Transfer(0, 0, 1): 30, Transfer(1, 1, 0): 30, Transfer(2, 0, 1): 10}


def test_a_reduction_moves_the_same_chunks_the_other_way():
    assert reduce_bytes(EXCHANGE, 10) == {Transfer(0, 1, 0): 30, Transfer(1, 0, 1): 30, Transfer(2, 1, 0): 10}


def test_bytes_sum_by_pair():
    assert bytes_by_pair(gather_bytes(EXCHANGE, 10)) == {(0, 1): 40, (1, 0): 30}


def test_traffic_adds_up_and_can_start_again():
    traffic = Traffic()
    traffic.add(Transfer(0, 0, 1), 5)
    traffic.add(Transfer(0, 0, 1), 5)
    traffic.add(Transfer(2, 0, 1), 1)
    assert (traffic.total, traffic.by_pair) == (11, {(0, 1): 11})
    assert traffic.by_transfer == {Transfer(0, 0, 1): 10, Transfer(2, 0, 1): 1}
    traffic.clear()
    assert (traffic.total, traffic.by_transfer) == (0, {})
