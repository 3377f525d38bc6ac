"""Chunks of keys whose gradients leave while the Hopper backward kernel runs."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from backward_cases import (
    Problem,
    differing,
    gpu_marks,
    noted,
    on_gpu,
    poisoned_memory,
    random_spans,
    run_hopper,
)

from fm3_core import patterns
from fm3_kernels import DeviceMask, attention_forward
from fm3_kernels.backward_lists import BackwardLists
from fm3_kernels.hopper import ReadyFlags, forward_prepared
from fm3_kernels.hopper_backward import DoneFlags, backward_prepared
from fm3_kernels.prepared_mask import prepared

pytestmark = gpu_marks()

MASKS = {
    "causal": patterns.causal(1000),
    "keys that nobody sees": patterns.causal(300, 1000),
    "random spans": random_spans(700, 1000, 4, 2, "runs", seed=6),
}


@pytest.mark.parametrize("kv_grad_dtype", [None, torch.float32], ids=str)
@pytest.mark.parametrize("chunk_size", [128, 384, 1024])
@pytest.mark.parametrize("name", MASKS)
def test_every_chunk_is_called_done_and_the_gradients_are_the_same(
    name: str, chunk_size: int, kv_grad_dtype: torch.dtype | None
) -> None:
    mask = MASKS[name]
    problem = Problem(mask.num_rows, mask.num_keys, batch=2, kv_heads=2, group=2)
    inputs = on_gpu(problem.inputs(mask))
    options = {"kv_grad_dtype": kv_grad_dtype}
    first = run_hopper(inputs, name, **options)
    epochs = torch.zeros(-(-mask.num_keys // chunk_size), dtype=torch.int32, device="cuda")
    for epoch in (1, 7, -3):
        done = DoneFlags(epochs=epochs, epoch=epoch, chunk_size=chunk_size)
        again = run_hopper(inputs, f"{name}, epoch {epoch}", done=done, **options)
        assert epochs.tolist() == [epoch] * len(epochs)
        assert differing(first, again) == []


def test_a_chunk_that_is_called_done_can_be_read_while_others_are_worked_on() -> None:
    # The reader is a forward kernel on another stream, which takes dk and dv for keys and values and waits
    # for the same flags. It sits on multiprocessors that backward leaves free. Memory is poisoned: what is
    # read too early is NaN.
    tokens, chunk_size = 16384, 1024
    x = on_gpu(Problem(tokens, tokens, kv_heads=2, group=4).inputs(patterns.causal(tokens)))
    mask = DeviceMask.from_mask(x.mask, "cuda")
    out, lse = attention_forward(x.q, x.k, x.v, mask, engine="hopper")
    arrays = prepared(mask)
    lists = BackwardLists.from_prepared(arrays, kv_heads=2)
    reads = prepared(DeviceMask.from_mask(patterns.full(128, tokens), "cuda"))
    queries = x.q[:, :128, :2].contiguous()
    epochs = torch.zeros(tokens // chunk_size, dtype=torch.int32, device="cuda")
    side = torch.cuda.Stream()
    for epoch in range(1, 6):
        flags = {"epochs": epochs, "epoch": epoch, "chunk_size": chunk_size}
        torch.cuda.synchronize()
        with noted(f"reading behind the kernel, epoch {epoch}"), poisoned_memory():
            _, dk, dv = backward_prepared(
                x.dout, x.q, x.k, x.v, out, lse, arrays, lists, softmax_scale=128**-0.5, num_ctas=100,
                done=DoneFlags(**flags),
            )  # fmt: skip
            with torch.cuda.stream(side):
                early = forward_prepared(
                    queries, dk, dv, reads, softmax_scale=1e-3, ready=ReadyFlags(**flags), num_ctas=8
                )
            torch.cuda.synchronize()
            late = forward_prepared(queries, dk, dv, reads, softmax_scale=1e-3)
            torch.cuda.synchronize()
        assert torch.isfinite(late[0]).all()
        assert torch.equal(early[0], late[0]), f"epoch {epoch}"


def test_flags_that_do_not_fit_are_refused() -> None:
    x = on_gpu(Problem(300, 300).inputs(patterns.causal(300)))
    mask = DeviceMask.from_mask(x.mask, "cuda")
    arrays = prepared(mask)
    lists = BackwardLists.from_prepared(arrays, kv_heads=1)
    out, lse = attention_forward(x.q, x.k, x.v, mask, engine="hopper")
    right = DoneFlags(epochs=torch.zeros(3, dtype=torch.int32, device="cuda"), epoch=1, chunk_size=128)
    for wrong, message in (
        (dataclasses.replace(right, chunk_size=100), "multiple of 128"),
        (dataclasses.replace(right, epochs=right.epochs[:2]), r"int32 \[3\]"),
        (dataclasses.replace(right, epochs=right.epochs.cpu()), "on cpu"),
    ):
        with pytest.raises(ValueError, match=message):
            backward_prepared(x.dout, x.q, x.k, x.v, out, lse, arrays, lists, softmax_scale=1.0, done=wrong)
