"""Backward of P ranks where the loss uses one output only, or asks for some gradients only."""

from __future__ import annotations

import pytest
import torch

from fm3_comm import loopback
from fm3_core import patterns
from fm3_runtime import ContextParallel, attention

MASK = patterns.causal_document([13, 0, 20, 8])
ROUNDING = 1e-12
USED = {"out": (True, False), "lse": (False, True), "out and lse": (True, True)}


def _loss(problem, used, out, lse, scatter):
    with_out, with_lse = USED[used]
    return with_out * (out * scatter(problem.dout)).sum() + with_lse * (
        (lse * scatter(problem.dlse, dim=2)).sum() if with_lse else 0.0
    )


@pytest.mark.parametrize("used", USED)
@pytest.mark.parametrize(
    "wanted", [(0, 1, 2), (0,), (1,), (2,), (1, 2)], ids=lambda w: "".join("qkv"[i] for i in w)
)
def test_gradients_that_are_asked_for_equal_those_of_one_rank(make_problem, used, wanted):
    problem = make_problem(MASK)
    whole = [x.clone().requires_grad_(i in wanted) for i, x in enumerate(problem.inputs)]
    out, lse = attention(*whole, MASK, return_lse=True)
    expected = torch.autograd.grad(
        _loss(problem, used, out, lse, lambda x, dim=1: x), [whole[i] for i in wanted], materialize_grads=True
    )

    def on_rank(backend):
        step = ContextParallel(backend=backend, chunk_size=7).plan(MASK)
        held = [x.clone().requires_grad_(i in wanted) for i, x in enumerate(problem.inputs)]
        out, lse = attention(*(step.scatter(x) for x in held), step, return_lse=True)
        loss = _loss(problem, used, out, lse, step.scatter)
        return torch.autograd.grad(loss, [held[i] for i in wanted], materialize_grads=True)

    by_rank = loopback.run(3, on_rank)
    for i, one_rank in enumerate(expected):
        found = torch.stack([gradients[i] for gradients in by_rank]).sum(0)
        assert (found - one_rank).abs().max() < ROUNDING


def test_an_lse_has_no_gradient_for_values(make_problem):
    problem = make_problem(MASK)
    q, k, v = (x.clone().requires_grad_() for x in problem.inputs)
    attention(q, k, v, MASK, return_lse=True)[1].sum().backward()
    assert v.grad is not None
    assert not v.grad.any()
    assert q.grad.any()
    assert k.grad.any()
