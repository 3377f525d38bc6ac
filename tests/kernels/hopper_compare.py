"""Comparing the Hopper engine with a dense oracle on the device.

The tolerance is that of attention_compare: twice the largest error that dense torch operations in the inputs'
dtype make on the same problem and on two other draws of it, plus one rounding of the largest value. The
log-sum-exp compares with one whose scores were rounded to the inputs' dtype.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch
from launch_watchdog import note_input
from torch import Tensor

from fm3_core import ColumnMask
from fm3_kernels import DeviceMask, attention_forward, hopper, why_unsupported

DEVICE = "cuda"
ENGINE = "hopper"
DTYPES = [torch.bfloat16, torch.float16]
DIMS = [64, 128]
OTHER_DRAWS = 2


@cache
def why_no_hopper() -> str | None:
    """Return why the engine cannot run here, or None."""
    if not torch.cuda.is_available():
        return "no CUDA device here"
    q = torch.zeros(1, 1, 1, 64, dtype=torch.bfloat16, device=DEVICE)
    mask = DeviceMask(*(torch.zeros(1, 1, 1, dtype=torch.int32, device=DEVICE) for _ in range(4)), num_rows=1)
    return "; ".join(why_unsupported(q, q, q, mask, engine=ENGINE)) or None


needs_hopper = [pytest.mark.gpu, pytest.mark.skipif(why_no_hopper() is not None, reason=str(why_no_hopper()))]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One forward problem on the device."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: ColumnMask
    scale: float
    keep: Tensor | None = None  # bool [batch, heads, row blocks, key blocks] of 128 x 128

    def __str__(self) -> str:
        """Return what a watchdog prints."""
        return (
            f"q {list(self.q.shape)} {self.q.dtype}, k {list(self.k.shape)}, mask {self.mask.shape}, "
            f"scale {self.scale}, lts {_shown(self.mask.lts)}, lte {_shown(self.mask.lte)}, "
            f"uts {_shown(self.mask.uts)}, ute {_shown(self.mask.ute)}"
        )


def _shown(vector: np.ndarray) -> str:
    return np.array2string(vector.reshape(-1), threshold=64, max_line_width=10**6)


def normal(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Return normally distributed values on the device, the same for each seed and shape."""
    generator = torch.Generator(device=DEVICE).manual_seed(seed)
    return torch.randn(*shape, generator=generator, device=DEVICE, dtype=torch.float32).to(dtype)


def problem(
    mask: ColumnMask,
    *,
    batch: int = 1,
    heads: int = 2,
    kv_heads: int = 2,
    dim: int = 64,
    dtype: torch.dtype = torch.bfloat16,
    scale: float | None = None,
    seed: int = 0,
) -> Problem:
    """Return a random problem that fits a mask."""
    return Problem(
        q=normal(batch, mask.num_rows, heads, dim, dtype=dtype, seed=3 * seed),
        k=normal(batch, mask.num_keys, kv_heads, dim, dtype=dtype, seed=3 * seed + 1),
        v=normal(batch, mask.num_keys, kv_heads, dim, dtype=dtype, seed=3 * seed + 2),
        mask=mask,
        scale=dim**-0.5 if scale is None else scale,
    )


def run(x: Problem, *, out_dtype: torch.dtype | None = None, num_ctas: int = 0) -> tuple[Tensor, Tensor]:
    """Return the engine's out and log-sum-exp."""
    note_input(str(x))
    if num_ctas == 0 and x.keep is None:
        return attention_forward(
            x.q, x.k, x.v, x.mask, softmax_scale=x.scale, out_dtype=out_dtype, engine=ENGINE
        )
    prepared = hopper.PreparedMask.from_mask(DeviceMask.from_mask(x.mask, DEVICE), keep=x.keep)
    return hopper.forward_prepared(
        x.q, x.k, x.v, prepared, softmax_scale=x.scale, out_dtype=out_dtype, num_ctas=num_ctas
    )


def visible(x: Problem) -> Tensor:
    """Return bool [batch of the mask, query heads, rows, keys]."""
    lts, lte, uts, ute = (
        torch.from_numpy(np.array(vector)).to(DEVICE)[:, :, None]
        for vector in (x.mask.lts, x.mask.lte, x.mask.uts, x.mask.ute)
    )
    row = torch.arange(x.mask.num_rows, device=DEVICE)[None, None, :, None]
    seen = ~(((row >= lts) & (row < lte)) | ((row >= uts) & (row < ute)))
    if x.keep is not None:
        kept = x.keep.repeat_interleave(128, dim=2).repeat_interleave(128, dim=3)
        kept = kept[:, :, : x.mask.num_rows, : x.mask.num_keys].bool()
        heads = max(kept.shape[1], seen.shape[1])
        seen, kept = (y.repeat_interleave(heads // y.shape[1], dim=1) for y in (seen, kept))
        seen = seen & kept
    return seen.repeat_interleave(x.q.shape[2] // seen.shape[1], dim=1)


def dense(x: Problem, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return out and log-sum-exp by dense operations in a dtype; the log-sum-exp of scores in that dtype."""
    repeats = x.q.shape[2] // x.k.shape[2]
    q, k, v = (y.to(dtype).transpose(1, 2) for y in (x.q, x.k, x.v))
    k, v = (y.repeat_interleave(repeats, dim=1) for y in (k, v))
    scores = (q @ k.mT) * x.scale
    seen = visible(x)
    some = seen.any(dim=3, keepdim=True)
    scores = torch.where(some, torch.where(seen, scores, -math.inf), 0.0)
    if scores.shape[3] == 0:
        return torch.zeros_like(q).transpose(1, 2), scores.new_full(scores.shape[:3], -math.inf)
    weights = torch.where(some, scores.softmax(dim=3), 0.0)
    wide = torch.promote_types(dtype, torch.float32)
    lse = torch.where(some[..., 0], scores.to(wide).logsumexp(dim=3), -math.inf)
    return (weights @ v).transpose(1, 2), lse


def redrawn(x: Problem, seed: int) -> Problem:
    """Return the same problem with other values."""
    tensors = {
        name: normal(*getattr(x, name).shape, dtype=x.q.dtype, seed=seed + i)
        for i, name in enumerate(("q", "k", "v"))
    }
    return replace(x, **tensors)


def plain_errors(x: Problem) -> tuple[float, float]:
    """Return the largest errors of out and log-sum-exp in plain operations, of this and of other draws."""
    worst = [0.0, 0.0]
    for draw in (x, *(redrawn(x, 1000 + 7 * i) for i in range(OTHER_DRAWS))):
        for i, (plain, truth) in enumerate(
            zip(dense(draw, x.q.dtype), dense(draw, torch.float64), strict=True)
        ):
            errors = (plain.double() - truth)[torch.isfinite(truth)].abs()
            worst[i] = max(worst[i], errors.max().item() if errors.numel() else 0.0)
    return worst[0], worst[1]


def assert_near(name: str, got: Tensor, truth: Tensor, plain_error: float) -> None:
    """Fail unless `got` is as near to `truth` as twice the plain error and one rounding."""
    assert got.shape == truth.shape, f"{name}: shape {list(got.shape)}, the oracle's is {list(truth.shape)}"
    assert not truth.isnan().any(), f"{name}: the oracle is NaN at {truth.isnan().nonzero()[0].tolist()}"
    wrong = got.isnan() | (got.isinf() != truth.isinf()) | (truth.isinf() & (got.double() != truth))
    assert not wrong.any(), (
        f"{name}: got {got[wrong][0].item()}, right is {truth[wrong][0].item()} at "
        f"{wrong.nonzero()[0].tolist()}; {int(wrong.sum())} of {wrong.numel()} entries are NaN or disagree "
        "about infinity"
    )
    if got.numel() == 0:
        return
    finite = torch.isfinite(truth)
    errors = torch.where(finite, (got.double() - truth).abs(), 0.0)
    largest = torch.where(finite, truth.abs(), 0.0).max().item()
    allowed = 2 * plain_error + torch.finfo(got.dtype).eps * largest
    worst = int(errors.argmax())
    place = [int(i) for i in np.unravel_index(worst, got.shape)]
    assert errors.max() <= allowed, (
        f"{name}: error {errors.max().item():.3g} at {place} exceeds {allowed:.3g} (twice plain "
        f"{plain_error:.3g} and one rounding): got {got.flatten()[worst].item():.9g}, right is "
        f"{truth.flatten()[worst].item():.9g}; {int((errors > allowed).sum())} of {errors.numel()} entries "
        "are too far"
    )


def check(x: Problem, **options: object) -> tuple[Tensor, Tensor]:
    """Run the engine and fail unless out and log-sum-exp are near enough to the oracle's; return them."""
    results = run(x, **options)
    for name, got, truth, error in zip(
        ("out", "lse"), results, dense(x, torch.float64), plain_errors(x), strict=True
    ):
        assert_near(name, got, truth, error)
    return results


def poison_free_memory(num_bytes: int = 64 << 20) -> None:
    """Fill memory that the allocator will hand out next with NaN."""
    blocks = [torch.full((n // 4,), math.nan, device=DEVICE) for n in (num_bytes, 1 << 20, 4096, 512)]
    del blocks
