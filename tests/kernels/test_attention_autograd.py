"""Attention as a differentiable operation."""

from __future__ import annotations

import pytest
import torch
from attention_compare import Inputs, random_inputs, run_plainly
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fm3_core import patterns
from fm3_kernels import DeviceMask, attention, attention_forward, engines

MASK = patterns.causal_document([3, 0, 5, 1]) & patterns.sliding_window(9, 2)
BLIND = patterns.causal(7, 4)


def leaves(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v that require gradients."""
    return tuple(x.clone().requires_grad_() for x in (inputs.q, inputs.k, inputs.v))


@pytest.mark.parametrize("engine", ["tiled", "reference"])
def test_gradients_through_out_and_lse_agree_with_finite_differences(engine: str) -> None:
    inputs = random_inputs(MASK, query_heads=4, kv_heads=2, dim=3, value_dim=2, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda q, k, v: attention(q, k, v, MASK, return_lse=True, engine=engine), leaves(inputs)
    )


def test_gradients_agree_with_finite_differences_where_rows_see_nothing() -> None:
    inputs = random_inputs(BLIND, dim=3, value_dim=2, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda q, k, v: attention(q, k, v, BLIND), leaves(inputs))


def test_autograd_gives_the_plain_gradients() -> None:
    inputs = random_inputs(MASK, query_heads=4, kv_heads=2, dtype=torch.float64)
    q, k, v = leaves(inputs)
    out, lse = attention(q, k, v, DeviceMask.from_mask(MASK), return_lse=True)
    torch.autograd.backward([out, lse], [inputs.dout, inputs.dlse])
    plain = run_plainly(inputs)
    for x, name in ((q, "dq"), (k, "dk"), (v, "dv")):
        torch.testing.assert_close(x.grad, plain[name])


def test_lse_alone_can_be_differentiated() -> None:
    inputs = random_inputs(MASK, dtype=torch.float64)
    q, k, v = leaves(inputs)
    attention(q, k, v, MASK, return_lse=True)[1].sum().backward()
    assert v.grad.count_nonzero() == 0
    assert q.grad.count_nonzero() > 0
    torch.testing.assert_close(k.grad.sum(), k.grad.sum().nan_to_num())


def test_a_gradient_of_lse_that_is_nan_in_blind_rows_is_ignored() -> None:
    q, k, v = leaves(random_inputs(BLIND))
    out, lse = attention(q, k, v, BLIND, return_lse=True)
    dlse = torch.where(torch.isneginf(lse), torch.nan, 1.0)
    torch.autograd.backward([out, lse], [torch.ones_like(out), dlse])
    assert all(torch.isfinite(x.grad).all() for x in (q, k, v))


def test_two_uses_in_one_graph_add_their_gradients() -> None:
    q, k, v = leaves(random_inputs(MASK, dtype=torch.float64))
    once = torch.autograd.grad(attention(q, k, v, MASK).sum(), [q, k, v])
    twice = torch.autograd.grad((attention(q, k, v, MASK) + attention(q, k, v, MASK)).sum(), [q, k, v])
    for mine, theirs in zip(once, twice, strict=True):
        torch.testing.assert_close(2 * mine, theirs)


def test_a_retained_graph_gives_the_same_bits_again() -> None:
    q, k, v = leaves(random_inputs(MASK))
    out = attention(q, k, v, MASK)
    first = torch.autograd.grad(out.sum(), [q, k, v], retain_graph=True)
    again = torch.autograd.grad(out.sum(), [q, k, v])
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(first, again, strict=True))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_gives_the_same_bits(use_reentrant: bool) -> None:
    q, k, v = leaves(random_inputs(MASK))
    plain = torch.autograd.grad(attention(q, k, v, MASK).square().sum(), [q, k, v])
    out = checkpoint(lambda *x: attention(*x, MASK), q, k, v, use_reentrant=use_reentrant)
    out.square().sum().backward()
    assert all(torch.equal(x.grad, right) for x, right in zip((q, k, v), plain, strict=True))


def test_second_derivatives_are_refused() -> None:
    q, k, v = leaves(random_inputs(MASK))
    (dq,) = torch.autograd.grad(attention(q, k, v, MASK).square().sum(), [q], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dq.sum().backward()


def test_only_the_gradients_asked_for_are_returned() -> None:
    q, k, v = leaves(random_inputs(MASK))
    out = attention(q, k.detach(), v.detach(), MASK)
    out.sum().backward()
    assert q.grad is not None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_dtypes_of_results_and_gradients(dtype: torch.dtype) -> None:
    q, k, v = leaves(random_inputs(MASK, dtype=dtype))
    out, lse = attention(q, k, v, MASK, return_lse=True, deterministic=True)
    out.sum().backward()
    assert {out.dtype, q.grad.dtype, k.grad.dtype, v.grad.dtype} == {dtype}
    assert lse.dtype == torch.promote_types(dtype, torch.float32)


@pytest.mark.parametrize("engine", ["tiled", "reference"])
def test_forward_leaves_partial_results_in_a_wider_dtype_on_request(engine: str) -> None:
    inputs = random_inputs(MASK, dtype=torch.bfloat16)
    wide, _ = attention_forward(inputs.q, inputs.k, inputs.v, MASK, out_dtype=torch.float32, engine=engine)
    narrow, _ = attention_forward(inputs.q, inputs.k, inputs.v, MASK, engine=engine)
    assert (wide.dtype, narrow.dtype) == (torch.float32, torch.bfloat16)
    assert torch.equal(wide.bfloat16(), narrow)
    assert not torch.equal(wide, narrow.float())


@pytest.mark.parametrize("engine", sorted({"tiled", "reference"} & set(engines.names())))
def test_forward_outside_of_autograd_records_nothing(engine: str) -> None:
    q, k, v = leaves(random_inputs(MASK))
    out, lse = attention_forward(q, k, v, MASK, engine=engine)
    assert not out.requires_grad
    assert not lse.requires_grad


def test_a_host_mask_and_its_device_mask_give_the_same_bits() -> None:
    inputs = random_inputs(MASK)
    mine = attention(inputs.q, inputs.k, inputs.v, MASK)
    theirs = attention(inputs.q, inputs.k, inputs.v, DeviceMask.from_mask(MASK))
    assert torch.equal(mine, theirs)


@pytest.mark.parametrize("scale", [0.3, -1.5])
def test_the_scale_reaches_forward_and_backward_of_the_op(scale):
    generator = torch.Generator().manual_seed(2)
    q, k, v = (
        torch.randn(1, 7, 2, 4, generator=generator, dtype=torch.float64, requires_grad=True) for _ in "qkv"
    )
    plain = torch.softmax(scale * torch.einsum("bshd,bthd->bhst", q, k), -1)
    expected = torch.autograd.grad(torch.einsum("bhst,bthd->bshd", plain, v).square().sum(), (q, k, v))
    got = torch.autograd.grad(
        attention(q, k, v, patterns.full(7), softmax_scale=scale).square().sum(), (q, k, v)
    )
    assert all(torch.allclose(mine, theirs, atol=1e-12) for mine, theirs in zip(got, expected, strict=True))
