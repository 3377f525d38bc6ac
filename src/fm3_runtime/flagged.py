"""Attention in one kernel over keys that arrive while it runs, and gradients that leave while it runs."""

from __future__ import annotations

import torch
from torch import Tensor

from fm3_comm.symmetric import DeviceBackend, DevicePending
from fm3_kernels import Engine, hopper
from fm3_kernels.backward_lists import backward_lists, repeat_heads
from fm3_kernels.hopper_backward import DoneFlags, backward_prepared
from fm3_kernels.prepared_mask import BLOCK_KEYS, prepared
from fm3_runtime.step import Step


def takes_flags(pending: object, engine: str | Engine) -> bool:
    """Say whether the engine waits for a gather's chunks by itself.

    It does if it is asked for, the GPU gathers, and a chunk is a multiple of the kernel's block of 128 keys.
    """
    return (
        isinstance(pending, DevicePending)
        and pending.chunk_size % BLOCK_KEYS == 0
        and (engine == "hopper" or isinstance(engine, hopper.HopperEngine))
    )


def flagged_forward(
    step: Step, q: Tensor, pending: DevicePending, softmax_scale: float | None
) -> tuple[Tensor, Tensor]:
    """Attend to each slot as soon as its flag is set; own keys come first, then the nearest.

    The order of keys is that of the slots, with overlap and without, so that results are the same bits; rows
    whose keys come first come first.

    Args:
        step: who gathers what.
        q: [B, S, Hq, D], this rank's tokens.
        pending: the gather.
        softmax_scale: factor of the scores, None for 1 / sqrt(D).
    """
    ready = None
    if step.overlap:
        ready = hopper.ReadyFlags(epochs=pending.epochs, epoch=pending.epoch, chunk_size=pending.chunk_size)
    else:
        pending.hold()
    return hopper.forward_prepared(
        q,
        pending.k,
        pending.v,
        prepared(step.slot_mask(pending.tokens, q.device), by_arrival=step.overlap),
        softmax_scale=q.shape[3] ** -0.5 if softmax_scale is None else softmax_scale,
        ready=ready,
        num_ctas=pending.num_ctas,
    )


def flagged_backward(
    step: Step,
    dout: Tensor,
    q: Tensor,
    pending: DevicePending,
    out: Tensor,
    lse: Tensor,
    dlse: Tensor | None,
    softmax_scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute gradients in one kernel; a slot's dK and dV leave for their owner as soon as they are final.

    Args:
        step: who gathers what; without overlap they leave when the kernel is done, with the same bits.
        dout: gradient of out, [B, S, Hq, D].
        q: [B, S, Hq, D], this rank's tokens.
        pending: the gather.
        out: the result of `flagged_forward`.
        lse: the result of `flagged_forward`.
        dlse: gradient of lse, or None.
        softmax_scale: factor of the scores, None for 1 / sqrt(D).

    Returns:
        dq, and the sums of all ranks' dk and dv for this rank's tokens in float32.
    """
    assert isinstance(step.backend, DeviceBackend)
    reduction = step.backend.open_device_reduce(step.exchange, pending, wire_dtype=step.wire_dtype)
    pending.hold()
    kv_heads = pending.k.shape[2]
    mask = repeat_heads(step.slot_mask(pending.tokens, q.device), query_heads=q.shape[2], kv_heads=kv_heads)
    dq, dk, dv = backward_prepared(
        dout,
        q,
        pending.k,
        pending.v,
        out,
        lse,
        prepared(mask),
        backward_lists(mask, kv_heads=kv_heads),
        dlse=dlse,
        softmax_scale=q.shape[3] ** -0.5 if softmax_scale is None else softmax_scale,
        kv_grad_dtype=torch.float32,
        done=DoneFlags(epochs=reduction.final, epoch=reduction.epoch, chunk_size=pending.chunk_size),
        num_ctas=pending.num_ctas,
    )
    return dq, *reduction.sums_of(dk, dv, overlap=step.overlap)
