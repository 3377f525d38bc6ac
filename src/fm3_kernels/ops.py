"""The public attention operations.

Shapes: q [batch, rows, query heads, dim], k [batch, keys, kv heads, dim], v [batch, keys, kv heads, value
dim]; query heads are a multiple of kv heads and of mask heads; query head h uses kv head h // (query heads
/ kv heads) and mask head h // (query heads / mask heads). All share one floating dtype and one device;
strides are free.
"""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor

from fm3_core import ColumnMask
from fm3_core.errors import UnsupportedError
from fm3_kernels.autograd import differentiable_attention
from fm3_kernels.checks import describe, dtype_reasons, gradient_reasons
from fm3_kernels.device_mask import DeviceMask
from fm3_kernels.engine import Engine
from fm3_kernels.support import choose_engine


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: ColumnMask | DeviceMask,
    *,
    softmax_scale: float | None = None,
    deterministic: bool = False,
    return_lse: Literal[False] = False,
    engine: str | Engine = "auto",
) -> Tensor: ...


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: ColumnMask | DeviceMask,
    *,
    softmax_scale: float | None = None,
    deterministic: bool = False,
    return_lse: Literal[True],
    engine: str | Engine = "auto",
) -> tuple[Tensor, Tensor]: ...


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: ColumnMask | DeviceMask,
    *,
    softmax_scale: float | None = None,
    deterministic: bool = False,
    return_lse: bool = False,
    engine: str | Engine = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute exact attention under a column mask; differentiable in q, k and v.

    A row that sees no key has output 0, log-sum-exp -inf and zero gradients; finite values of hidden keys
    change no bit.

    Args:
        q: floating [batch, rows, query heads, dim].
        k: [batch, keys, kv heads, dim].
        v: [batch, keys, kv heads, value dim].
        mask: a ColumnMask, or a DeviceMask (made once a batch) on q's device.
        softmax_scale: factor of the scores, None for 1 / sqrt(dim).
        deterministic: gradients are the same bits every time.
        return_lse: also return the log-sum-exp; gradients flow through it.
        engine: "auto", a name in `engines`, or an engine.

    Returns:
        out [batch, rows, query heads, value dim] in q's dtype; with `return_lse` also the natural log of
        the scaled scores' sum, [batch, query heads, rows], float32 (float64 for float64 inputs).

    Raises:
        UnsupportedError: with every reason why the arguments cannot be served.
        UnknownNameError: no engine has that name.
    """
    chosen, device_mask, scale = choose_engine(
        "attention", q, k, v, mask, softmax_scale=softmax_scale, deterministic=deterministic, engine=engine
    )
    out, lse = differentiable_attention(q, k, v, device_mask, scale, deterministic, chosen)
    return (out, lse) if return_lse else out


@torch.no_grad()
def attention_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: ColumnMask | DeviceMask,
    *,
    softmax_scale: float | None = None,
    engine: str | Engine = "auto",
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute attention and its log-sum-exp outside of autograd.

    Args:
        q: floating [batch, rows, query heads, dim].
        k: [batch, keys, kv heads, dim].
        v: [batch, keys, kv heads, value dim].
        mask: the mask.
        softmax_scale: factor of the scores, None for 1 / sqrt(dim).
        engine: "auto", a name in `engines`, or an engine.
        out_dtype: dtype of out, None for q's; float32 keeps partial results exact until they are merged.

    Returns:
        (out, lse) as `attention` with `return_lse`.

    Raises:
        UnsupportedError: with every reason why the arguments cannot be served.
        UnknownNameError: no engine has that name.
    """
    chosen, device_mask, scale = choose_engine(
        "attention_forward", q, k, v, mask, softmax_scale=softmax_scale, deterministic=False, engine=engine
    )
    out_dtype = q.dtype if out_dtype is None else out_dtype
    _refuse("attention_forward", dtype_reasons("out_dtype", out_dtype), q=q)
    return chosen.forward(q, k, v, device_mask, softmax_scale=scale, out_dtype=out_dtype)


@torch.no_grad()
def attention_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    mask: ColumnMask | DeviceMask,
    *,
    dlse: Tensor | None = None,
    softmax_scale: float | None = None,
    deterministic: bool = False,
    engine: str | Engine = "auto",
    kv_grad_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of `attention_forward` from its results.

    Where out and lse are those of a larger set of keys, as after `merge`, the result is these keys' part of
    the whole gradient.

    Args:
        dout: gradient of out, [batch, rows, query heads, value dim], floating.
        q: as in forward.
        k: as in forward.
        v: as in forward.
        out: forward's result.
        lse: forward's log-sum-exp, [batch, query heads, rows].
        mask: the mask.
        dlse: gradient of lse, None for none; ignored in rows that see no key, even if it is NaN there.
        softmax_scale: as in forward.
        deterministic: the same bits every time.
        engine: "auto", a name in `engines`, or an engine.
        kv_grad_dtype: dtype of dk and dv, None for k's; float32 keeps partial sums exact until they are
            added.

    Returns:
        (dq, dk, dv) in the shapes of q, k and v, contiguous, dq in q's dtype. dS = P * (dP - (rowsum(dO *
        O) - dLSE)).

    Raises:
        UnsupportedError: with every reason why the arguments cannot be served.
        UnknownNameError: no engine has that name.
    """
    chosen, device_mask, scale = choose_engine(
        "attention_backward",
        q,
        k,
        v,
        mask,
        softmax_scale=softmax_scale,
        deterministic=deterministic,
        engine=engine,
    )
    kv_grad_dtype = k.dtype if kv_grad_dtype is None else kv_grad_dtype
    reasons = gradient_reasons(dout, q, v, out, lse, dlse) + dtype_reasons("kv_grad_dtype", kv_grad_dtype)
    _refuse("attention_backward", reasons, dout=dout, q=q, v=v, out=out, lse=lse, dlse=dlse)
    return chosen.backward(
        dout,
        q,
        k,
        v,
        out,
        lse,
        device_mask,
        dlse=dlse,
        softmax_scale=scale,
        deterministic=deterministic,
        kv_grad_dtype=kv_grad_dtype,
    )


def _refuse(operation: str, reasons: list[str], **things: object) -> None:
    if reasons:
        raise UnsupportedError(f"{operation}({describe(**things)})", reasons)
