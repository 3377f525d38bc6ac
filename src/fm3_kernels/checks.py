"""What a call must satisfy before any engine sees it; every check returns all reasons why it does not."""

from __future__ import annotations

import math
import numbers
from typing import Any

import torch
from torch import Tensor

from fm3_core import ColumnMask
from fm3_kernels.device_mask import DeviceMask

_AXES = {
    "q": "[batch, rows, query heads, dim]",
    "k": "[batch, keys, kv heads, dim]",
    "v": "[batch, keys, kv heads, dim]",
}


def describe(**things: Any) -> str:
    """Write tensors and masks as text: name, shape, dtype and device of each."""
    return ", ".join(f"{name} {_describe_one(thing)}" for name, thing in things.items())


def call_reasons(q: Any, k: Any, v: Any, mask: Any, softmax_scale: Any) -> list[str]:
    """Return every reason why q, k, v, mask and scale do not describe one attention; empty if they do."""
    tensors = {"q": q, "k": k, "v": v}
    reasons = [reason for name, x in tensors.items() for reason in _tensor_reasons(name, x)]
    if not isinstance(mask, ColumnMask | DeviceMask):
        reasons.append(f"mask must be a ColumnMask or a DeviceMask, got {type(mask).__name__}")
    if softmax_scale is not None and not _is_finite_number(softmax_scale):
        reasons.append(f"softmax_scale must be a finite number or None, got {softmax_scale!r}")
    if all(isinstance(x, Tensor) for x in tensors.values()):
        reasons += _agreement_reasons(q, k, v)
        if all(x.dim() == 4 for x in tensors.values()):
            reasons += _shape_reasons(q, k, v)
            if isinstance(mask, ColumnMask | DeviceMask):
                reasons += _mask_reasons(q, k, mask)
    return reasons


def gradient_reasons(dout: Any, q: Tensor, v: Tensor, out: Any, lse: Any, dlse: Any) -> list[str]:
    """Return every reason why the tensors do not fit the attention of a q and v that have been checked."""
    batch, rows, heads, _ = q.shape
    out_shape, lse_shape = [batch, rows, heads, v.shape[3]], [batch, heads, rows]
    expected = {"dout": (dout, out_shape), "out": (out, out_shape), "lse": (lse, lse_shape)}
    if dlse is not None:
        expected["dlse"] = (dlse, lse_shape)
    reasons = []
    for name, (x, shape) in expected.items():
        if not isinstance(x, Tensor):
            reasons.append(f"{name} must be a tensor, got {type(x).__name__}")
            continue
        if list(x.shape) != shape:
            reasons.append(f"{name} must be {shape}, got {list(x.shape)}")
        if not x.is_floating_point():
            reasons.append(f"{name} must be floating, got {x.dtype}")
        if x.device != q.device:
            reasons.append(f"{name} is on {x.device}, q on {q.device}")
    return reasons


def dtype_reasons(name: str, dtype: Any) -> list[str]:
    """Return why `dtype` is no floating torch dtype."""
    if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
        return []
    return [f"{name} must be a floating torch dtype or None, got {dtype!r}"]


def _tensor_reasons(name: str, x: Any) -> list[str]:
    if not isinstance(x, Tensor):
        return [f"{name} must be a tensor, got {type(x).__name__}"]
    reasons = []
    if x.dim() != 4:
        reasons.append(f"{name} must be {_AXES[name]}, got rank {x.dim()}")
    elif x.shape[2] == 0 or x.shape[3] == 0:
        reasons.append(f"{name} must have at least one head of at least one dim, got {list(x.shape)}")
    if not x.is_floating_point():
        reasons.append(f"{name} must be floating, got {x.dtype}")
    if x.layout != torch.strided:
        reasons.append(f"{name} must be dense, got layout {x.layout}")
    return reasons


def _agreement_reasons(q: Tensor, k: Tensor, v: Tensor) -> list[str]:
    reasons = []
    if not q.dtype == k.dtype == v.dtype:
        reasons.append(f"q, k and v must have one dtype, got {q.dtype}, {k.dtype} and {v.dtype}")
    if not q.device == k.device == v.device:
        reasons.append(f"q, k and v must be on one device, got {q.device}, {k.device} and {v.device}")
    return reasons


def _shape_reasons(q: Tensor, k: Tensor, v: Tensor) -> list[str]:
    reasons = []
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        reasons.append(
            f"q, k and v must have one batch size, got {q.shape[0]}, {k.shape[0]} and {v.shape[0]}"
        )
    if k.shape[1] != v.shape[1]:
        reasons.append(f"k has {k.shape[1]} keys, v has {v.shape[1]}")
    if k.shape[2] != v.shape[2]:
        reasons.append(f"k has {k.shape[2]} heads, v has {v.shape[2]}")
    if q.shape[3] != k.shape[3]:
        reasons.append(f"q has head dim {q.shape[3]}, k has {k.shape[3]}")
    if k.shape[2] and q.shape[2] % k.shape[2]:
        reasons.append(f"q's {q.shape[2]} heads are not a multiple of k's {k.shape[2]}")
    return reasons


def _mask_reasons(q: Tensor, k: Tensor, mask: ColumnMask | DeviceMask) -> list[str]:
    reasons = []
    if mask.num_rows != q.shape[1]:
        reasons.append(f"the mask has {mask.num_rows} rows, q has {q.shape[1]}")
    if mask.num_keys != k.shape[1]:
        reasons.append(f"the mask has {mask.num_keys} keys, k has {k.shape[1]}")
    if mask.batch not in (1, q.shape[0]):
        reasons.append(f"the mask's batch of {mask.batch} is neither 1 nor q's {q.shape[0]}")
    if mask.heads == 0 or q.shape[2] % mask.heads:
        reasons.append(f"the mask's {mask.heads} heads do not divide q's {q.shape[2]}")
    if isinstance(mask, DeviceMask) and mask.device != q.device:
        reasons.append(f"the mask is on {mask.device}, q on {q.device}")
    return reasons


def _is_finite_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def _describe_one(thing: Any) -> str:
    if isinstance(thing, Tensor):
        return f"{list(thing.shape)} {str(thing.dtype).removeprefix('torch.')} on {thing.device}"
    if isinstance(thing, ColumnMask | DeviceMask):
        return str(list(thing.shape))
    return type(thing).__name__
