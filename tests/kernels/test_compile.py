"""torch.compile over attention: one graph, the same results and gradients as without it."""

from __future__ import annotations

import pytest
import torch
from attention_compare import random_inputs
from attention_masks import MASKS

from fm3_kernels import DeviceMask, attention, attention_forward

NAMES = ["causal_document", "causal, more rows", "random_eviction"]


def _leaves(inputs):
    return [x.clone().requires_grad_() for x in (inputs.q, inputs.k, inputs.v)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("on_device", [False, True], ids=["ColumnMask", "DeviceMask"])
def test_a_compiled_call_is_one_graph_with_the_same_bits(name, on_device):
    inputs = random_inputs(MASKS[name], query_heads=4, kv_heads=2)
    mask = DeviceMask.from_mask(inputs.mask) if on_device else inputs.mask

    def step(q, k, v):
        out, lse = attention(2 * q, k, v, mask, return_lse=True, softmax_scale=0.3)
        return out.sin(), lse

    eager, compiled = _leaves(inputs), _leaves(inputs)
    expected = step(*eager)
    found = torch.compile(step, fullgraph=True, backend="aot_eager")(*compiled)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    gradients = [torch.randn_like(x).nan_to_num() for x in expected]
    torch.autograd.backward(expected, gradients)
    torch.autograd.backward(found, gradients)
    for one, other in zip(compiled, eager, strict=True):
        assert torch.equal(one.grad, other.grad)


def test_forward_outside_of_autograd_compiles_with_another_output_dtype():
    inputs = random_inputs(MASKS["causal_document"], dtype=torch.bfloat16)
    mask = DeviceMask.from_mask(inputs.mask)

    def step(q, k, v):
        return attention_forward(q, k, v, mask, out_dtype=torch.float32)

    found = torch.compile(step, fullgraph=True, backend="aot_eager")(inputs.q, inputs.k, inputs.v)
    for one, other in zip(found, step(inputs.q, inputs.k, inputs.v), strict=True):
        assert one.dtype == torch.float32
        assert torch.equal(one, other)
