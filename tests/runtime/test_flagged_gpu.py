"""Attention over keys that GPUs pull while it runs, P ranks against one; in processes that fork from here."""

from __future__ import annotations

import os
from unittest import mock

import pytest
import torch

import fm3_kernels
from fm3_comm import backends
from fm3_comm.symmetric import memories
from fm3_comm.traffic import gather_bytes, reduce_bytes
from fm3_runtime import ContextParallel, attention, mask_names, named_mask

REASON = memories.get("nvshmem").why_unavailable()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
    pytest.mark.usefixtures("ranks_share_gpus"),
]
LENGTHS = [700, 5, 900, 260, 1, 183]


def _run(num_ranks, work):
    share = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(100 // -(-num_ranks // torch.cuda.device_count()))}
    with mock.patch.dict(os.environ, share):
        return backends.get("nvshmem").run(num_ranks, work, timeout_seconds=60)


def _inputs(tokens):
    generator = torch.Generator().manual_seed(0)
    shapes = ((1, tokens, 4, 64), (1, tokens, 2, 64), (1, tokens, 2, 64))
    return [torch.randn(*shape, generator=generator).bfloat16() for shape in shapes]


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
@pytest.mark.parametrize("name", mask_names())
def test_ranks_equal_one_rank_and_overlap_changes_no_bit(num_ranks, name):
    mask = named_mask(name, LENGTHS)
    inputs = _inputs(mask.num_rows)

    def work(handle):
        outs = []
        for overlap in (True, False):
            options = {"planner": "zigzag", "chunk_size": 128, "overlap": overlap}
            step = ContextParallel(backend=handle, **options).plan(mask)
            local = [step.scatter(x).cuda() for x in inputs]
            outs.append(attention(*local, step, engine="hopper").cpu())
        return step.position_ids(), outs

    right = fm3_kernels.attention(*(x.double() for x in inputs), mask)
    plain = fm3_kernels.attention(*inputs, mask, engine="tiled")
    allowed = 2 * (plain.double() - right).abs().max()
    for tokens, (overlapped, at_once) in _run(num_ranks, work):
        assert torch.equal(overlapped, at_once)
        assert (overlapped.double() - right[:, tokens]).abs().max() <= allowed


def _gradients(local, where, engine):
    """Return dq, dk, dv of the sum of squares, by this rank's GPU."""
    held = [x.cuda().requires_grad_() for x in local]
    loss = attention(*held, where, engine=engine).float().square().sum()
    return [x.cpu() for x in torch.autograd.grad(loss, held)]


def _exact_gradients(inputs, mask):
    """Return the same in float64, without torch's backward: ranks that fork from here later would lose it."""
    exact = [x.double() for x in inputs]
    out, lse = fm3_kernels.attention_forward(*exact, mask, engine="tiled")
    return fm3_kernels.attention_backward(2 * out, *exact, out, lse, mask, engine="tiled")


def _assert_near(mine, right, tokens, of_one_rank):
    """Allow twice the largest error of one rank's GPU."""
    for grad, truth, plain in zip(mine, right, of_one_rank, strict=True):
        allowed = 2 * (plain.double() - truth).abs().max()
        assert (grad.double() - truth[:, tokens]).abs().max() <= allowed


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "no overlap"])
def test_gradients_of_an_engine_without_flags_are_those_of_one_rank(overlap):
    mask = named_mask("causal_document", LENGTHS)
    inputs = _inputs(mask.num_rows)

    def work(handle):
        step = ContextParallel(backend=handle, planner="zigzag", chunk_size=128, overlap=overlap).plan(mask)
        mine = _gradients([step.scatter(x) for x in inputs], step, "tiled")
        return mine, step.position_ids(), _gradients(inputs, mask, "tiled")

    right = _exact_gradients(inputs, mask)
    for mine, tokens, of_one_rank in _run(4, work):
        _assert_near(mine, right, tokens, of_one_rank)


@pytest.mark.parametrize("num_ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("name", ["causal_document", "full", "share_question", "random_eviction"])
def test_gradients_leave_while_they_are_computed_and_no_bit_changes(num_ranks, name):
    mask = named_mask(name, LENGTHS)
    inputs = _inputs(mask.num_rows)

    def work(handle):
        found = []
        for overlap in (True, False, True):
            options = {"planner": "zigzag", "chunk_size": 128, "overlap": overlap}
            step = ContextParallel(backend=handle, **options).plan(mask)
            found.append(_gradients([step.scatter(x) for x in inputs], step, "hopper"))
        return found, step.position_ids(), _gradients(inputs, mask, "hopper")

    right = _exact_gradients(inputs, mask)
    for (overlapped, *others), tokens, of_one_rank in _run(num_ranks, work):
        for other in others:
            assert all(map(torch.equal, overlapped, other))
        _assert_near(overlapped, right, tokens, of_one_rank)


@pytest.mark.parametrize("route", ["flat", "hierarchical"])
def test_bytes_that_leave_are_those_that_the_exchange_predicts(route):
    mask = named_mask("causal_document", LENGTHS)

    token_bytes = 2 * (64 + 64) * 2  # of two kv heads, two bytes an element

    def work(handle):
        options = {"planner": "zigzag", "chunk_size": 128, "route": route, "ranks_per_node": 2}
        step = ContextParallel(backend=handle, gradient_wire="bfloat16", **options).plan(mask)
        held = [step.scatter(x).cuda().requires_grad_() for x in _inputs(mask.num_rows)]
        handle.traffic.clear()
        attention(*held, step, engine="hopper").float().sum().backward()
        torch.cuda.synchronize()

        def mine(predicted, times):
            return {hop: times * n for hop, n in predicted.items() if hop.source == handle.rank}

        gathered = mine(gather_bytes(step.exchange, token_bytes), 2)  # forward and backward
        return handle.traffic.by_transfer, gathered | mine(reduce_bytes(step.exchange, token_bytes), 1)

    for moved, predicted in _run(4, work):
        assert moved == predicted


def test_planning_and_setting_up_an_exchange_wait_for_no_gpu():
    mask = named_mask("causal_document", LENGTHS)

    def work(handle):
        cp = ContextParallel(backend=handle, planner="zigzag", chunk_size=128)
        step = cp.plan(mask)
        local = [step.scatter(x).cuda() for x in _inputs(mask.num_rows)]
        attention(*local, step, engine="hopper")
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        cp.plan(mask)
        attention(*local, step, engine="hopper")
        torch.cuda.set_sync_debug_mode("default")
        return "no host synchronisation"

    assert _run(2, work) == ["no host synchronisation"] * 2
