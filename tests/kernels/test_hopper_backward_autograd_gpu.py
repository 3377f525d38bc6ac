"""Training through the Hopper engine: autograd, checkpoints, torch.compile, CUDA graphs."""

from __future__ import annotations

import pytest
import torch
from attention_compare import Inputs, difference, plain_errors, run_engine
from backward_cases import DIMS, DTYPES, Problem, gpu_marks, noted, on_gpu
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fm3_core import patterns
from fm3_kernels import DeviceMask, attention, attention_backward, attention_forward

pytestmark = gpu_marks()

MASK = patterns.share_question([[90, 40, 61], [100, 9]])
PROBLEM = Problem(300, 300, batch=2, kv_heads=2, group=2)


def leaves(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v that require gradients."""
    return tuple(x.clone().requires_grad_() for x in (inputs.q, inputs.k, inputs.v))


def device_mask() -> DeviceMask:
    return DeviceMask.from_mask(MASK, "cuda")


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_autograd_gives_the_oracles_gradients(dtype: torch.dtype, dim: int) -> None:
    inputs = Problem(300, 300, 2, 2, 2, dim, dtype).inputs(MASK)
    x = on_gpu(inputs)
    q, k, v = leaves(x)
    with noted("autograd"):
        out, lse = attention(q, k, v, device_mask(), return_lse=True, engine="hopper")
        torch.autograd.backward([out, lse], [x.dout, x.dlse])
        torch.cuda.synchronize()
    truth = run_engine(inputs.to(torch.float64), "reference")
    errors = plain_errors(inputs)
    found = [difference(n, x.grad.cpu(), truth[n], errors[n]) for n, x in (("dq", q), ("dk", k), ("dv", v))]
    assert [message for message in found if message] == []


def test_two_uses_in_one_graph_add_their_gradients() -> None:
    q, k, v = leaves(on_gpu(PROBLEM.inputs(MASK)))
    other = DeviceMask.from_mask(patterns.causal(300), "cuda")
    with noted("two uses"):

        def gradients(*masks: DeviceMask) -> list[Tensor]:
            outs = [attention(q, k, v, m, deterministic=True, engine="hopper").float() for m in masks]
            return [g.float() for g in torch.autograd.grad(sum(o.square().sum() for o in outs), [q, k, v])]

        mask = device_mask()
        apart = [gradients(mask), gradients(other)]
        both = gradients(mask, other)
    for name, mine, one, two in zip("qkv", both, *apart, strict=True):
        assert torch.equal(mine.bfloat16(), (one.bfloat16() + two.bfloat16())), f"d{name}"


def test_two_graphs_alive_go_back_in_either_order() -> None:
    first, second = (leaves(on_gpu(PROBLEM.inputs(MASK, seed=seed))) for seed in (1, 2))
    mask = device_mask()
    with noted("two graphs"):
        alone = [
            torch.autograd.grad(attention(*x, mask, deterministic=True, engine="hopper").sum(), x)
            for x in (first, second)
        ]
        outs = [attention(*x, mask, deterministic=True, engine="hopper") for x in (first, second)]
        again = [torch.autograd.grad(outs[i].sum(), (first, second)[i]) for i in (1, 0)][::-1]
    for mine, right in zip(again, alone, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, right, strict=True))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_gives_the_same_bits(use_reentrant: bool) -> None:
    q, k, v = leaves(on_gpu(PROBLEM.inputs(MASK)))
    mask = device_mask()

    def attend(*x: Tensor) -> Tensor:
        return attention(*x, mask, deterministic=True, engine="hopper")

    with noted("checkpoint"):
        plain = torch.autograd.grad(attend(q, k, v).float().square().sum(), [q, k, v])
        checkpoint(attend, q, k, v, use_reentrant=use_reentrant).float().square().sum().backward()
    assert all(torch.equal(x.grad, right) for x, right in zip((q, k, v), plain, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("prepared_before", [True, False], ids=["prepared before", "prepared inside"])
def test_a_compiled_layer_trains_as_the_eager_one(prepared_before: bool) -> None:
    inputs = on_gpu(PROBLEM.inputs(MASK))
    mask, eager_mask = device_mask(), device_mask()

    def layer(q: Tensor, k: Tensor, v: Tensor, m: DeviceMask) -> Tensor:
        return torch.tanh(attention(q * 1.5, k, v + 0.5, m, deterministic=True, engine="hopper").float())

    def gradients(function: object, m: DeviceMask) -> tuple[Tensor, ...]:
        x = leaves(inputs)
        return torch.autograd.grad(function(*x, m).sum(), x)

    with noted("torch.compile"):
        right = gradients(layer, eager_mask)
        if prepared_before:
            gradients(layer, mask)
        torch._dynamo.reset()
        mine = gradients(torch.compile(layer, fullgraph=True), mask)
        torch.cuda.synchronize()
    for name, a, b in zip("qkv", mine, right, strict=True):
        assert (a.float() - b.float()).abs().max() <= 0.01 * b.float().abs().max(), f"d{name}"


def test_a_cuda_graph_of_a_pass_forward_and_back() -> None:
    problems = [on_gpu(PROBLEM.inputs(MASK, seed=seed)) for seed in (1, 2)]
    held = on_gpu(PROBLEM.inputs(MASK, seed=3))  # the memory that the graph reads
    mask = device_mask()

    def step(x: Inputs) -> tuple[Tensor, ...]:
        out, lse = attention_forward(x.q, x.k, x.v, mask, engine="hopper")
        return out, *attention_backward(
            x.dout, x.q, x.k, x.v, out, lse, mask, deterministic=True, engine="hopper"
        )

    with noted("a CUDA graph"):
        right = [step(x) for x in problems]
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = step(held)
        for i in (0, 1, 0):
            for name in ("q", "k", "v", "dout"):
                getattr(held, name).copy_(getattr(problems[i], name))
            for result in results:
                result.fill_(torch.nan)
            graph.replay()
            torch.cuda.synchronize()
            assert all(torch.equal(a, b) for a, b in zip(results, right[i], strict=True)), f"problem {i}"


def test_a_pass_back_never_waits_for_the_device() -> None:
    q, k, v = leaves(on_gpu(PROBLEM.inputs(MASK)))
    mask = device_mask()
    with noted("no synchronisation"):
        attention(q, k, v, mask, engine="hopper").sum().backward()
        torch.cuda.set_sync_debug_mode("error")
        try:
            attention(q, k, v, mask, deterministic=True, engine="hopper").sum().backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
