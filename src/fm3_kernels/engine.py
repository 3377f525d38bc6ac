"""What an attention engine is."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from fm3_kernels.device_mask import DeviceMask


class Engine(Protocol):
    """Computes attention under a column mask, forward and backward.

    The tensors that reach an engine have been checked: q [batch, rows, query heads, dim], k [batch, keys,
    kv heads, dim], v [batch, keys, kv heads, value dim], one floating dtype, one device, the mask there
    too. Strides are arbitrary. Every engine gives the same results but for rounding, and follows these
    rules: a row that sees no key has output 0, log-sum-exp -inf and zero gradients, a key that no row sees
    has zero gradients, and finite values of hidden keys change no bit.
    """

    def why_unsupported(
        self, q: Tensor, k: Tensor, v: Tensor, mask: DeviceMask, *, deterministic: bool
    ) -> list[str]:
        """Return every reason why this engine cannot serve such a call; empty if it can."""
        ...

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
        """Return out [batch, rows, query heads, value dim] and the log-sum-exp [batch, query heads, rows]."""
        ...

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
        """Return dq in q's dtype, dk and dv in `kv_grad_dtype`.

        `deterministic` asks for the same bits every time.
        """
        ...
