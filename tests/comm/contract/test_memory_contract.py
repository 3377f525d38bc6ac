"""The contract of every symmetric memory that is registered."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from rank_kinds import ranks_are_threads, runner

from fm3_comm.symmetric import SignalOp, memories
from fm3_core import ExchangeError

TIMEOUT_SECONDS = 30.0
BIG = (1 << 64) - 1


@pytest.fixture(params=memories.names())
def on_ranks(request):
    """Run P ranks of one kind of memory."""
    kind = memories.get(request.param)
    reason = kind.why_unavailable()
    if reason is not None:
        pytest.skip(reason)
    if not ranks_are_threads(request.param):
        request.getfixturevalue("ranks_share_gpus")
    return runner(kind, request.param, TIMEOUT_SECONDS)


@pytest.fixture
def on_threads(on_ranks, request):
    """Run P ranks of a kind whose ranks are threads of this process and its memory the host's."""
    name = request.node.callspec.params["on_ranks"]
    if not ranks_are_threads(name):
        pytest.skip(f"ranks of {name!r} are processes, its memory is a GPU's")
    return on_ranks


def _bytes(*values):
    return torch.tensor(values, dtype=torch.uint8)


def _signal(memory, buffer, pe, *, word=0, value=1, op=SignalOp.SET, data=None, start=0):
    memory.put_signal(data, buffer, start, word=word, value=value, op=op, pe=pe)


def _everybody(memory):
    memory.barrier(range(memory.num_ranks), TIMEOUT_SECONDS)


@pytest.mark.parametrize("num_bytes", [0, 1, 7, 8, 4096, 100_001])
def test_a_buffer_has_its_size_and_is_zero_on_every_rank(on_ranks, num_bytes):
    def work(memory):
        buffer = memory.alloc(num_bytes)
        return buffer.num_bytes, len(buffer.local), int(buffer.local.sum()), buffer.local.dtype

    assert on_ranks(3, work) == [(num_bytes, num_bytes, 0, torch.uint8)] * 3


def test_buffers_do_not_overlap(on_ranks):
    def work(memory):
        first, second = memory.alloc(64), memory.alloc(64)
        first.local.fill_(memory.rank + 1)
        _everybody(memory)
        return second.local.tolist(), first.local.unique().tolist()

    assert on_ranks(2, work) == [([0] * 64, [1]), ([0] * 64, [2])]


def test_data_are_there_when_their_signal_is(on_ranks):
    def work(memory):
        buffer = memory.alloc(4096)
        other = 1 - memory.rank
        for turn in range(1, 40):
            data = torch.full((2048,), turn, dtype=torch.uint8)
            _signal(memory, buffer, other, value=turn, data=data, start=2048)
            assert memory.wait_ge(buffer, 0, turn, TIMEOUT_SECONDS)
            assert buffer.local[2048:].unique().tolist() == [turn]
            memory.quiet()
            _everybody(memory)
        return "right"

    assert on_ranks(2, work) == ["right"] * 2


def test_what_a_rank_wrote_to_its_own_buffer_is_there_when_its_signal_is(on_ranks):
    def work(memory):
        buffer = memory.alloc(1024)
        buffer.local[512:].fill_(memory.rank + 1)
        other = 1 - memory.rank
        _signal(memory, buffer, other)
        assert memory.wait_ge(buffer, 0, 1, TIMEOUT_SECONDS)
        into = torch.empty(512, dtype=torch.uint8)
        memory.get(into, buffer, 512, other)
        memory.quiet()
        _everybody(memory)
        return into.unique().tolist()

    assert on_ranks(2, work) == [[2], [1]]


def test_a_get_copies_the_bytes_that_were_asked_for(on_ranks):
    def work(memory):
        buffer = memory.alloc(16)
        buffer.local.copy_(torch.arange(16, dtype=torch.uint8) + 16 * memory.rank)
        _everybody(memory)
        into = torch.zeros(5, dtype=torch.uint8)
        memory.get(into[1:4], buffer, 3, (memory.rank + 1) % 3)
        memory.quiet()
        _everybody(memory)
        return into.tolist()

    assert on_ranks(3, work) == [[0, 19, 20, 21, 0], [0, 35, 36, 37, 0], [0, 3, 4, 5, 0]]


def test_signals_set_and_add_modulo_two_to_the_64(on_ranks):
    def work(memory):
        buffer = memory.alloc(16)
        _signal(memory, buffer, memory.rank, word=1, value=BIG)
        memory.quiet()
        _signal(memory, buffer, memory.rank, word=1, value=3, op=SignalOp.ADD)
        memory.quiet()
        return memory.read(buffer, 0), memory.read(buffer, 1)

    assert on_ranks(1, work) == [(0, 2)]


def test_a_rank_may_signal_itself(on_ranks):
    def work(memory):
        buffer = memory.alloc(16)
        _signal(memory, buffer, memory.rank, data=_bytes(5), start=8)
        assert memory.wait_ge(buffer, 0, 1, TIMEOUT_SECONDS)
        return buffer.local[8].item()

    assert on_ranks(2, work) == [5, 5]


def test_words_are_compared_as_unsigned_integers(on_ranks):
    def work(memory):
        buffer = memory.alloc(8)
        memory.fetch_or(buffer, 0, 1 << 63, memory.rank)
        return memory.wait_ge(buffer, 0, 5, 0.0), memory.wait_ge(buffer, 0, BIG, 0.01)

    assert on_ranks(1, work) == [(True, False)]


def test_a_wait_that_runs_out_of_time_says_so(on_ranks):
    def work(memory):
        buffer = memory.alloc(8)
        start = time.monotonic()
        return memory.wait_ge(buffer, 0, 1, 0.1), 0.05 < time.monotonic() - start < 5

    assert on_ranks(1, work) == [(False, True)]


def test_fetches_are_atomic_among_ranks(on_ranks):
    def work(memory):
        buffer = memory.alloc(8)
        seen = [memory.fetch_add(buffer, 0, 1, 0) for _ in range(200)]
        _everybody(memory)
        return seen, memory.read(buffer, 0)

    results = on_ranks(4, work)
    assert sorted(value for seen, _ in results for value in seen) == list(range(800))
    assert [total for _, total in results] == [800, 0, 0, 0]


@pytest.mark.parametrize("num_ranks", [2, 5])
def test_a_bitmask_of_all_ranks_fills_and_is_cleared_by_adding(on_ranks, num_ranks):
    def work(memory):
        buffer = memory.alloc(16)
        full = (1 << num_ranks) - 1
        before = memory.fetch_or(buffer, 1, 1 << memory.rank, 0)
        assert before < full
        _everybody(memory)
        seen = memory.read(buffer, 1)
        cleared = memory.fetch_add(buffer, 1, BIG + 1 - full, 0) if memory.rank == 0 else None
        return seen, cleared, memory.read(buffer, 1)

    full = (1 << num_ranks) - 1
    assert on_ranks(num_ranks, work) == [(full, full, 0)] + [(0, None, 0)] * (num_ranks - 1)


def test_nobody_leaves_a_barrier_before_its_team_has_come_and_teams_may_overlap(on_threads):
    came = []

    def work(memory):
        seen = []
        for turn in range(3):
            team = [0, 1, 2] if turn % 2 else [0, 2]
            if memory.rank in team:
                time.sleep(0.02 * memory.rank)
                came.append((turn, memory.rank))
                memory.barrier(team, TIMEOUT_SECONDS)
                seen.append({rank for at, rank in came if at == turn} == set(team))
        return all(seen)

    assert on_threads(3, work) == [True] * 3


def test_a_barrier_that_a_rank_does_not_come_to_names_it(on_ranks):
    def work(memory):
        if memory.rank == 0:
            with pytest.raises(ExchangeError, match=r"rank 1 did not come for 0\.1 s"):
                memory.barrier([0, 1], 0.1)
        return memory.rank

    assert on_ranks(2, work) == [0, 1]


def test_an_address_of_a_peers_bytes_is_given_where_this_process_sees_them(on_threads):
    import ctypes

    def work(memory):
        buffer = memory.alloc(8)
        buffer.local.fill_(memory.rank + 7)
        _everybody(memory)
        seen = ctypes.string_at(memory.peer_ptr(buffer, 1 - memory.rank), 8)
        _everybody(memory)
        return list(seen)

    assert on_threads(2, work) == [[8] * 8, [7] * 8]


def test_a_thread_may_wait_while_another_signals(on_ranks):
    def work(memory):
        buffer = memory.alloc(8)
        told = []
        waiter = threading.Thread(target=lambda: told.append(memory.wait_ge(buffer, 0, 1, TIMEOUT_SECONDS)))
        waiter.start()
        _signal(memory, buffer, memory.rank)
        waiter.join()
        return told

    assert on_ranks(2, work) == [[True], [True]]


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda m, b: m.get(torch.zeros(9, dtype=torch.uint8), b, 8, 0), r"bytes \[8, 17\) are outside of"),
        (lambda m, b: m.get(torch.zeros(1, dtype=torch.uint8), b, -1, 0), r"bytes \[-1, 0\) are outside of"),
        (lambda m, b: m.get(torch.zeros(4), b, 0, 0), r"into must be contiguous uint8 \[bytes\], got"),
        (lambda m, b: m.get(torch.zeros(8, dtype=torch.uint8)[::2], b, 0, 0), "into must be contiguous"),
        (lambda m, b: m.get(_bytes(1), b, 0, 2), r"pe must be a rank in 0\.\.1, got 2"),
        (lambda m, b: _signal(m, b, 0, word=2), r"word 2 is outside of the buffer's 2"),
        (lambda m, b: _signal(m, b, 0, data=_bytes(1), start=16), r"bytes \[16, 17\) are outside"),
        (lambda m, b: m.fetch_or(b, -1, 1, 0), "word -1 is outside of"),
        (lambda m, b: m.wait_ge(b, 2, 1, 0.0), "word 2 is outside of"),
        (lambda m, b: m.read(b, 5), "word 5 is outside of"),
        (lambda m, b: m.alloc(-1), "num_bytes must be"),
        (lambda m, b: m.get(_bytes(1), object(), 0, 0), "object"),
    ],
)
def test_what_is_outside_is_refused(on_ranks, misuse, message):
    def work(memory):
        buffer = memory.alloc(16)
        if memory.rank == 0:
            with pytest.raises((ExchangeError, AttributeError), match=message):
                misuse(memory, buffer)

    on_ranks(2, work)
