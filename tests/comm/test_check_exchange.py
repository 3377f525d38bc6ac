"""check_exchange refuses whatever is not exactly what the mask needs, and names it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fm3_comm import check_exchange, make_exchange
from fm3_core import Cluster, Exchange, ExchangeError, Partition, Transfer

PARTITION = Partition(8, 2, ((0, 1), (2,), (3,)))
NEEDS = np.tril(np.ones((4, 4), dtype=bool))
GOOD = make_exchange(PARTITION, NEEDS, Cluster(3))


def _with(transfers, gathered=GOOD.gathered):
    return Exchange(PARTITION, Cluster(3), gathered, tuple(transfers))


def test_the_right_exchange_passes():
    check_exchange(GOOD, NEEDS)


def test_a_missing_transfer_is_named():
    with pytest.raises(ExchangeError, match="chunk 2 of source 1 never arrives at destination 2"):
        check_exchange(_with(t for t in GOOD.transfers if t != Transfer(2, 1, 2)), NEEDS)


def test_a_doubled_transfer_is_named():
    with pytest.raises(
        ExchangeError, match=r"chunk 2 arrives 2 times at destination 2, from sources \[1, 1\]"
    ):
        check_exchange(_with([*GOOD.transfers, Transfer(2, 1, 2)]), NEEDS)


def test_a_chunk_that_nobody_needs_is_named():
    with pytest.raises(
        ExchangeError, match="chunk 3 moves from source 2 to destination 0, which gathers none"
    ):
        check_exchange(_with([*GOOD.transfers, Transfer(3, 2, 0)]), NEEDS)


def test_a_transfer_to_itself_is_named():
    with pytest.raises(
        ExchangeError, match="chunk 2 from source 1 to destination 1: a rank must not send to itself"
    ):
        check_exchange(_with([*GOOD.transfers, Transfer(2, 1, 1)]), NEEDS)


def test_a_source_that_does_not_own_the_chunk_is_named():
    others = [t for t in GOOD.transfers if t != Transfer(0, 0, 2)]
    with pytest.raises(
        ExchangeError, match="chunk 0 from source 1 to destination 2: the chunk's owner is rank 0"
    ):
        check_exchange(_with([*others, Transfer(0, 1, 2)]), NEEDS)


def test_a_gathered_chunk_too_few_is_named():
    few = ((0, 1), (0, 1), GOOD.gathered[2])
    with pytest.raises(ExchangeError, match="destination 1 needs chunk 2 of source 1 and does not gather it"):
        check_exchange(_with(GOOD.transfers, few), NEEDS)


def test_a_gathered_chunk_too_many_is_named():
    many = ((0, 1, 3), *GOOD.gathered[1:])
    with pytest.raises(ExchangeError, match="chunk 3 is gathered at destination 0, no row of which sees it"):
        check_exchange(_with([*GOOD.transfers, Transfer(3, 2, 0)], many), NEEDS)


def test_a_route_in_a_circle_is_named():
    others = [t for t in GOOD.transfers if t != Transfer(0, 0, 2)]
    with pytest.raises(
        ExchangeError, match=r"chunk 0 from source 0 to destination 2: route .* passes a rank twice"
    ):
        check_exchange(_with([*others, Transfer(0, 0, 2, (0,))]), NEEDS)


def test_sends_and_receives_that_do_not_pair_are_named():
    class Lossy(Exchange):
        def receives(self, rank):
            return super().receives(rank)[1:]

    lossy = Lossy(PARTITION, Cluster(3), GOOD.gathered, GOOD.transfers)
    with pytest.raises(
        ExchangeError, match="chunk 0 from source 0 to destination 1: sent 1 times, received 0 times"
    ):
        check_exchange(lossy, NEEDS)


def test_needs_of_another_mask_are_refused():
    with pytest.raises(ExchangeError, match="destination 0 needs chunk 3 of source 2"):
        check_exchange(GOOD, np.ones((4, 4), dtype=bool))


def test_every_violation_is_told_and_of_many_their_number():
    with pytest.raises(ExchangeError, match=r"chunk 0 .*; .*chunk 1 .*; .*chunk 2 .* \(and 4 more\)"):
        check_exchange(_with([], ((), (), ())), np.ones((4, 4), dtype=bool))


def test_needs_of_the_wrong_shape_are_refused():
    with pytest.raises(ExchangeError, match=r"needs must be bool \[4, 4\]"):
        check_exchange(GOOD, np.ones((3, 3), dtype=bool))


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(2, 8))
def test_an_exchange_with_any_one_transfer_dropped_is_refused(seed, num_ranks, num_chunks):
    rng = np.random.default_rng(seed)
    chunks = tuple(tuple(range(rank, num_chunks, num_ranks)) for rank in range(num_ranks))
    needs = np.ones((num_chunks, num_chunks), dtype=bool)
    exchange = make_exchange(Partition(num_chunks, 1, chunks), needs, Cluster(num_ranks))
    victim = int(rng.integers(len(exchange.transfers)))
    transfers = exchange.transfers[:victim] + exchange.transfers[victim + 1 :]
    lost = exchange.transfers[victim]
    with pytest.raises(
        ExchangeError, match=f"chunk {lost.chunk} of source {lost.source} .* {lost.destination}"
    ):
        check_exchange(dataclasses.replace(exchange, transfers=transfers), needs)
