"""Attention of P ranks on a whole problem, for tests of any backend."""

from __future__ import annotations

from typing import Any

import torch

from fm3_comm import ExchangeBackend
from fm3_core import ColumnMask
from fm3_runtime import ContextParallel, attention


def attend_on_rank(
    backend: ExchangeBackend,
    mask: ColumnMask,
    inputs: tuple[torch.Tensor, ...],
    dout: torch.Tensor,
    dlse: torch.Tensor,
    **options: Any,
) -> tuple[torch.Tensor, ...]:
    """Return the whole out and lse, and this rank's share (zeros elsewhere) of dq, dk and dv."""
    step = ContextParallel(backend=backend, **options).plan(mask, verify=True)
    held = [x.clone().requires_grad_() for x in inputs]
    out, lse = attention(*(step.scatter(x) for x in held), step, return_lse=True)
    torch.autograd.backward([out, lse], [step.scatter(dout), step.scatter(dlse, dim=2)])
    return (step.gather(out.detach()), step.gather(lse.detach(), dim=2), *(x.grad for x in held))


def worst_difference(by_rank: list[tuple[torch.Tensor, ...]], expected: tuple[torch.Tensor, ...]) -> float:
    """Return the largest difference: out and lse of each rank, and the ranks' gradients together."""
    worst = 0.0
    for i, name in enumerate(("out", "lse", "dq", "dk", "dv")):
        got = (
            [torch.stack([result[i] for result in by_rank]).sum(0)]
            if i >= 2
            else [result[i] for result in by_rank]
        )
        for result in got:
            assert not torch.isnan(result).any(), f"{name} has NaN"
            same_infinities = torch.equal(torch.isinf(result), torch.isinf(expected[i]))
            assert same_infinities, f"{name}: infinities differ"
            difference = (result - expected[i]).abs().nan_to_num(0.0)
            if difference.numel():
                worst = max(worst, difference.max().item())
    return worst
