"""Attention in one kernel over keys that arrive while it runs."""

from __future__ import annotations

from torch import Tensor

from fm3_comm.symmetric import DevicePending
from fm3_kernels import Engine, hopper
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

    The order of keys is that of the slots, with overlap and without, so that results are the same bits.

    Args:
        step: who gathers what.
        q: [B, S, Hq, D], this rank's tokens.
        pending: the gather.
        softmax_scale: factor of the scores, None for 1 / sqrt(D).
    """
    if not step.overlap:
        pending.hold()
    ready = hopper.ReadyFlags(epochs=pending.epochs, epoch=pending.epoch, chunk_size=pending.chunk_size)
    return hopper.forward_prepared(
        q,
        pending.k,
        pending.v,
        prepared(step.slot_mask(pending.tokens, q.device)),
        softmax_scale=q.shape[3] ** -0.5 if softmax_scale is None else softmax_scale,
        ready=ready,
        num_ctas=pending.num_ctas,
    )
