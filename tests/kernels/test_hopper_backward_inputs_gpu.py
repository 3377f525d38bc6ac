"""What the Hopper backward kernel accepts: strides, dtypes, sizes, parts of a larger attention."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from attention_compare import RESULTS
from backward_cases import (
    DTYPES,
    Problem,
    columns,
    differing,
    gpu_marks,
    noted,
    on_gpu,
    poisoned_memory,
    random_spans,
    run_hopper,
)
from torch import Tensor

from fm3_core import BlockMap, patterns
from fm3_kernels import DeviceMask, attention_backward, attention_forward, merge
from fm3_kernels.backward_lists import BackwardLists
from fm3_kernels.hopper_backward import backward_prepared
from fm3_kernels.prepared_mask import PreparedMask, prepared

pytestmark = gpu_marks()

VECTORS = ("lts", "lte", "uts", "ute")
PROBLEM = Problem(300, 300, batch=2, kv_heads=2, group=2)


def every_second_head(x: Tensor) -> Tensor:
    return x.repeat_interleave(2, dim=2)[:, :, ::2]


def heads_before_rows(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def dim_not_contiguous(x: Tensor) -> Tensor:
    return x.transpose(2, 3).contiguous().transpose(2, 3)


def not_aligned(x: Tensor) -> Tensor:
    flat = torch.empty(x.numel() + 1, dtype=x.dtype, device=x.device)
    flat[1:] = x.flatten()
    return flat[1:].view(x.shape)


@pytest.mark.parametrize("view", [every_second_head, heads_before_rows, dim_not_contiguous, not_aligned])
def test_strided_inputs_give_the_same_bits_as_contiguous_ones(view: object) -> None:
    inputs = on_gpu(PROBLEM.inputs(patterns.causal(300)))
    strided = dataclasses.replace(
        inputs, **{name: view(getattr(inputs, name)) for name in ("q", "k", "v", "dout")}
    )
    first = run_hopper(inputs, "contiguous")
    again = run_hopper(strided, str(view))
    assert differing(first, again) == []


def test_an_expanded_gradient_is_copied() -> None:
    inputs = on_gpu(PROBLEM.inputs(patterns.causal(300)))
    ones = dataclasses.replace(inputs, dout=torch.ones_like(inputs.dout))
    expanded = dataclasses.replace(inputs, dout=inputs.dout.new_ones(()).expand(inputs.dout.shape))
    first = run_hopper(ones, "ones")
    assert differing(first, run_hopper(expanded, "expanded")) == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_of_keys_that_nobody_sees_change_no_bit(dtype: torch.dtype) -> None:
    lts = torch.full((300,), 300)
    hidden = [3, 130, 131, 299]
    lts[hidden] = 0
    problem = dataclasses.replace(PROBLEM, dtype=dtype)
    inputs = on_gpu(problem.inputs(columns(300, 300, lts.numpy(), 300)))
    others = dataclasses.replace(inputs, v=inputs.v.clone(), k=inputs.k.clone())
    others.v[:, hidden] = torch.finfo(torch.float16).max / 4
    others.k[:, hidden] = -7.0
    first = run_hopper(inputs, "hidden values")
    again = run_hopper(others, "other hidden values")
    assert differing(first, again) == []


def test_heads_of_a_kv_head_that_is_zero_alone_have_zero_gradients() -> None:
    inputs = on_gpu(Problem(200, 200, kv_heads=2, group=3).inputs(patterns.full(200)))
    inputs.k[:, :, 1], inputs.v[:, :, 1] = 0, 0
    inputs = dataclasses.replace(inputs, dlse=torch.zeros_like(inputs.dlse))
    got = run_hopper(inputs, "a kv head of zeros")
    assert [bool((got["dq"][:, :, h] == 0).all()) for h in range(6)] == [False] * 3 + [True] * 3


def test_a_gradient_of_lse_that_is_nan_where_rows_see_nothing_is_ignored() -> None:
    inputs = on_gpu(Problem(300, 100, kv_heads=1, group=2).inputs(patterns.causal(300, 100)))
    inputs.dlse[:, :, :200] = torch.nan
    got = run_hopper(inputs, "NaN in dlse")
    assert all(torch.isfinite(got[name]).all() for name in ("dq", "dk", "dv"))


def test_parts_of_the_keys_add_up_to_the_whole() -> None:
    mask = random_spans(300, 300, 1, 1, "causal", seed=3)
    x = on_gpu(dataclasses.replace(PROBLEM, batch=1).inputs(mask))
    whole = run_hopper(x, "the whole", kv_grad_dtype=torch.float32)
    pieces = []
    with noted("two parts"), poisoned_memory():
        for keys in (slice(0, 130), slice(130, 300)):
            vectors = [
                torch.tensor(getattr(mask, name)[..., keys]).cuda() for name in ("lts", "lte", "uts", "ute")
            ]
            part = DeviceMask(*vectors, num_rows=300)
            out, lse = attention_forward(
                x.q, x.k[:, keys], x.v[:, keys], part, engine="hopper", out_dtype=torch.float32
            )
            pieces.append((keys, part, out, lse))
        out, lse = merge([(p[2], p[3]) for p in pieces])
        gradients = [
            attention_backward(
                x.dout, x.q, x.k[:, keys], x.v[:, keys], out, lse, part, dlse=x.dlse, engine="hopper",
                kv_grad_dtype=torch.float32,
            )
            for keys, part, _, _ in pieces
        ]  # fmt: skip
        torch.cuda.synchronize()
    dq = sum(g[0].float() for g in gradients)
    for name, mine in (
        ("dq", dq),
        ("dk", torch.cat([g[1] for g in gradients], 1)),
        ("dv", torch.cat([g[2] for g in gradients], 1)),
    ):
        right = whole[name].float()
        assert (mine - right).abs().max() <= 0.02 * right.abs().max(), name


def test_blocks_that_a_map_hides_count_for_nothing() -> None:
    mask = random_spans(700, 500, 2, 1, "runs", seed=4)
    kinds = torch.tensor(BlockMap.from_mask(mask, 128, 128, "exact").kinds)
    keep = torch.rand(kinds.shape, generator=torch.Generator().manual_seed(1)) < 0.6
    x = on_gpu(Problem(700, 500, kv_heads=2, group=2).inputs(mask))
    device_mask = DeviceMask.from_mask(mask, "cuda")
    arrays = PreparedMask.from_mask(device_mask, keep=keep.cuda())
    lists = BackwardLists.from_prepared(arrays, kv_heads=2)
    out, lse = attention_forward(x.q, x.k, x.v, device_mask, engine="hopper")
    with noted("a map of blocks"), poisoned_memory():
        mine = backward_prepared(
            x.dout, x.q, x.k, x.v, out, lse, arrays, lists, softmax_scale=128**-0.5, dlse=x.dlse
        )
        torch.cuda.synchronize()
    right = dense_gradients(x, out, lse, visible=visible_under(mask, keep).cuda())
    for name, got, expected in zip(RESULTS[2:], mine, right, strict=True):
        assert (got.double() - expected).abs().max() <= 0.02 * expected.abs().max(), name


def visible_under(mask: object, keep: Tensor) -> Tensor:
    dense = torch.tensor(mask.to_dense())
    blocks = keep.repeat_interleave(128, 2).repeat_interleave(128, 3)
    return dense & blocks[:, :, : dense.shape[2], : dense.shape[3]]


def dense_gradients(x: object, out: Tensor, lse: Tensor, visible: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The definition in float64, from forward's results; two query heads a kv head, two mask heads."""
    scale = x.q.shape[3] ** -0.5
    q, k, v, dout, out = (t.double().transpose(1, 2) for t in (x.q, x.k, x.v, x.dout, out))
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    seen = visible.repeat_interleave(2, 1)
    p = torch.where(seen, torch.exp(q @ k.mT * scale - lse.double().nan_to_num(neginf=0)[..., None]), 0.0)
    ds = p * (dout @ v.mT - ((dout * out).sum(-1) - x.dlse.double())[..., None])
    dq, dk, dv = ds @ k * scale, ds.mT @ q * scale, p.mT @ dout
    return dq.transpose(1, 2), *(y.unflatten(1, (2, 2)).sum(2).transpose(1, 2) for y in (dk, dv))


@pytest.mark.slow
def test_many_tiny_sequences() -> None:
    q, k, v, dout = (
        torch.randn(2840, 32, 16, 128, device="cuda", dtype=torch.bfloat16, generator=seeded(i))
        for i in range(4)
    )
    mask = DeviceMask.from_mask(patterns.causal(32), "cuda")
    with noted("2840 sequences of 32 tokens"), poisoned_memory():
        out, lse = attention_forward(q, k, v, mask, engine="hopper")
        got = attention_backward(dout, q, k, v, out, lse, mask, engine="hopper")
        torch.cuda.synchronize()
    some = slice(None, None, 71)
    right = attention_backward(
        dout[some], q[some], k[some], v[some], out[some], lse[some], mask, engine="tiled"
    )
    for name, mine, expected in zip(RESULTS[2:], got, right, strict=True):
        assert torch.isfinite(mine).all(), name
        assert (mine[some].float() - expected.float()).abs().max() <= 0.02 * expected.abs().max(), name


@pytest.mark.slow
def test_offsets_beyond_two_to_the_31() -> None:
    tokens, heads, dim = 2**17 + 128, 128, 128  # 2^31 + 2^21 elements of each tensor
    mask = DeviceMask.from_mask(patterns.sliding_window(tokens, 200), "cuda")
    make = {"device": "cuda", "dtype": torch.bfloat16}
    q, k, v, dout = (torch.randn(1, tokens, heads, dim, generator=seeded(i), **make) for i in range(4))
    with noted("2^31 elements"):
        out, lse = attention_forward(q, k, v, mask, engine="hopper")
        got = attention_backward(dout, q, k, v, out, lse, mask, engine="hopper")
        torch.cuda.synchronize()
    last = slice(tokens - 1024, tokens)
    small = DeviceMask.from_mask(patterns.sliding_window(1024, 200), "cuda")
    part = [x[:, last, -1:] for x in (dout, q, k, v, out)]
    right = attention_backward(*part, lse[:, -1:, last].contiguous(), small, engine="tiled")
    for name, mine, expected in zip(RESULTS[2:], got, right, strict=True):
        apart = (mine[:, last, -1:].float() - expected.float())[:, 256:].abs().max()
        assert apart <= 0.02 * expected.abs().max(), name


def seeded(seed: int) -> torch.Generator:
    return torch.Generator("cuda").manual_seed(seed)


def test_prepared_arrays_are_made_once_a_mask() -> None:
    mask = DeviceMask.from_mask(patterns.causal(300), "cuda")
    assert prepared(mask) is prepared(mask)
