"""Attention under a column mask as it is defined, in dense matrices: the oracle of this package.

Shape legend: B batch, S rows, T keys, H query heads, G kv heads, D head dim, E value head dim.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fm3_kernels.device_mask import DeviceMask
from fm3_kernels.precision import accumulation_dtype


def visible(mask: DeviceMask, query_heads: int) -> Tensor:
    """Return bool [batch, query heads, rows, keys]: row i sees key k iff i is in neither hidden span of k."""
    row = torch.arange(mask.num_rows, device=mask.device)[:, None]
    lts, lte, uts, ute = (x[:, :, None, :] for x in (mask.lts, mask.lte, mask.uts, mask.ute))
    seen = ~(((lts <= row) & (row < lte)) | ((uts <= row) & (row < ute)))
    return seen.repeat_interleave(query_heads // mask.heads, dim=1)


class ReferenceEngine:
    """The dense engine: rows x keys of memory a head, float32 inside, float64 for float64 inputs."""

    def why_unsupported(
        self, q: Tensor, k: Tensor, v: Tensor, mask: DeviceMask, *, deterministic: bool
    ) -> list[str]:
        """Return no reason: every checked call is served."""
        return []

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
        """Return out and the log-sum-exp; see `Engine.forward`."""
        q_BSHD, k_BTHD, v_BTHE = _same_heads(q, k, v)
        seen_BHST = visible(mask, q.shape[2])
        scores_BHST = softmax_scale * torch.einsum("bshd,bthd->bhst", q_BSHD, k_BTHD)
        lse_BHS = torch.where(seen_BHST, scores_BHST, -math.inf).logsumexp(dim=3)
        p_BHST = torch.where(seen_BHST, (scores_BHST - lse_BHS[..., None]).exp(), 0.0)
        return torch.einsum("bhst,bthe->bshe", p_BHST, v_BTHE).to(out_dtype), lse_BHS

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
        """Return dq, dk and dv; see `Engine.backward`. dS = P * (dP - (rowsum(dO * O) - dLSE))."""
        q_BSHD, k_BTHD, v_BTHE = _same_heads(q, k, v)
        empty_BSH1 = (lse == -math.inf).transpose(1, 2)[..., None]
        do_BSHE = torch.where(empty_BSH1, 0.0, dout.to(v_BTHE.dtype))
        seen_BHST = visible(mask, q.shape[2])
        scores_BHST = softmax_scale * torch.einsum("bshd,bthd->bhst", q_BSHD, k_BTHD)
        p_BHST = torch.where(seen_BHST, (scores_BHST - lse[..., None]).exp(), 0.0)
        dp_BHST = torch.einsum("bshe,bthe->bhst", do_BSHE, v_BTHE)
        delta_BHS = (do_BSHE * out).sum(dim=3).transpose(1, 2)
        if dlse is not None:
            delta_BHS = delta_BHS - dlse
        ds_BHST = torch.where(seen_BHST, p_BHST * (dp_BHST - delta_BHS[..., None]), 0.0)
        dq_BSHD = softmax_scale * torch.einsum("bhst,bthd->bshd", ds_BHST, k_BTHD)
        dk_BTHD = softmax_scale * torch.einsum("bhst,bshd->bthd", ds_BHST, q_BSHD)
        dv_BTHE = torch.einsum("bhst,bshe->bthe", p_BHST, do_BSHE)
        dk_BTGD, dv_BTGE = (torch.unflatten(x, 2, (k.shape[2], -1)).sum(dim=3) for x in (dk_BTHD, dv_BTHE))
        return dq_BSHD.to(q.dtype), dk_BTGD.to(kv_grad_dtype), dv_BTGE.to(kv_grad_dtype)


def _same_heads(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v in the accumulation dtype, kv heads repeated for the query heads that use them."""
    dtype, repeats = accumulation_dtype(q.dtype), q.shape[2] // k.shape[2]
    return (
        q.to(dtype),
        k.to(dtype).repeat_interleave(repeats, dim=2),
        v.to(dtype).repeat_interleave(repeats, dim=2),
    )
