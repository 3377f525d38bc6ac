"""Ranks as forks of this process: results, failures with their rank, and no process left."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time

import pytest

from fm3_comm import rank_forks
from fm3_comm.rank_forks import run_rank_forks
from fm3_core import ExchangeError


def test_ranks_are_processes_that_meet_and_return_their_results():
    mine = os.getpid()

    def body(meeting):
        return meeting.rank, meeting.share(f"rank {meeting.rank}"), os.getpid() != mine

    results = run_rank_forks(3, body, timeout_seconds=30)
    assert results == [(rank, ["rank 0", "rank 1", "rank 2"], True) for rank in range(3)]
    assert multiprocessing.active_children() == []


def test_the_first_failure_is_raised_with_its_rank():
    def body(meeting):
        if meeting.rank == 1:
            raise LookupError("no such layer")
        meeting.barrier()

    with pytest.raises(LookupError, match="no such layer") as caught:
        run_rank_forks(3, body, timeout_seconds=5)
    where, rank = caught.value.__notes__
    assert 'raise LookupError("no such layer")' in where
    assert rank == "raised in rank 1 of 3"
    assert multiprocessing.active_children() == []


def test_a_rank_that_is_killed_is_named_and_no_process_stays():
    def body(meeting):
        meeting.barrier()
        if meeting.rank == 1:
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(ExchangeError, match="rank 1 ended without a result"):
        run_rank_forks(2, body, timeout_seconds=30)
    assert multiprocessing.active_children() == []


def test_a_rank_that_hangs_holds_up_no_failure_of_another(monkeypatch):
    monkeypatch.setattr(rank_forks, "_END_SECONDS", 0.5)

    def body(meeting):
        if meeting.rank == 1:
            raise LookupError("no such layer")
        time.sleep(1000)

    start = time.monotonic()
    with pytest.raises(LookupError, match="no such layer"):
        run_rank_forks(2, body, timeout_seconds=30)
    assert time.monotonic() - start < 10
    assert multiprocessing.active_children() == []
