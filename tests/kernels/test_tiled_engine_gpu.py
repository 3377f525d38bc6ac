"""The torch engine on a CUDA device."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from attention_compare import RESULTS, Inputs, assert_near, plain_errors, random_inputs, run_engine, same_bits
from attention_masks import MASKS

from fm3_core import patterns
from fm3_kernels import DeviceMask

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]


def on_gpu(inputs: Inputs) -> Inputs:
    """Return the same problem on the CUDA device."""
    tensors = {name: getattr(inputs, name).cuda() for name in ("q", "k", "v", "dout", "dlse")}
    return dataclasses.replace(inputs, **tensors)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_a_cuda_device_gives_the_oracles_results(name: str, dtype: torch.dtype) -> None:
    draws = [
        random_inputs(MASKS[name], batch=2, query_heads=4, kv_heads=2, dtype=dtype, seed=i) for i in range(3)
    ]
    truth = run_engine(draws[0].to(torch.float64), "reference")
    errors = [plain_errors(draw) for draw in draws]
    got = run_engine(on_gpu(draws[0]), "tiled")
    for result in RESULTS:
        assert_near(result, got[result].cpu(), truth[result], max(error[result] for error in errors))


def test_twenty_passes_on_a_cuda_device_give_the_same_bits() -> None:
    inputs = on_gpu(random_inputs(patterns.causal_document([1500, 2596]), query_heads=8, kv_heads=1))
    first = run_engine(inputs, "tiled")
    for _ in range(20):
        again = run_engine(inputs, "tiled")
        assert [name for name in RESULTS if not same_bits(first[name], again[name])] == []


def test_flashmask_indices_on_a_cuda_device_are_read_without_waiting_for_it() -> None:
    indices = torch.full((1, 1, 300, 1), 300, dtype=torch.int32, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        mask = DeviceMask.from_startend_row_indices(indices, causal=True)
        mask.block_extrema(128)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert mask.to_mask() == patterns.causal(300)
