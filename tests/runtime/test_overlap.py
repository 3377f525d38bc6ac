"""Attention over keys that arrive: the same bits whatever comes when, and nothing waits that need not."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from ranks import attend_on_rank, worst_difference

from fm3_comm import backends, loopback
from fm3_comm.rank_threads import run_rank_threads
from fm3_comm.symmetric import InProcessWorld, SymmetricBackend
from fm3_comm.symmetric.device_tables import GatherTables
from fm3_core import ColumnMask, patterns
from fm3_kernels import TiledEngine, hopper
from fm3_kernels.prepared_mask import prepared
from fm3_runtime import ContextParallel, attention
from fm3_runtime.arriving import arriving
from fm3_runtime.flagged import flagged_forward, takes_flags

LENGTHS = [30, 0, 41, 7, 1, 13, 48]
OPTIONS = {"planner": "striped", "chunk_size": 5}
HERE = [name for name in backends.names() if backends.get(name).why_unavailable() is None]
SEEDS = range(6)


@dataclasses.dataclass(frozen=True)
class Noted:
    """The tiled engine, which notes how many keys each call has."""

    calls: list

    def why_unsupported(self, *arguments, **options):
        return []

    def forward(self, q, k, v, mask, **options):
        self.calls.append(("forward", k.shape[1]))
        return TiledEngine().forward(q, k, v, mask, **options)

    def backward(self, dout, q, k, v, out, lse, mask, **options):
        self.calls.append(("backward", k.shape[1]))
        return TiledEngine().backward(dout, q, k, v, out, lse, mask, **options)


def _results(step, inputs, dout, dlse, **options):
    held = [step.scatter(x).clone().requires_grad_() for x in inputs]
    out, lse = attention(*held, step, return_lse=True, **options)
    torch.autograd.backward([out, lse], [step.scatter(dout), step.scatter(dlse, dim=2)])
    return out.detach(), lse.detach(), *(x.grad for x in held)


def _attend(backend, problem, dtype=torch.float32, deterministic=True, engine="tiled", **options):
    step = ContextParallel(backend=backend, **OPTIONS, **options).plan(problem.mask)
    inputs = [x.to(dtype) for x in problem.inputs]
    return _results(
        step, inputs, problem.dout.to(dtype), problem.dlse.float(), deterministic=deterministic, engine=engine
    )


def _same_bits(first, second):
    return all(
        torch.equal(a, b)
        for mine, other in zip(first, second, strict=True)
        for a, b in zip(mine, other, strict=True)
    )


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_with_and_without_overlap_deterministic_results_are_the_same_bits(make_problem, name, dtype):
    problem = make_problem(patterns.causal_document(LENGTHS))
    run = backends.get(name).run
    plain, overlapped = (
        run(4, lambda backend, o=overlap: _attend(backend, problem, dtype, overlap=o))
        for overlap in (False, True)
    )
    assert _same_bits(plain, overlapped)
    assert _same_bits(plain, loopback.run(4, lambda backend: _attend(backend, problem, dtype)))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("route", ["flat", "hierarchical"])
def test_whatever_arrives_when_the_results_are_the_same_bits(make_problem, seed, route):
    problem = make_problem(patterns.causal_document(LENGTHS))
    options = {"route": route, "ranks_per_node": 2}
    memories = InProcessWorld(4, seed).memories()

    def body(rank):
        handle = SymmetricBackend(memories[rank], timeout_seconds=60)
        results = [_attend(handle, problem, deterministic=False, **options) for _ in range(2)]
        handle.close()
        return results

    arrived = run_rank_threads(4, body, lambda rank, error: None)
    plain = loopback.run(4, lambda backend: _attend(backend, problem, overlap=False, **options))
    for layer in range(2):
        assert _same_bits([results[layer] for results in arrived], plain)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("deterministic", [False, True])
def test_ranks_equal_one_rank_with_and_without_overlap(make_problem, name, overlap, deterministic):
    problem = make_problem(patterns.prefix_lm_document([(7, 30), (1, 20), (13, 61), (5, 12)]))
    results = backends.get(name).run(
        5,
        lambda backend: attend_on_rank(
            backend, problem.mask, problem.inputs, problem.dout, problem.dlse, overlap=overlap, **OPTIONS
        ),
    )
    assert worst_difference(results, problem.one_rank()) < 1e-12


def test_the_plain_order_is_one_call_over_all_keys_each_way(make_problem):
    problem = make_problem(patterns.causal_document(LENGTHS))

    def work(backend):
        engine = Noted([])
        _attend(backend, problem, overlap=False, deterministic=False, engine=engine)
        tokens = len(
            ContextParallel(backend=backend, **OPTIONS).plan(problem.mask).local_mask.vectors[0][0, 0]
        )
        return engine.calls == [("forward", tokens), ("backward", tokens)]

    assert loopback.run(3, work) == [True] * 3


def test_parts_are_disjoint_and_together_all_gathered_keys(make_problem):
    problem = make_problem(patterns.causal(140))

    def work(backend):
        step = ContextParallel(backend=backend, **OPTIONS).plan(problem.mask)
        gathered = list(step.exchange.gathered[step.rank])
        forward = [chunk for part in (step.own_chunks, *step.arriving_parts) for chunk in part]
        back = [chunk for part in step.backward_parts for chunk in part]
        return sorted(forward) == gathered == back, len(step.arriving_parts), len(step.backward_parts)

    assert loopback.run(4, work) == [(True, 4, 4)] * 4


class Late:
    """A pending of which the parts come in the order given, each only after the one before was used."""

    def __init__(self, order, used):
        self.order, self.used, self.waited = order, used, False

    def first_ready(self, groups):
        chunks = self.order[len(self.used)]
        return [tuple(group) for group in groups].index(chunks)

    def take(self, chunks):
        return torch.zeros(1, len(chunks), 1, 1), torch.zeros(1, len(chunks), 1, 1)

    def wait(self):
        self.waited = True
        return torch.zeros(1, 99, 1, 1), torch.zeros(1, 99, 1, 1)


@pytest.mark.parametrize("order", [[(0,), (1, 2), (3,)], [(3,), (0,), (1, 2)], [(1, 2), (3,), (0,)]])
def test_parts_are_taken_as_they_come_and_a_late_one_holds_up_no_other(order):
    step = ContextParallel(backend=loopback.solo(), chunk_size=1).plan(patterns.causal(4))
    used, k = [], torch.zeros(1, 4, 1, 1)
    pending = Late(order, used)
    for number, part_k, _ in arriving(step, pending, k, k, [(0,), (1, 2), (3,)]):
        used.append([(0,), (1, 2), (3,)][number])
        assert part_k.shape[1] == len(used[-1])
    assert used == order
    assert not pending.waited


def test_without_overlap_nothing_is_taken_before_everything_is_here():
    step = ContextParallel(backend=loopback.solo(), chunk_size=1, overlap=False).plan(patterns.causal(4))
    pending, k = Late([], []), torch.zeros(1, 4, 1, 1)
    for _ in arriving(step, pending, k, k, [(0,), (1, 2), (3,)]):
        assert pending.waited


def test_own_keys_are_computed_before_a_silent_backend_has_the_others(make_problem):
    problem = make_problem(patterns.causal(60))
    events = []

    class Waited:
        def __init__(self, pending):
            self.pending = pending

        def wait(self):
            events.append("wait")
            return self.pending.wait()

    class Silent(loopback.Loopback):
        def start_gather(self, exchange, k, v):
            return Waited(super().start_gather(exchange, k, v))

    def work(backend):
        backend.__class__ = Silent if backend.rank == 0 else loopback.Loopback
        engine = Noted(events if backend.rank == 0 else [])
        step = ContextParallel(backend=backend, **OPTIONS).plan(problem.mask)
        q, k, v = (step.scatter(x) for x in problem.inputs)
        attention(q, k, v, step, engine=engine)
        return step.num_local_tokens

    tokens = loopback.run(2, work)[0]
    assert events[:2] == [("forward", tokens), "wait"]
    assert events[2][0] == "forward"


@pytest.mark.parametrize("name", ["in_process", "shm"])
def test_gradients_of_a_segment_leave_before_the_next_is_computed(make_problem, monkeypatch, name):
    if name not in HERE:
        pytest.skip(str(backends.get(name).why_unavailable()))
    problem = make_problem(patterns.causal(80))
    events = {rank: [] for rank in range(2)}

    def work(backend):
        mine = events[backend.rank]
        opened = backend.open_reduce

        def noted(*arguments, **options):
            reduction = opened(*arguments, **options)
            done = reduction.work_done
            reduction.work_done = lambda segment: (mine.append("leaves"), done(segment))
            return reduction

        backend.open_reduce = noted
        return _attend(backend, problem, deterministic=False, engine=Noted(mine))

    backends.get(name).run(2, work)
    for rank in range(2):
        back = [event if event == "leaves" else event[0] for event in events[rank] if event[0] != "forward"]
        assert back == ["backward", "leaves"] * 4


def test_bfloat16_results_by_parts_are_as_near_to_the_truth_as_at_once(make_problem):
    problem = make_problem(patterns.causal_document(LENGTHS), dim=16, value_dim=16)

    def errors(overlap):
        results = backends.get("in_process").run(
            4, lambda backend: _attend(backend, problem, torch.bfloat16, deterministic=False, overlap=overlap)
        )
        right = loopback.run(4, lambda b: _attend(b, problem, torch.float64, deterministic=False))
        worst = [0.0] * 5
        for mine, truth in zip(results, right, strict=True):
            off = [
                (a.double() - b.double()).nan_to_num(0, 0, 0).abs().max().item()
                for a, b in zip(mine, truth, strict=True)
            ]
            worst = [max(pair) for pair in zip(worst, off, strict=True)]
        return worst

    for by_parts, at_once in zip(errors(True), errors(False), strict=True):
        assert by_parts <= 2 * at_once


@pytest.mark.parametrize("rank", range(3))
def test_keys_in_the_order_of_slots_have_their_masks_and_places_without_a_token_are_hidden(rank):
    mask = patterns.causal_document(LENGTHS)

    def work(backend):
        step = ContextParallel(backend=backend, planner="striped", chunk_size=6).plan(mask)
        return step, GatherTables(step.exchange, backend.rank).slot_tokens()

    step, tokens = loopback.run(3, work)[rank]
    dense = mask.to_dense()[0, 0][step.position_ids().numpy()]
    columns = step.slot_mask(tokens, torch.device("cpu"))
    seen = ColumnMask(*(vector.numpy() for vector in columns.vectors), num_rows=columns.num_rows).to_dense()[
        0, 0
    ]
    order = tokens.reshape(-1)
    assert (order == -1).any() == (mask.num_rows - 1 in order)
    assert not seen[:, order < 0].any()
    assert (seen[:, order >= 0] == dense[:, order[order >= 0]]).all()
    assert step.slot_mask(tokens.copy(), torch.device("cpu")) is columns


@pytest.mark.parametrize("overlap", [True, False])
def test_over_a_gpus_gather_row_blocks_and_flags_are_for_keys_that_arrive(overlap, monkeypatch):
    calls, held = [], []
    monkeypatch.setattr(
        hopper, "forward_prepared", lambda *arguments, ready, **options: calls.append((*arguments, ready))
    )
    mask = patterns.causal_document([300, 200, 268])

    def work(backend):
        options = {"planner": "zigzag", "chunk_size": 128, "overlap": overlap}
        step = ContextParallel(backend=backend, **options).plan(mask)
        return step, GatherTables(step.exchange, backend.rank).slot_tokens()

    step, tokens = loopback.run(2, work)[1]
    q, k, epochs = (torch.empty(1, n, 2, 64, device="meta") for n in (384, tokens.size, 1))
    pending = SimpleNamespace(
        tokens=tokens, k=k, v=k, epochs=epochs, epoch=7, chunk_size=128, num_ctas=9,
        hold=lambda: held.append(True),
    )  # fmt: skip
    flagged_forward(step, q, pending, None)
    slots = step.slot_mask(tokens, q.device)
    flags = hopper.ReadyFlags(epochs=epochs, epoch=7, chunk_size=128) if overlap else None
    assert calls == [(q, k, k, prepared(slots, by_arrival=overlap), flags)]
    assert held == [True] * (not overlap)
    assert prepared(slots, by_arrival=True) is not prepared(slots)


def test_only_the_hopper_engine_over_a_gpus_gather_takes_flags():
    assert not takes_flags(object(), "hopper")
    assert not takes_flags(Late([], []), "auto")
