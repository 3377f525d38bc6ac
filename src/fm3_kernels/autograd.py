"""Attention as one differentiable operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fm3_kernels.device_mask import DeviceMask
from fm3_kernels.engine import Engine


class _Attention(torch.autograd.Function):
    """(q, k, v) -> (out, lse) with gradients through both; second derivatives are refused.

    Keeps q, k, v, out, the log-sum-exp and the mask for backward: memory linear in rows and keys.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: DeviceMask,
        softmax_scale: float,
        deterministic: bool,
        engine: Engine,
    ) -> tuple[Tensor, Tensor]:
        """Run the engine and save what its backward needs."""
        out, lse = engine.forward(q, k, v, mask, softmax_scale=softmax_scale, out_dtype=q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.set_materialize_grads(False)
        ctx.mask, ctx.softmax_scale, ctx.deterministic, ctx.engine = (
            mask,
            softmax_scale,
            deterministic,
            engine,
        )
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        """Run the engine's backward; an output that nothing was derived from has no gradient."""
        if dout is None and dlse is None:
            return (None,) * 7
        q, k, v, out, lse = ctx.saved_tensors
        gradients = ctx.engine.backward(
            torch.zeros_like(out) if dout is None else dout,
            q,
            k,
            v,
            out,
            lse,
            ctx.mask,
            dlse=dlse,
            softmax_scale=ctx.softmax_scale,
            deterministic=ctx.deterministic,
            kv_grad_dtype=k.dtype,
        )
        return (*gradients, None, None, None, None)


def differentiable_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: DeviceMask,
    softmax_scale: float,
    deterministic: bool,
    engine: Engine,
) -> tuple[Tensor, Tensor]:
    """Run an engine on a checked call and record it for backward; returns (out, lse)."""
    apply = cast("Callable[..., tuple[Tensor, Tensor]]", _Attention.apply)
    return apply(q, k, v, mask, softmax_scale, deterministic, engine)
