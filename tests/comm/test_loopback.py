"""What only loopback promises: waits that cannot end are noticed."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch

from fm3_comm import loopback, make_exchange
from fm3_core import Cluster, ExchangeError, Partition


def test_waiting_for_a_rank_that_has_finished_is_an_error_that_names_it():
    def work(handle):
        if handle.rank == 0:
            handle.barrier()

    with pytest.raises(
        ExchangeError, match=r"rank 0 of 2: barrier \(operation 0\), message from rank 1: rank 1 has"
    ):
        loopback.run(2, work)


def test_a_rank_that_keeps_others_waiting_too_long_is_named():
    def work(handle):
        if handle.rank == 1:
            time.sleep(0.4)
        handle.barrier()

    with pytest.raises(ExchangeError, match=r"rank 0 of 2: .* rank 1 sent nothing for 0\.1 s"):
        loopback.run(2, work, timeout_seconds=0.1)


def test_an_operation_that_one_rank_leaves_out_does_not_hang():
    def work(handle):
        if handle.rank == 0:
            handle.share("extra")
        handle.barrier()
        handle.barrier()

    with pytest.raises(ExchangeError, match="its operation is"):
        loopback.run(3, work, timeout_seconds=5)


def test_run_returns_results_by_rank():
    assert loopback.run(5, lambda handle: handle.rank**2) == [0, 1, 4, 9, 16]


def test_ranks_run_at_the_same_time():
    meeting = threading.Barrier(4, timeout=10)
    assert sorted(loopback.run(4, lambda handle: meeting.wait())) == [0, 1, 2, 3]


def test_sixty_five_ranks_meet():
    assert loopback.run(65, lambda handle: len(handle.share(""))) == [65] * 65


def test_system_exit_in_a_rank_stops_all_and_comes_out():
    def work(handle):
        if handle.rank == 1:
            raise SystemExit(3)
        handle.barrier()

    with pytest.raises(SystemExit):
        loopback.run(2, work)


def test_worlds_inside_a_world_are_apart():
    def outer(handle):
        inner = loopback.run(2, lambda nested: nested.share(f"{handle.rank}.{nested.rank}"))
        return handle.share(inner[0][1])

    assert loopback.run(2, outer) == [["0.1", "1.1"]] * 2


def test_solo_is_a_world_of_one_rank():
    exchange = make_exchange(Partition(3, 2, ((0, 1),)), np.ones((2, 2), dtype=bool), Cluster(1))
    handle = loopback.solo()
    k = torch.arange(3.0).reshape(1, 3, 1, 1)
    gathered, _ = handle.start_gather(exchange, k, k).wait()
    assert torch.equal(gathered, k)
    assert gathered.data_ptr() != k.data_ptr()
    assert (handle.rank, handle.num_ranks, handle.traffic.total) == (0, 1, 0)


def test_an_incomplete_exchange_is_refused_before_anything_moves():
    whole = make_exchange(Partition(4, 2, ((0,), (1,))), np.ones((2, 2), dtype=bool), Cluster(2))
    lossy = type(whole)(whole.partition, whole.cluster, whole.gathered, whole.transfers[1:])
    k = torch.ones(1, 2, 1, 1)
    with pytest.raises(
        ExchangeError, match=r"rank 1 must receive each chunk .* exactly once; chunk 0 does not"
    ):
        loopback.run(2, lambda handle: handle.start_gather(lossy, k, k).wait())


def test_a_transfer_from_a_rank_that_does_not_own_the_chunk_is_refused():
    whole = make_exchange(Partition(4, 2, ((0,), (1,))), np.ones((2, 2), dtype=bool), Cluster(2))
    swapped = [type(t)(1 - t.chunk, t.source, t.destination) for t in whole.transfers]
    wrong = type(whole)(whole.partition, whole.cluster, ((0,), (1,)), tuple(swapped))
    k = torch.ones(1, 2, 1, 1)
    with pytest.raises(ExchangeError, match=r"rank [01] must own what it sends"):
        loopback.run(2, lambda handle: handle.start_gather(wrong, k, k).wait())
