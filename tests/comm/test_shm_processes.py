"""The backend "shm" among real processes: it exchanges, and a rank that dies leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fm3_comm import backends, loopback
from fm3_comm.symmetric import memories, shm
from fm3_core import ExchangeError, UnsupportedError

NUM_RANKS = 3
SHM = backends.get("shm")
pytestmark = pytest.mark.skipif(SHM.why_unavailable() is not None, reason=str(SHM.why_unavailable()))


def _segments():
    return sorted(path.name for path in shm.FOLDER.glob("fm3-*"))


def _run_ranks(tmp_path, scenario):
    """Return (exit code, output) of each rank, and the seconds that all took."""
    script = str(Path(__file__).with_name("shm_process.py"))
    start = time.monotonic()
    processes = [
        subprocess.Popen(
            [sys.executable, script, str(rank), str(NUM_RANKS), str(tmp_path / "store"), scenario],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(NUM_RANKS)
    ]
    try:
        output = [process.communicate(timeout=60) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], output, time.monotonic() - start


def test_ranks_that_are_processes_exchange_and_leave_nothing(tmp_path):
    codes, output, _ = _run_ranks(tmp_path, "well")
    assert (codes, [text for text, _ in output]) == ([0, 0, 0], ["finished\n"] * 3), output
    assert _segments() == []


def test_when_a_rank_is_killed_the_others_stop_with_its_rank_and_nothing_is_left(tmp_path):
    codes, output, seconds = _run_ranks(tmp_path, "killed")
    assert codes == [3, 3, -9], output
    for rank in (0, 1):
        assert output[rank][0].startswith(f"rank {rank} of 3: gather (operation 40), rank "), output
    assert any("rank 2 stopped without a word: its process" in text for text, _ in output[:2]), output
    assert seconds < 50
    assert _segments() == []


def test_names_are_gone_while_the_memory_is_in_use():
    def work(memory):
        buffer = memory.alloc(100)
        memory.barrier([0, 1], 10)
        names = _segments()
        memory.barrier([0, 1], 10)
        return names, len(buffer.local)

    assert memories.get("shm").run(2, work, timeout_seconds=10) == [([], 100)] * 2


def test_a_rank_that_fails_on_the_way_in_leaves_no_name_behind(monkeypatch):
    mapped = shm._map

    def fails_for_peers(name, num_bytes, *, create):
        if not create:
            raise OSError(f"no way to {name.name[:4]}")
        return mapped(name, num_bytes, create=create)

    monkeypatch.setattr(shm, "_map", fails_for_peers)
    with pytest.raises(OSError, match="no way to fm3-"):
        SHM.run(2, lambda handle: None, timeout_seconds=10)
    assert _segments() == []


def test_ranks_on_several_hosts_are_refused(monkeypatch):
    hosts = iter(["here", "there"])
    monkeypatch.setattr(shm, "_host", lambda: next(hosts))
    with pytest.raises(UnsupportedError, match="the ranks are on several hosts: here, there"):
        SHM.run(2, lambda handle: None, timeout_seconds=10)


def test_without_the_extension_the_reason_says_how_to_get_it(monkeypatch):
    def absent():
        raise ImportError("No module named 'fm3_comm._shm'")

    monkeypatch.setattr(shm, "_extension", absent)
    assert "fm3_comm._shm was not built" in SHM.why_unavailable()
    assert "C++17 compiler" in SHM.why_unavailable()
    with pytest.raises(UnsupportedError, match=r"backend 'shm': fm3_comm\._shm was not built"):
        SHM.connect()


def test_where_there_is_no_shared_memory_the_reason_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(shm, "FOLDER", tmp_path / "nowhere")
    assert "nowhere to write to" in SHM.why_unavailable()


@pytest.mark.parametrize("name", ["in_process", "shm"])
def test_handles_are_made_where_other_ranks_meet_and_are_their_own_group(name):
    def work(meeting):
        handle = backends.get(name).connect(meeting, timeout_seconds=10)
        assert backends.get(name).connect(handle) is handle
        texts = handle.share(f"rank {handle.rank}")
        handle.close()
        return texts

    assert loopback.run(2, work) == [["rank 0", "rank 1"]] * 2


@pytest.mark.parametrize("name", ["in_process", "shm"])
def test_a_rank_that_does_not_come_is_named_within_the_timeout(name, make_case):
    case = make_case(2, 12, 2, density=1.0)

    def work(handle):
        if handle.rank == 1:
            time.sleep(1.0)
        handle.start_gather(case.exchange, *case.local(handle.rank)).wait()

    start = time.monotonic()
    with pytest.raises(
        ExchangeError, match=r"rank 0 of 2: gather \(operation 0\), rank 1: rank 1 sent nothing"
    ):
        backends.get(name).run(2, work, timeout_seconds=0.3)
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("name", ["in_process", "shm"])
def test_a_rank_that_leaves_without_starting_is_named_at_once(name, make_case):
    case = make_case(2, 12, 2, density=1.0)

    def work(handle):
        if handle.rank == 0:
            handle.start_gather(case.exchange, *case.local(0)).wait()

    start = time.monotonic()
    with pytest.raises(ExchangeError, match="rank 1 has finished without starting this operation"):
        backends.get(name).run(2, work, timeout_seconds=30)
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("name", ["in_process", "shm"])
def test_segments_leave_while_later_ones_are_still_computed(name, make_case):
    case = make_case(3, 24, 2, density=1.0)

    def work(handle):
        dk, dv = (torch.full_like(tensor, torch.nan) for tensor in case.partials(handle.rank))
        reduction = handle.open_reduce(case.exchange, dk, dv, segments=3)
        for segment, (start, end) in enumerate(reduction.segments):
            for mine, partial in zip((dk, dv), case.partials(handle.rank), strict=True):
                mine[:, start:end] = partial[:, start:end]
            reduction.work_done(segment)
            dk[:, start:end] = torch.nan
        with pytest.raises(ExchangeError, match="segment 1 was done already"):
            reduction.work_done(1)
        return reduction.wait(), reduction.segments

    for rank, ((dk, dv), segments) in enumerate(backends.get(name).run(3, work, timeout_seconds=30)):
        assert segments == ((0, 8), (8, 16), (16, 24))
        assert torch.equal(dk, case.sums(rank)[0])
        assert torch.equal(dv, case.sums(rank)[1])


@pytest.mark.parametrize("name", ["in_process", "shm"])
def test_the_buffer_grows_to_the_largest_operation_and_stays(name, make_case):
    cases = [make_case(2, tokens, 2, density=1.0) for tokens in (8, 40, 8)]

    def work(handle):
        sizes = []
        for case in cases:
            handle.start_gather(case.exchange, *case.local(handle.rank)).wait()
            handle.start_reduce(case.exchange, *case.partials(handle.rank)).wait()
            sizes.append(handle._site.buffer.num_bytes)
        return sizes

    for small, large, again in backends.get(name).run(2, work, timeout_seconds=30):
        assert small < large == again
