"""What surrounds the Hopper backward kernel: operations, lists, dtypes, refusals; with doubles on a CPU."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
import torch
from attention_compare import RESULTS, assert_near, random_inputs, run_engine
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from fm3_core import UnsupportedError, patterns
from fm3_kernels import DeviceMask, attention, attention_backward, attention_forward, hopper_backward_ops
from fm3_kernels.backward_lists import BackwardLists, backward_lists, repeat_heads
from fm3_kernels.extension import load_extension
from fm3_kernels.hopper_backward import DoneFlags, backward_prepared
from fm3_kernels.prepared_mask import prepared

pytest_plugins = ["hopper_double"]

MASK = patterns.random_eviction(140, 70, heads=2, seed=7)
X = random_inputs(MASK, batch=2, query_heads=4, kv_heads=2, dim=64, value_dim=64, dtype=torch.bfloat16)


def gradients(engine: str, deterministic: bool = False, **options: object) -> dict[str, Tensor]:
    out, lse = attention_forward(X.q, X.k, X.v, MASK, engine=engine)
    found = attention_backward(
        X.dout, X.q, X.k, X.v, out, lse, MASK,
        dlse=X.dlse, deterministic=deterministic, engine=engine, **options,
    )  # fmt: skip
    return dict(zip(RESULTS, (out, lse, *found), strict=True))


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_engine_hands_over_every_argument(deterministic: bool, hopper_double: None) -> None:
    mine, right = gradients("hopper", deterministic), gradients("reference")
    assert [name for name in RESULTS if not torch.equal(mine[name], right[name])] == []


@pytest.mark.parametrize("kv_grad_dtype", [torch.float32, torch.float64, torch.float16])
def test_gradients_of_keys_come_in_the_dtype_asked_for(
    kv_grad_dtype: torch.dtype, hopper_double: None
) -> None:
    mine = gradients("hopper", kv_grad_dtype=kv_grad_dtype)
    wide = gradients("reference", kv_grad_dtype=torch.float32)
    assert mine["dq"].dtype == torch.bfloat16
    assert torch.equal(mine["dk"], wide["dk"].to(kv_grad_dtype))
    assert torch.equal(mine["dv"], wide["dv"].to(kv_grad_dtype))


def test_a_wide_out_keeps_its_precision_in_the_row_sums(hopper_double: None) -> None:
    out, lse = attention_forward(X.q, X.k, X.v, MASK, engine="reference", out_dtype=torch.float32)
    arguments = (X.dout, X.q, X.k, X.v, out, lse, MASK)
    truth = run_engine(X.to(torch.float64), "reference")
    for dlse in (X.dlse, None):
        mine = attention_backward(*arguments, dlse=dlse, engine="hopper")
        right = attention_backward(*arguments, dlse=dlse, engine="reference")
        for name, a, b in zip(RESULTS[2:], mine, right, strict=True):
            assert_near(name, a, b.double(), 1e-6 * float(truth[name].abs().max()))


def test_autograd_and_checkpoints_reach_the_operations(hopper_double: None) -> None:
    leaves = [x.clone().requires_grad_() for x in (X.q, X.k, X.v)]
    mask = DeviceMask.from_mask(MASK)

    def attend(*x: Tensor) -> Tensor:
        return attention(*x, mask, engine="hopper", deterministic=True)

    plain = torch.autograd.grad(attend(*leaves).float().square().sum(), leaves)
    checkpoint(attend, *leaves, use_reentrant=False).float().square().sum().backward()
    assert all(torch.equal(x.grad, right) for x, right in zip(leaves, plain, strict=True))


@pytest.mark.parametrize("prepared_before", [True, False], ids=["prepared before", "prepared inside"])
def test_a_compiled_layer_traces_both_passes_as_one_graph(prepared_before: bool, hopper_double: None) -> None:
    mask, other = DeviceMask.from_mask(MASK), DeviceMask.from_mask(MASK)

    def layer(q: Tensor, k: Tensor, v: Tensor, m: DeviceMask) -> Tensor:
        return torch.tanh(attention(q * 1.5, k, v + 0.5, m, deterministic=True, engine="hopper").float())

    def run(function: object, m: DeviceMask) -> tuple[Tensor, ...]:
        leaves = [x.clone().requires_grad_() for x in (X.q, X.k, X.v)]
        return torch.autograd.grad(function(*leaves, m).sum(), leaves)

    right = run(layer, other)
    if prepared_before:
        run(layer, mask)
    torch._dynamo.reset()
    mine = run(torch.compile(layer, fullgraph=True, backend="aot_eager"), mask)
    assert all(torch.allclose(a, b, atol=0.02, rtol=0.02) for a, b in zip(mine, right, strict=True))


@pytest.mark.parametrize("float_kv", [False, True])
@pytest.mark.parametrize("flagged", [False, True])
def test_fake_kernels_say_what_the_kernels_return(float_kv: bool, flagged: bool) -> None:
    with FakeTensorMode():
        q = torch.empty(4, 140, 2, 64, dtype=torch.bfloat16).transpose(0, 2)
        k = torch.empty(2, 300, 2, 64, dtype=torch.bfloat16)
        columns = torch.empty(1, 2, 3, 4, 128, dtype=torch.int32)
        extrema, row_blocks = columns.new_empty(1, 2, 6, 2, 4), columns.new_empty(1, 2, 2, 4)
        lists = hopper_backward_ops.prepare_backward(
            columns, extrema, row_blocks, None, num_rows=140, num_keys=300, kv_heads=2
        )
        lse = torch.empty(2, 4, 140)
        dq, dk, dv = hopper_backward_ops.backward(
            q, q, k, k, q, lse, None,
            (columns, extrema, row_blocks, None), lists, softmax_scale=1.0, float_kv=float_kv,
            epochs=columns.new_empty(3) if flagged else None,
        )  # fmt: skip
    assert [list(x.shape) for x in lists] == [[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 1, 2]]
    assert [list(x.shape) for x in (dq, dk, dv)] == [[2, 140, 4, 64], [2, 300, 2, 64], [2, 300, 2, 64]]
    assert all(x.is_contiguous() for x in (dq, dk, dv))
    assert [x.dtype for x in (dq, dk, dv)] == [torch.bfloat16] + 2 * [
        torch.float32 if float_kv else torch.bfloat16
    ]


def test_lists_are_kept_for_what_they_depend_on(hopper_double: None) -> None:
    mask = DeviceMask.from_mask(patterns.random_eviction(140, 70, heads=4, seed=7))
    lists = backward_lists(mask, kv_heads=4)
    assert lists is backward_lists(mask, kv_heads=8)
    assert lists is not backward_lists(mask, kv_heads=2)


def test_a_mask_is_prepared_once_for_each_order_of_rows(hopper_double: None) -> None:
    mask = DeviceMask.from_mask(patterns.causal(300))
    usual, by_arrival = prepared(mask), prepared(mask, by_arrival=True)
    assert prepared(mask) is usual
    assert prepared(mask, by_arrival=True) is by_arrival
    assert by_arrival is not usual
    assert by_arrival.columns is usual.columns


def test_mask_heads_that_do_not_fit_kv_heads_are_repeated() -> None:
    mask = DeviceMask.from_mask(patterns.random_eviction(140, 70, heads=3, seed=7))
    assert repeat_heads(mask, query_heads=6, kv_heads=3) is mask
    assert repeat_heads(mask, query_heads=6, kv_heads=6) is mask
    repeated = repeat_heads(mask, query_heads=6, kv_heads=2)
    assert repeated is repeat_heads(mask, query_heads=6, kv_heads=2)
    assert repeated.heads == 6
    assert all(torch.equal(repeated.lts[:, h], mask.lts[:, h // 2]) for h in range(6))


def test_flags_are_set_through_their_operation(hopper_double: None) -> None:
    mask = prepared(DeviceMask.from_mask(MASK))
    lists = BackwardLists.from_prepared(mask, kv_heads=2)
    out, lse = attention_forward(X.q, X.k, X.v, MASK, engine="hopper")
    done = DoneFlags(epochs=torch.zeros(2, dtype=torch.int32), epoch=9, chunk_size=128)
    call = (X.dout, X.q, X.k, X.v, out, lse, mask, lists)
    backward_prepared(*call, softmax_scale=0.125, done=done)
    assert done.epochs.tolist() == [9, 9]
    with pytest.raises(UnsupportedError) as refused:
        backward_prepared(
            *call,
            softmax_scale=0.125,
            done=dataclasses.replace(done, chunk_size=64),
            kv_grad_dtype=torch.float64,
        )
    assert list(refused.value.reasons) == [
        "dk and dv are converted to torch.float64 after they are called done",
        "chunk_size must be a multiple of 128 of at least that, got 64",
    ]


def test_lists_of_another_mask_are_refused(hopper_double: None) -> None:
    mask = prepared(DeviceMask.from_mask(MASK))
    other = prepared(DeviceMask.from_mask(patterns.full(140, 300)))
    lists = BackwardLists.from_prepared(other, kv_heads=2)
    with pytest.raises(UnsupportedError, match=r"the lists are of \[1, 1, 3\] .* the mask has \[1, 2, 2\]"):
        backward_prepared(X.dout, X.q, X.k, X.v, X.dout, X.dlse, mask, lists, softmax_scale=1.0)


def test_lists_for_other_kv_heads_are_refused(hopper_double: None) -> None:
    # Query heads of a kv head follow one order: else the kernel waits for an addition that never comes.
    mask = prepared(DeviceMask.from_mask(patterns.random_eviction(140, 140, heads=2, seed=7)))
    lists = BackwardLists.from_prepared(mask, kv_heads=1)
    with pytest.raises(UnsupportedError, match="the lists are of 2 mask heads a kv head, here there are 1"):
        backward_prepared(X.dout, X.q, X.k, X.v, X.dout, X.dlse, mask, lists, softmax_scale=1.0)


@pytest.mark.parametrize(
    ("kv_heads", "rows", "by_chunk", "pairs"),
    [(8, 32768, False, 1), (8, 1024, False, 6), (8, 32768, True, 32), (1, 64, False, 4)],
)
def test_pairs_side_by_side(kv_heads: int, rows: int, by_chunk: bool, pairs: int) -> None:
    q, k = torch.empty(4, rows, 32, 128, device="meta"), torch.empty(4, 64, kv_heads, 128, device="meta")
    assert hopper_backward_ops.section_pairs(q, k, by_chunk=by_chunk) == pairs


@pytest.mark.skipif(load_extension() is None, reason="fm3_kernels._C was not built here")
@pytest.mark.skipif(torch.cuda.is_available(), reason="a launch on CPU tensors would run here")
def test_the_extension_takes_what_the_operation_gives(
    hopper_double: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without a device the arguments are converted, the sizes checked, and the first launch fails.
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: type("Stream", (), {"cuda_stream": 0}))
    mask = prepared(DeviceMask.from_mask(MASK))
    arrays = (mask.columns, mask.extrema, mask.row_blocks, mask.keep)
    extension = load_extension()
    with pytest.raises(extension.DeviceError, match="count_key_blocks: cuda"):
        hopper_backward_ops._prepare_backward(*arrays, 140, 140, 2)
    lists = BackwardLists.from_prepared(mask, kv_heads=2)
    lists_of = (lists.records, lists.sorted, lists.visits)
    options = (0.125, True, 0)
    with pytest.raises(extension.DeviceError, match="prepare_row_block: cuda"):
        hopper_backward_ops._backward(
            X.dout, X.q, X.k, X.v, None, X.dlse, X.dlse, *arrays, *lists_of, *options
        )
    halves = [x[..., :32].contiguous() for x in (X.dout, X.q, X.k, X.v)]
    monkeypatch.setattr(hopper_backward_ops.hopper_ops, "instance_name", lambda *x, **y: "bf16_dim64")
    with pytest.raises(extension.DeviceError, match="head_dim 32 is not that of"):
        hopper_backward_ops._backward(*halves, None, X.dlse, X.dlse, *arrays, *lists_of, *options)
