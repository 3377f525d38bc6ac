"""Attention on one device or over the ranks of a step: one call for both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, overload

import torch
from torch.autograd.function import once_differentiable

import fm3_kernels
from fm3_core import ColumnMask, UnsupportedError
from fm3_kernels import DeviceMask, Engine
from fm3_runtime import overlap
from fm3_runtime.overlap import Asked
from fm3_runtime.step import Step


@overload
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    where: Step | ColumnMask | DeviceMask,
    *,
    softmax_scale: float | None = None,
    deterministic: bool = False,
    return_lse: Literal[False] = False,
    engine: str | Engine = "auto",
) -> torch.Tensor: ...


@overload
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    where: Step | ColumnMask | DeviceMask,
    *,
    softmax_scale: float | None = None,
    deterministic: bool = False,
    return_lse: Literal[True],
    engine: str | Engine = "auto",
) -> tuple[torch.Tensor, torch.Tensor]: ...


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    where: Step | ColumnMask | DeviceMask,
    *,
    softmax_scale: float | None = None,
    deterministic: bool = False,
    return_lse: bool = False,
    engine: str | Engine = "auto",
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Return softmax(scale * q k^T) v over the pairs that the mask shows; differentiable in q, k and v.

    Args:
        q: [B, S, Hq, D]; with a step, this rank's tokens, S = step.num_local_tokens.
        k: [B, T, Hkv, D], Hkv divides Hq; with a step, this rank's tokens.
        v: [B, T, Hkv, Dv].
        where: a step of `ContextParallel.plan`, which every rank must call with; or a mask, for one device.
        softmax_scale: factor of the scores, 1 / sqrt(D) by default.
        deterministic: ask for bitwise repeatable gradients.
        return_lse: also return the log of each row's sum of exponentials, float32 [B, Hq, S] (float64 for
            float64).
        engine: "auto", a name in `fm3_kernels.engines`, or an engine.

    Raises:
        UnsupportedError: shapes, dtypes, devices or the engine do not fit; it gives every reason.
    """
    if not isinstance(where, Step):
        pair = fm3_kernels.attention(
            q, k, v, where,
            softmax_scale=softmax_scale, deterministic=deterministic, return_lse=True, engine=engine,
        )  # fmt: skip
        return pair if return_lse else pair[0]
    reasons = _why_not(q, k, v, where, softmax_scale, deterministic, engine)
    if reasons:
        raise UnsupportedError(f"attention on rank {where.rank} of {where.num_ranks}", reasons)
    apply: Callable[..., tuple[torch.Tensor, torch.Tensor]] = _StepAttention.apply
    out, lse = apply(q, k, v, where, softmax_scale, deterministic, engine)
    return (out, lse) if return_lse else out


class _StepAttention(torch.autograd.Function):
    """Gather, attend; backward gathers again, so that a live step keeps local tensors only."""

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        step: Step,
        softmax_scale: float | None,
        deterministic: bool,
        engine: str | Engine,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        asked = Asked(softmax_scale=softmax_scale, deterministic=deterministic, engine=engine)
        out, lse = overlap.forward(step, q, k, v, asked)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.step, ctx.asked = step, asked
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        dout = torch.zeros_like(out) if dout is None else dout
        dq, dk, dv = overlap.backward(ctx.step, dout, q, k, v, out, lse, dlse, ctx.asked)
        return dq, dk.to(k.dtype), dv.to(v.dtype), None, None, None, None


def _why_not(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    step: Step,
    softmax_scale: float | None,
    deterministic: bool,
    engine: str | Engine,
) -> list[str]:
    """Return what is wrong before anything is sent: the other ranks would wait for one that stops later."""
    tokens = step.num_local_tokens
    reasons = [
        f"{name} of shape {tuple(x.shape)} must be [batch, {tokens}, heads, head dim]: this rank owns "
        f"{tokens} of the {step.mask.num_rows} tokens that were planned"
        for name, x in (("q", q), ("k", k), ("v", v))
        if isinstance(x, torch.Tensor) and (x.ndim != 4 or x.shape[1] != tokens)
    ]
    mask = step.device_mask(q.device, own=True) if isinstance(q, torch.Tensor) else step.own_mask
    return reasons or fm3_kernels.why_unsupported(
        q, k, v, mask,
        softmax_scale=softmax_scale, deterministic=deterministic, engine=engine,
    )  # fmt: skip
