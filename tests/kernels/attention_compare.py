"""Comparing attention results with the float64 oracle: what is computed, and how near it must be.

The tolerance is twice the error that the same computation makes when it is written plainly in the same
dtype, plus one rounding of the largest value: where plain arithmetic happens to be exact, the last rounding
remains. Plainly means with dense torch operations; in float32 both as softmax under autograd and as the
dense engine, which like every engine starts its backward from a rounded log-sum-exp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fm3_core import ColumnMask, dense
from fm3_kernels import attention_backward, attention_forward

RESULTS = ("out", "lse", "dq", "dk", "dv")


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """One attention problem with the gradients that come in from behind."""

    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor
    dlse: Tensor
    mask: ColumnMask
    scale: float | None = None

    def to(self, dtype: torch.dtype) -> Inputs:
        """Return the same problem in another dtype; the gradient of lse stays at least float32."""
        tensors = {name: getattr(self, name).to(dtype) for name in ("q", "k", "v", "dout")}
        dlse = self.dlse.to(torch.promote_types(dtype, torch.float32))
        return Inputs(**tensors, dlse=dlse, mask=self.mask, scale=self.scale)


def random_inputs(
    mask: ColumnMask,
    *,
    batch: int = 1,
    query_heads: int = 2,
    kv_heads: int = 2,
    dim: int = 16,
    value_dim: int = 16,
    dtype: torch.dtype = torch.float32,
    scale: float | None = None,
    seed: int = 0,
) -> Inputs:
    """Return normally distributed inputs that fit a mask, rounded to `dtype`."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    rows, keys = mask.num_rows, mask.num_keys
    return Inputs(
        q=normal(batch, rows, query_heads, dim),
        k=normal(batch, keys, kv_heads, dim),
        v=normal(batch, keys, kv_heads, value_dim),
        dout=normal(batch, rows, query_heads, value_dim),
        dlse=normal(batch, query_heads, rows),
        mask=mask,
        scale=scale,
    ).to(dtype)


def run_engine(inputs: Inputs, engine: object) -> dict[str, Tensor]:
    """Return an engine's out, lse, dq, dk and dv."""
    x = inputs
    out, lse = attention_forward(x.q, x.k, x.v, x.mask, softmax_scale=x.scale, engine=engine)
    gradients = attention_backward(
        x.dout, x.q, x.k, x.v, out, lse, x.mask, dlse=x.dlse, softmax_scale=x.scale, engine=engine
    )
    return dict(zip(RESULTS, (out, lse, *gradients), strict=True))


def run_plainly(inputs: Inputs) -> dict[str, Tensor]:
    """Return out, lse and autograd's gradients of attention in dense torch operations, in q's dtype."""
    x = inputs
    q, k, v = (tensor.detach().clone().requires_grad_() for tensor in (x.q, x.k, x.v))
    seen = torch.tensor(dense.visible(x.mask)).repeat_interleave(q.shape[2] // x.mask.heads, dim=1)
    some = seen.any(dim=3, keepdim=True)
    repeats = q.shape[2] // k.shape[2]
    scale = x.scale if x.scale is not None else q.shape[3] ** -0.5
    scores = torch.einsum("bshd,bthd->bhst", q, k.repeat_interleave(repeats, dim=2)) * scale
    scores = torch.where(some, torch.where(seen, scores, -math.inf), 0.0)
    weights = torch.where(some, scores.softmax(dim=3), 0.0)
    out = torch.einsum("bhst,bthd->bshd", weights, v.repeat_interleave(repeats, dim=2))
    lse = torch.where(some[..., 0], scores.logsumexp(dim=3), -math.inf)
    gradients = torch.autograd.grad([out, lse], [q, k, v], [x.dout, x.dlse.to(lse.dtype)])
    return dict(zip(RESULTS, (out.detach(), lse.detach(), *gradients), strict=True))


def assert_near(name: str, got: Tensor, truth: Tensor, plain_error: float) -> None:
    """Fail unless `got` is as near to the float64 `truth` as twice the plain error, without NaN.

    Infinities must agree with the oracle's place by place. The message names the worst position.
    """
    message = difference(name, got, truth, plain_error)
    assert message is None, message


def difference(name: str, got: Tensor, truth: Tensor, plain_error: float) -> str | None:
    """Return why `got` is not near enough to `truth`, or None if it is."""
    mine, right = (x.detach().to(torch.float64).numpy() for x in (got, truth))
    if mine.shape != right.shape:
        return f"{name}: shape {mine.shape}, the oracle's is {right.shape}"
    for whose, values in (("the oracle", right), ("the result", mine)):
        if np.isnan(values).any():
            return f"{name}: {whose} is NaN at {_first(np.isnan(values))}"
    infinite = np.isinf(mine) | np.isinf(right)
    if (mine != right)[infinite].any():
        place = _first(infinite & (mine != right))
        return f"{name}: infinities disagree at {place}: got {mine[place]}, right is {right[place]}"
    errors = np.abs(np.where(infinite, 0.0, mine) - np.where(infinite, 0.0, right))
    rounding = torch.finfo(got.dtype).eps * np.abs(right[~infinite]).max(initial=0.0)
    allowed = 2.0 * plain_error + rounding
    if errors.max(initial=0.0) <= allowed:
        return None
    place = tuple(int(i) for i in np.unravel_index(errors.argmax(), errors.shape))
    return (
        f"{name}: error {errors[place]:.3g} at {place} exceeds {allowed:.3g} (twice plain {got.dtype}'s "
        f"{plain_error:.3g} and one rounding): got {mine[place]:.9g}, right is {right[place]:.9g}; "
        f"{int((errors > allowed).sum())} of {errors.size} entries are too far"
    )


def assert_all_near(inputs: Inputs, engine: object, *, like: Sequence[Inputs] = ()) -> None:
    """Fail unless an engine's five results are near enough to the float64 oracle's.

    Args:
        inputs: the problem.
        engine: under test.
        like: other draws of the same problem whose plain errors count too; a tiny problem's largest error
            is luck.
    """
    got = run_engine(inputs, engine)
    truth = run_engine(inputs.to(torch.float64), "reference")
    errors = [plain_errors(draw) for draw in (inputs, *like)]
    for name in RESULTS:
        assert_near(name, got[name], truth[name], max(error[name] for error in errors))


def plain_errors(inputs: Inputs) -> dict[str, float]:
    """Return the largest error of each result when it is computed plainly in the inputs' dtype."""
    dtype, single = inputs.q.dtype, inputs.to(torch.float32)
    if dtype == torch.float64:
        # The oracle is float64 too: its error, float32's scaled by the roundings, adds to the two allowed.
        ratio = 1.5 * torch.finfo(dtype).eps / torch.finfo(torch.float32).eps
        return {name: ratio * error for name, error in plain_errors(single).items()}
    truth = run_engine(inputs.to(torch.float64), "reference")
    if dtype == torch.float32:
        softmax, dense_engine = (
            _errors(run_plainly(single), truth),
            _errors(run_engine(single, "reference"), truth),
        )
        return {name: max(softmax[name], dense_engine[name]) for name in RESULTS}
    return _errors(run_plainly(inputs) | {"lse": run_plainly(single)["lse"]}, truth)


def _errors(results: dict[str, Tensor], truth: dict[str, Tensor]) -> dict[str, float]:
    finite = {name: torch.isfinite(truth[name]) for name in RESULTS}
    apart = {name: (results[name].double() - truth[name])[finite[name]].abs().numpy() for name in RESULTS}
    return {name: float(errors.max(initial=0.0)) for name, errors in apart.items()}


def same_bits(mine: Tensor, theirs: Tensor) -> bool:
    """Say whether two tensors hold the same bits, the sign of zero excepted."""
    return mine.dtype == theirs.dtype and torch.equal(mine, theirs)


def _first(where: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(where)[0])
