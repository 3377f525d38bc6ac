"""The place of the Hopper kernel among the engines."""

from __future__ import annotations

import torch
from torch import Tensor

from fm3_core.errors import UnsupportedError
from fm3_kernels.device_mask import DeviceMask

_NO_KERNEL = (
    "this version of fm3 has no Hopper attention kernel yet; engine 'tiled' computes the same on any device"
)


class HopperEngine:
    """Listed so that one can ask why it is not there; serves no call."""

    def why_unsupported(
        self, q: Tensor, k: Tensor, v: Tensor, mask: DeviceMask, *, deterministic: bool
    ) -> list[str]:
        """Return every reason: the missing kernel, and what the call itself would have to change."""
        reasons = [_NO_KERNEL]
        if q.device.type != "cuda":
            reasons.append(f"the tensors are on {q.device}, it needs a CUDA device of compute capability 9.0")
        if q.dtype not in (torch.float16, torch.bfloat16):
            reasons.append(f"the tensors are {q.dtype}, it takes torch.float16 and torch.bfloat16")
        return reasons

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: DeviceMask,
        *,
        softmax_scale: float,
        out_dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        """Raise UnsupportedError."""
        raise UnsupportedError("engine 'hopper'", [_NO_KERNEL])

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        mask: DeviceMask,
        *,
        dlse: Tensor | None,
        softmax_scale: float,
        deterministic: bool,
        kv_grad_dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Raise UnsupportedError."""
        raise UnsupportedError("engine 'hopper'", [_NO_KERNEL])
