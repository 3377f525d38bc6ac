"""The Hopper engine inside CUDA graphs and under torch.compile."""

from __future__ import annotations

import pytest
import torch
from hopper_compare import DIMS, needs_hopper, problem, redrawn, run
from pattern_masks import PATTERNS, pattern

from fm3_kernels import DeviceMask, attention, attention_forward
from fm3_kernels.hopper_ops import prepare_mask

pytestmark = needs_hopper


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("prepared_before", [True, False])
def test_a_captured_call_replays_on_new_values(prepared_before, dim):
    x = problem(pattern("share_question", 500, 500), batch=2, heads=4, kv_heads=2, dim=dim)
    mask = DeviceMask.from_mask(x.mask, "cuda")
    options = {"softmax_scale": x.scale, "engine": "hopper"}
    if prepared_before:
        attention_forward(x.q, x.k, x.v, mask, **options)
    q, k, v = (tensor.clone() for tensor in (x.q, x.k, x.v))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = attention_forward(q, k, v, mask, **options)
    for seed in (0, 11, 22):
        y = redrawn(x, seed)
        for held, new in ((q, y.q), (k, y.k), (v, y.v)):
            held.copy_(new)
        out.fill_(torch.nan)
        graph.replay()
        expected = run(y)
        assert torch.equal(out, expected[0])
        assert torch.equal(lse, expected[1])
    # What was derived during the capture belongs to the graph; a later call makes its own.
    again = attention_forward(x.q, x.k, x.v, mask, **options)
    assert torch.equal(again[0], run(x)[0])


@pytest.mark.parametrize("name", ["causal_document", "random_eviction"])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_call_is_one_graph_with_the_same_bits(backend, name):
    x = problem(pattern(name, 300, 300), heads=4, kv_heads=2)
    mask = DeviceMask.from_mask(x.mask, "cuda")

    def step(q, k, v):
        out, lse = attention(q, k, v, mask, return_lse=True, softmax_scale=x.scale, engine="hopper")
        return out, lse

    found = torch.compile(step, fullgraph=True, backend=backend)(x.q, x.k, x.v)
    for mine, theirs in zip(found, run(x), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("name", PATTERNS)
def test_the_operations_keep_torchs_rules(name):
    x = problem(pattern(name, 200, 200))
    vectors = DeviceMask.from_mask(x.mask, "cuda").vectors
    torch.library.opcheck(torch.ops.fm3.hopper_prepare_mask.default, (*vectors, None, 200, 128))
    columns, extrema, row_blocks = prepare_mask(*vectors, None, 200, 128)
    torch.library.opcheck(
        torch.ops.fm3.hopper_forward.default,
        (x.q, x.k, x.v, columns, extrema, row_blocks, None, None, 0, 128, 0.5, False, 0),
    )
