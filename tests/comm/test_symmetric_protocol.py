"""The one-sided protocol under an adversarial scheduler: right for every order, caught when spoilt."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol_runs import by_loopback, differences, simulated

from fm3_comm import bytes_by_pair, gather_bytes, make_exchange, reduce_bytes
from fm3_comm.symmetric import (
    InProcessWorld,
    SignalOp,
    SymmetricBackend,
    SymmetricOptions,
    board,
    engine,
    gather,
    interleave,
    reduce,
    simulate,
    site,
)
from fm3_comm.symmetric.program import QUIET, AnyOf
from fm3_comm.symmetric.simulate import Recorder
from fm3_core import Cluster, ExchangeError, Partition

SEEDS = range(8)


@st.composite
def _shapes(draw):
    num_ranks = draw(st.integers(1, 9))
    return {
        "num_ranks": num_ranks,
        "num_tokens": draw(st.integers(0, 30)),
        "chunk_size": draw(st.integers(1, 4)),
        "density": draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])),
        "seed": draw(st.integers(0, 1000)),
        "ranks_per_node": draw(st.integers(1, num_ranks)),
        "route": draw(st.sampled_from(["flat", "hierarchical"])),
        "batch": 1,
        "heads": 1,
    }


@settings(deadline=None, max_examples=60)
@given(_shapes(), st.text("gr", min_size=1, max_size=4), st.integers(0, 1 << 20), st.integers(1, 5))
def test_whatever_the_order_of_events_results_are_bitwise_those_of_messages(
    make_case, shape, plan, seed, segments
):
    cases = [make_case(**shape), make_case(**{**shape, "seed": shape["seed"] + 1, "density": 0.3})]
    assert differences(simulated(cases, plan, seed, segments), by_loopback(cases, plan)) == []


@pytest.mark.parametrize("route", ["flat", "hierarchical"])
def test_layers_forward_then_backward_then_two_steps_alive_at_once_do_not_mix(make_case, route):
    cases = [
        make_case(5, 20, 2, density=d, seed=s, ranks_per_node=2, route=route)
        for d, s in ((1.0, 0), (0.05, 1), (0.7, 2))
    ]
    right = by_loopback(cases, "gggrrrgrg")
    for seed in SEEDS:
        assert differences(simulated(cases, "gggrrrgrg", seed), right) == []


def test_the_same_seed_gives_the_same_order_of_events(make_case):
    case = make_case(4, 24, 2, density=0.7)

    def order(seed):
        world = InProcessWorld(4, seed)
        recorders = [Recorder() for _ in range(4)]
        for memory, recorder in zip(world.memories(), recorders, strict=True):
            handle = SymmetricBackend(memory, timeout_seconds=0, engine=lambda _, r=recorder: r)
            handle.start_gather(case.exchange, *case.local(handle.rank))
        steps = []

        def noted(rank, program):
            for event in program:
                steps.append(rank)
                yield event

        interleave(world, [noted(rank, recorder.program()) for rank, recorder in enumerate(recorders)])
        return steps

    assert order(3) == order(3)
    assert order(3) != order(4)


@pytest.mark.parametrize("num_ranks", [31, 32, 33, 63, 64, 65, 128])
def test_a_bitmask_of_all_other_ranks_fills_and_returns_to_zero(num_ranks):
    everything = np.ones((num_ranks, num_ranks), dtype=bool)
    one_sees_all = everything & (np.arange(num_ranks) == num_ranks // 2)
    partition = Partition(num_ranks, 1, tuple((rank,) for rank in range(num_ranks)))
    exchange = make_exchange(partition, one_sees_all, Cluster(num_ranks))
    handles = {}

    def start(handle):
        handles[handle.rank] = handle
        tokens = len(exchange.key_index(handle.rank))
        partial = torch.full((1, tokens, 1, 1), 2.0 ** (handle.rank % 20))
        return [handle.start_reduce(exchange, partial, partial) for _ in range(2)]

    results = simulate(num_ranks, start, seed=num_ranks)
    owner = num_ranks // 2
    right = float(sum(2.0 ** (rank % 20) for rank in range(num_ranks)))
    assert [dk.item() for dk, _ in results[owner]] == [right, right]
    place = handles[owner]._site
    words = range(-(-num_ranks // 64))
    assert [place.memory.read(place.buffer, place.room.contributors(0, word)) for word in words] == [0] * len(
        words
    )


@pytest.mark.parametrize(("num_ranks", "route"), [(33, "flat"), (65, "hierarchical")])
def test_many_ranks_gather_and_reduce(make_case, num_ranks, route):
    case = make_case(
        num_ranks, num_ranks, 1, density=0.04, batch=1, heads=1, key_dim=1, value_dim=1,
        ranks_per_node=8, route=route,
    )  # fmt: skip
    assert differences(simulated([case], "gr", num_ranks), by_loopback([case], "gr")) == []


class _NoWait(AnyOf):
    def reached(self, memory):
        return True


NO_WAIT = _NoWait(())


def _without(which):
    """Return a change of programs that hardly waits where `which(event)` says so: one turn, then on."""

    def change(program):
        for event in program:
            yield NO_WAIT if which(event) else event

    return change


def _waits_for(text):
    return lambda event: isinstance(event, AnyOf) and any(text in until.what for until in event.untils)


MISSING_WAITS = {
    "readers are not waited for before buffers are overwritten": _waits_for("to be done with operation"),
    "nothing is waited for to be done before flags tell of it": lambda event: event is QUIET,
}


def _caught(cases, plan, **spoilt):
    """Count the seeds at which a spoilt protocol gives a wrong result, an error or a deadlock."""
    right = by_loopback(cases, plan)

    def goes_wrong(seed):
        try:
            return bool(differences(simulated(cases, plan, seed, **spoilt), right))
        except (ExchangeError, KeyError, IndexError, AssertionError):
            return True

    return sum(goes_wrong(seed) for seed in SEEDS)


@pytest.fixture
def layers(make_case):
    """Two layers with different data and needs, relayed."""
    return [
        make_case(6, 36, 2, density=d, seed=s, ranks_per_node=2, route="hierarchical")
        for d, s in ((1.0, 0), (0.4, 1))
    ]


@pytest.mark.parametrize("which", MISSING_WAITS.values(), ids=MISSING_WAITS.keys())
def test_a_wait_that_is_left_out_is_caught(layers, which):
    assert _caught(layers, "ggrrgr") == 0
    assert _caught(layers, "ggrrgr", change=_without(which)) >= len(SEEDS) // 2


def test_adding_partials_before_their_contributors_have_come_is_caught(layers, monkeypatch):
    monkeypatch.setattr(reduce, "_missing", lambda site, work, chunk: [])
    assert _caught(layers, "rr") == len(SEEDS)


def test_segments_that_leave_before_they_are_done_are_caught(make_case, monkeypatch):
    case = make_case(3, 24, 2, density=1.0)

    def never_done(handle):
        return [handle.open_reduce(case.exchange, *case.partials(handle.rank))]

    with pytest.raises(ExchangeError, match="deadlock: rank 0 waits for segment 0 of the backward pass"):
        simulate(3, never_done, seed=0)
    until = site.Site.until
    monkeypatch.setattr(site.Site, "until", lambda self, word, value, peer, what: until(
        self, word, 0 if "segment" in what else value, peer, what))  # fmt: skip
    with pytest.raises(KeyError):
        simulate(3, never_done, seed=0)


def test_reading_a_chunk_before_its_flag_is_caught(layers, monkeypatch):
    monkeypatch.setattr(gather.Site, "until", lambda self, word, value, peer, what: board.Until(
        self.buffer, word, 0, peer, what))  # fmt: skip
    assert _caught(layers, "ggg") >= len(SEEDS) // 2


def test_a_flag_with_the_epoch_before_is_caught(layers, monkeypatch):
    flag = site.Site.flag
    monkeypatch.setattr(site.Site, "flag", lambda self, word, epoch, pe: flag(self, word, epoch - 1, pe))
    assert _caught(layers, "gg") == len(SEEDS)


def test_waiting_for_the_epoch_before_is_caught(layers, monkeypatch):
    until = site.Site.until

    def early(self, word, value, peer, what):
        return until(self, word, value - ("chunk" in what and "partials" not in what), peer, what)

    monkeypatch.setattr(site.Site, "until", early)
    assert _caught(layers, "gggg") >= len(SEEDS) // 2


def test_a_bitmask_that_is_not_cleared_is_caught(layers, monkeypatch):
    monkeypatch.setattr(reduce, "_WORD", 0)
    monkeypatch.setattr(reduce, "mask_of", _once_for_waiting(reduce.mask_of))
    assert _caught(layers, "rrr") >= len(SEEDS) // 2


def _once_for_waiting(mask_of):
    """Return `mask_of` for waits and zeros for the clearing that follows, by the caller's name."""
    import sys

    def chosen(ranks, num_ranks):
        clearing = sys._getframe(1).f_code.co_name == "_sum"
        return [0] if clearing else mask_of(ranks, num_ranks)

    return chosen


def test_a_deadlock_is_named_at_once(make_case):
    case = make_case(2, 8, 2, density=1.0)

    def one_starts(handle):
        return [handle.start_gather(case.exchange, *case.local(0))] if handle.rank == 0 else []

    with pytest.raises(ExchangeError, match="deadlock: rank 0 waits for rank 1 to open operation 1"):
        simulate(2, one_starts, seed=0)


def test_ready_flags_are_set_chunk_by_chunk_and_a_slow_chunk_blocks_no_other(make_case):
    partition = Partition(3, 1, ((0,), (1,), (2,)))
    needs = np.zeros((3, 3), dtype=bool)
    needs[0] = True
    exchange = make_exchange(partition, needs, Cluster(3))
    world = InProcessWorld(3, 5)
    recorders = [Recorder() for _ in range(3)]
    ones = torch.ones(1, 1, 1, 1)
    handles = [
        SymmetricBackend(memory, timeout_seconds=0, engine=lambda _, r=recorder: r)
        for memory, recorder in zip(world.memories(), recorders, strict=True)
    ]
    warm = [handle.start_gather(exchange, ones, ones) for handle in handles]
    pending = [handle.start_gather(exchange, ones, ones) for handle in handles]
    seen = []

    def watched(program):
        for event in program:
            seen.append(pending[0].ready_chunks())
            yield event

    def slow(program):
        """Do nothing until rank 0 has all but this rank's chunk."""
        for event in program:
            while warm[0]._future.done() and (0, 1) not in seen:
                yield QUIET
            yield event

    programs = [watched(recorders[0].program()), recorders[1].program(), slow(recorders[2].program())]
    interleave(world, programs)
    assert seen[0] == (0,)
    assert (0, 1) in seen
    assert pending[0].ready_chunks() == (0, 1, 2)


@pytest.mark.parametrize("segments", [1, 2, 3, 4, 8])
def test_segments_change_no_bit_of_a_reduction(make_case, segments):
    case = make_case(4, 30, 3, density=0.8, ranks_per_node=2, route="hierarchical")
    assert differences(simulated([case], "r", 1, segments), by_loopback([case], "r")) == []


@pytest.mark.parametrize("order", [(2, 0, 1), (1, 2, 0)])
def test_segments_leave_in_whatever_order_they_get_done(make_case, order):
    case = make_case(3, 24, 2, density=1.0)
    world = InProcessWorld(3, 1)
    recorders = [Recorder() for _ in range(3)]
    handles = [
        SymmetricBackend(memory, timeout_seconds=0, engine=lambda _, r=recorder: r)
        for memory, recorder in zip(world.memories(), recorders, strict=True)
    ]
    opened = [
        handle.open_reduce(case.exchange, *case.partials(handle.rank), segments=3) for handle in handles
    ]

    def computing(rank, program):
        """Finish a segment at each of the first turns; the last rank, all before anything else."""
        left = list(order)
        for event in program:
            for segment in left[: 3 if rank == 2 else 1]:
                opened[rank].work_done(segment)
                left.remove(segment)
            yield event

    interleave(world, [computing(rank, recorder.program()) for rank, recorder in enumerate(recorders)])
    for rank, reduction in enumerate(opened):
        for total, right in zip(reduction.wait(), case.sums(rank), strict=True):
            assert torch.equal(total, right)


@pytest.mark.parametrize("route", ["flat", "hierarchical"])
def test_bytes_read_and_written_remotely_are_the_predicted_ones(make_case, monkeypatch, route):
    case = make_case(6, 40, 3, density=0.6, ranks_per_node=3, route=route)
    token_bytes = case.k.shape[0] * case.k.shape[2] * (case.k.shape[3] + case.v.shape[3]) * 4
    read, written = Counter(), Counter()
    get, put = site.Site.get, site.Site.put

    def counted_get(self, into, start, pe):
        read[pe, self.rank] += len(into)
        return get(self, into, start, pe)

    def counted_put(self, data, start, *, word, epoch, pe):
        written[self.rank, pe] += len(data)
        return put(self, data, start, word=word, epoch=epoch, pe=pe)

    monkeypatch.setattr(site.Site, "get", counted_get)
    monkeypatch.setattr(site.Site, "put", counted_put)
    assert differences(simulated([case], "gr", 0), by_loopback([case], "gr")) == []
    assert read == bytes_by_pair(gather_bytes(case.exchange, token_bytes))
    assert written == bytes_by_pair(reduce_bytes(case.exchange, token_bytes))


@pytest.mark.parametrize("segments", [0, -1, 1.5, True])
def test_a_number_of_segments_that_is_none_is_refused(segments):
    with pytest.raises(ExchangeError, match="backward_segments must be"):
        SymmetricOptions(backward_segments=segments)


def test_that_a_rank_has_left_is_said_after_what_it_signalled_last_has_arrived(monkeypatch):
    here, there = InProcessWorld(2).memories()
    # Nothing arrives by chance, only by `quiet`.
    monkeypatch.setattr(here.world.schedule, "tick", lambda: None)
    place, peer = site.Site(here), site.Site(there)
    last_word, seen = 0, []

    def signals_and_ends():
        here.put_signal(None, place.board.buffer, 0, word=last_word, value=7, op=SignalOp.SET, pe=1)
        return
        yield

    def say(state, reason):
        seen.append((state, there.read(peer.board.buffer, last_word)))

    monkeypatch.setattr(place.board, "say", say)
    runner = engine.Engine(place, timeout_seconds=5)
    runner.start("a last signal", signals_and_ends).result()
    assert there.read(peer.board.buffer, last_word) == 0
    runner.close()
    assert seen == [(board.LEFT, 7)]
