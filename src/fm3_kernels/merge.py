"""Merging partial results over disjoint sets of keys.

Shape legend: P parts, B batch, S rows, H query heads, E value head dim.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from fm3_core.errors import UnsupportedError
from fm3_kernels.checks import describe


def merge(partials: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Merge attention over disjoint sets of keys into attention over all of them; differentiable.

    lse = log(sum of exp(lse_p)), out = sum of exp(lse_p - lse) * out_p. A part that saw nothing (lse -inf)
    adds nothing and gets zero gradients; parts are added in the order given; where no part saw anything the
    result is out 0 and lse -inf.

    Args:
        partials: (out, lse) pairs, at least one: out [batch, rows, heads, value dim], lse [batch, heads,
            rows], as `attention_forward` returns them.

    Returns:
        (out, lse) of the union of the keys, in the parts' dtypes.

    Raises:
        UnsupportedError: no parts, or parts whose shapes, dtypes or devices differ; with every reason.
    """
    parts = list(partials)
    _check(parts)
    outs_PBSHE = torch.stack([out for out, _ in parts])
    lses_PBHS = torch.stack([lse for _, lse in parts])
    peak_BHS = lses_PBHS.detach().amax(0)
    base_BHS = torch.where(peak_BHS == -math.inf, 0.0, peak_BHS)
    weights_PBHS = (lses_PBHS - base_BHS).exp()
    total_BHS = weights_PBHS.sum(0)
    seen_BHS = total_BHS > 0
    divisor_BHS = torch.where(seen_BHS, total_BHS, 1.0)
    shares_PBSH1 = (weights_PBHS / divisor_BHS).transpose(2, 3).unsqueeze(-1)
    out_BSHE = (shares_PBSH1 * outs_PBSHE).sum(0).to(outs_PBSHE.dtype)
    lse_BHS = torch.where(seen_BHS, base_BHS + divisor_BHS.log(), -math.inf)
    return out_BSHE, lse_BHS


def _check(parts: list[tuple[Tensor, Tensor]]) -> None:
    """Raise unless the parts agree."""
    if not parts:
        raise UnsupportedError("merge()", ["there are no parts"])
    reasons = [
        f"part {i} must be a pair of tensors (out, lse), got {type(part).__name__}"
        for i, part in enumerate(parts)
        if not isinstance(part, tuple | list)
        or len(part) != 2
        or not all(isinstance(x, Tensor) for x in part)
    ]
    if reasons:
        raise UnsupportedError(f"merge() of {len(parts)} parts", reasons)
    first_out, first_lse = parts[0]
    for i, (out, lse) in enumerate(parts):
        if out.dim() != 4 or [*lse.shape] != [out.shape[0], out.shape[2], out.shape[1]]:
            reasons.append(f"part {i} must be out [batch, rows, heads, dim], lse [batch, heads, rows]")
        if not out.is_floating_point() or not lse.is_floating_point():
            reasons.append(f"part {i} must be floating")
        for name, mine, theirs in (("out", out, first_out), ("lse", lse, first_lse)):
            if (mine.shape, mine.dtype, mine.device) != (theirs.shape, theirs.dtype, theirs.device):
                reasons.append(f"part {i}'s {name} must be like part 0's")
    if reasons:
        texts = "; ".join(f"part {i}: {describe(out=out, lse=lse)}" for i, (out, lse) in enumerate(parts))
        raise UnsupportedError(f"merge({texts})", reasons)
