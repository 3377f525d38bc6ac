"""Texts and barriers of every registered backend."""

from __future__ import annotations

import time

import pytest

from fm3_core import ExchangeError, patterns


@pytest.mark.parametrize("text", ["", "rank ä", "x" * 100_000])
def test_share_returns_every_ranks_text_by_rank(run, text):
    shared = run(3, lambda handle: handle.share(f"{handle.rank}{text}" * handle.rank))
    assert shared == [["", f"1{text}", f"2{text}2{text}"]] * 3


def test_share_takes_bytes_too(run):
    assert run(2, lambda handle: handle.share(bytes([0, handle.rank]))) == [[b"\0\0", b"\0\1"]] * 2


def test_nobody_leaves_a_barrier_before_all_have_come(run_threads):
    came = []

    def work(handle):
        time.sleep(0.05 * handle.rank)
        came.append(handle.rank)
        handle.barrier()
        return len(came)

    assert run_threads(3, work) == [3, 3, 3]


def test_traffic_counts_no_shares(run):
    def work(handle):
        handle.share("text")
        handle.barrier()
        return handle.traffic.total

    assert run(2, work) == [0, 0]


def test_sharing_something_else_than_text_is_refused(run):
    with pytest.raises(ExchangeError, match="share takes str or bytes, got int"):
        run(2, lambda handle: handle.share(3))


def test_ranks_can_compare_what_they_hold_before_they_exchange_anything(run):
    lengths = [[4, 12], [4, 12], [8, 8]]
    shared = run(3, lambda handle: handle.share(patterns.causal_document(lengths[handle.rank]).fingerprint))
    assert [[print_ == prints[0] for print_ in prints] for prints in shared] == [[True, True, False]] * 3
