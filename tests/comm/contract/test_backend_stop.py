"""How every registered backend ends: exceptions, aborts, closed handles, threads."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from fm3_core import ExchangeError


def test_an_exception_in_one_rank_stops_the_others_at_once_and_is_raised_with_its_rank(
    run_threads, make_case
):
    case = make_case(4, 24, 2, density=1.0)
    others = []

    def work(handle):
        if handle.rank == 2:
            raise LookupError("no such layer")
        try:
            handle.start_gather(case.exchange, *case.local(handle.rank)).wait()
        except ExchangeError as error:
            others.append(str(error))
            raise

    start = time.monotonic()
    with pytest.raises(LookupError, match="no such layer") as caught:
        run_threads(4, work)
    assert caught.value.__notes__ == ["raised in rank 2 of 4"]
    assert time.monotonic() - start < 10
    assert len(others) == 3
    assert all("rank 2 stopped: LookupError: no such layer" in text for text in others)


def test_a_rank_that_aborts_gives_the_others_its_reason(run):
    def work(handle):
        if handle.rank == 1:
            handle.abort("out of memory")
            return "aborted"
        with pytest.raises(ExchangeError, match=f"rank {handle.rank} of 3: .*rank 1 stopped: out of memory"):
            handle.barrier()
        with pytest.raises(ExchangeError, match="rank 1 stopped: out of memory"):
            handle.share("again")
        return "told"

    assert run(3, work) == ["told", "aborted", "told"]


def test_an_aborted_rank_refuses_to_go_on(run):
    def work(handle):
        handle.abort("enough")
        with pytest.raises(ExchangeError, match=f"rank {handle.rank} stopped: enough"):
            handle.barrier()

    run(1, work)


def test_a_closed_handle_refuses_to_start_and_closes_again_in_peace(run):
    def work(handle):
        handle.barrier()
        handle.close()
        handle.close()
        with pytest.raises(ExchangeError, match=f"rank {handle.rank} of 2: this backend is closed"):
            handle.barrier()

    run(2, work)


def test_what_was_started_before_close_can_be_waited_for_after(run, make_case):
    case = make_case(2, 12, 2, density=1.0)

    def work(handle):
        pending = handle.start_gather(case.exchange, *case.local(handle.rank))
        handle.close()
        return pending.wait()

    for rank, (k, _) in enumerate(run(2, work)):
        assert torch.equal(k, case.k[:, case.gathered(rank)])


def test_no_thread_outlives_a_run_whether_it_ends_well_or_not(run_threads):
    def work(handle):
        handle.barrier()
        raise LookupError(str(handle.rank))

    before = threading.active_count()
    run_threads(3, lambda handle: handle.barrier())
    with pytest.raises(LookupError):
        run_threads(3, work)
    assert threading.active_count() == before
