"""The order of additions in the Hopper backward kernel: the same bits every time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from backward_cases import (
    DIMS,
    DTYPES,
    Problem,
    differing,
    gpu_marks,
    noted,
    on_gpu,
    random_spans,
    run_hopper,
)

from fm3_core import ColumnMask, patterns
from fm3_kernels import DeviceMask, attention_backward, attention_forward

pytestmark = gpu_marks()


def hidden_blocks() -> ColumnMask:
    """Return causal documents in which nobody sees key blocks 1 and 3."""
    mask = patterns.causal_document([1000, 3096])
    lts = np.array(mask.lts)
    lts[..., 128:256], lts[..., 384:512] = 0, 0
    return ColumnMask(lts, np.full_like(lts, 4096), np.array(mask.uts), np.array(mask.ute), num_rows=4096)


LONG = {
    "causal documents": patterns.causal_document([1000, 3096]),
    "hidden key blocks": hidden_blocks(),
    "full": patterns.full(4096),
    "causal": patterns.causal(4096),
    "share question": patterns.share_question([[900, 100, 600, 448], [1000, 1048]]),
    "global window": patterns.global_sliding_window(4096, 16, 256, 256),
    "random spans": random_spans(4096, 4096, 1, 1, "runs", seed=2),
    "a mask for each head": random_spans(4096, 4096, 8, 1, "runs", seed=2),
    "more rows than keys": patterns.causal(4096, 1000),
}


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("kv_heads", [1, 8])
@pytest.mark.parametrize("name", LONG)
def test_twenty_passes_give_the_same_bits(name: str, kv_heads: int, dim: int) -> None:
    mask = LONG[name]
    problem = Problem(mask.num_rows, mask.num_keys, kv_heads=kv_heads, group=8 // kv_heads, dim=dim)
    inputs = on_gpu(problem.inputs(mask))
    first = run_hopper(inputs, f"{name} {problem}")
    assert all(torch.isfinite(first[x]).all() for x in ("dq", "dk", "dv"))
    for run in range(20):
        num_ctas = (0, 0, 5, 77)[run % 4]
        again = run_hopper(
            inputs, f"{name} {problem} run {run}, {num_ctas} CTAs",
            num_ctas=num_ctas,
        )  # fmt: skip
        assert differing(first, again) == [], f"run {run}, {num_ctas} CTAs"


@pytest.mark.parametrize("seed", range(40))
def test_random_spans_give_the_same_bits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, keys = int(rng.integers(1, 1500)), int(rng.integers(1, 1500))
    kv_heads, group = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    heads = [1, kv_heads, kv_heads * group][seed % 3]
    mask = random_spans(rows, keys, heads, 1, ["free", "runs", "causal"][seed % 3], seed)
    problem = Problem(rows, keys, 2, kv_heads, group, DIMS[seed % 2], DTYPES[seed // 2 % 2], seed=seed)
    inputs = on_gpu(problem.inputs(mask))
    first = run_hopper(inputs, f"{problem}")
    for num_ctas in (0, 1, 2, 7, 0):
        again = run_hopper(inputs, f"{problem} on {num_ctas} CTAs", num_ctas=num_ctas)
        assert differing(first, again) == [], f"{num_ctas} CTAs"


def test_who_does_not_ask_for_it_gets_the_same_bits() -> None:
    mask = LONG["causal documents"]
    x = on_gpu(Problem(4096, 4096, kv_heads=2, group=2).inputs(mask))
    device_mask = DeviceMask.from_mask(mask, "cuda")
    out, lse = attention_forward(x.q, x.k, x.v, device_mask, engine="hopper")
    asked, plain = (
        attention_backward(x.dout, x.q, x.k, x.v, out, lse, device_mask, deterministic=d, engine="hopper")
        for d in (True, False)
    )
    assert all(map(torch.equal, asked, plain))


@pytest.mark.slow
def test_a_thousand_passes_over_a_tiny_problem() -> None:
    mask = patterns.causal_document([100, 212, 200])
    inputs = on_gpu(Problem(512, 512, kv_heads=2).inputs(mask))
    first = run_hopper(inputs, "the first")
    for run in range(1000):
        again = run_hopper(inputs, f"pass {run}")
        assert differing(first, again) == [], f"pass {run}"


@pytest.mark.slow
def test_two_streams_at_once_come_to_an_end() -> None:
    mask = LONG["causal"]
    problem = Problem(4096, 4096, kv_heads=8)
    inputs = [on_gpu(problem.inputs(mask, seed=i)) for i in range(2)]
    device_mask = DeviceMask.from_mask(mask, "cuda")
    results = [attention_forward(x.q, x.k, x.v, device_mask, engine="hopper") for x in inputs]

    def gradients(i: int) -> tuple[torch.Tensor, ...]:
        x = inputs[i]
        return attention_backward(
            x.dout, x.q, x.k, x.v, *results[i], device_mask, deterministic=True, engine="hopper"
        )

    first = [gradients(i) for i in range(2)]
    streams = [torch.cuda.Stream() for _ in inputs]
    torch.cuda.synchronize()
    again = []
    with noted("two streams"):
        for run in range(10):
            with torch.cuda.stream(streams[run % 2]):
                again.append(gradients(run % 2))
        torch.cuda.synchronize()
    for run, found in enumerate(again):
        assert all(torch.equal(x, y) for x, y in zip(first[run % 2], found, strict=True)), f"run {run}"
