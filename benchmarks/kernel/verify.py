"""`Truth`: how far an engine's results are from exact attention, on heads and rows that are sampled.

The measure is the error of the same computation in plain arithmetic of the inputs' dtype: twice that is
allowed. Exact is float32 for 16-bit inputs and float64 for float32 ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from kernel.cell import Cell

ROWS_AT_ONCE = 4096
SPREAD_ROWS, RANDOM_ROWS, RANDOM_HEADS = 97, 95, 2
_EPSILON = torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class Pair:
    """One result, exact and in plain arithmetic."""

    exact: Tensor
    plain: Tensor

    def largest(self, mine: Tensor) -> float:
        """Return the largest error as a multiple of what is allowed; infinite where infinities differ."""
        finite = torch.isfinite(self.exact)
        if bool((mine[~finite] != self.exact[~finite]).any()):
            return math.inf
        exact = self.exact[finite]
        if exact.numel() == 0:
            return 0.0
        return _over((mine[finite].to(exact) - exact).abs().max(), self.allowed)

    @property
    def allowed(self) -> Tensor:
        """Largest error that is allowed of a finite entry; 0 where there is none."""
        finite = torch.isfinite(self.exact)
        exact = self.exact[finite]
        if exact.numel() == 0:
            return self.exact.new_zeros(())
        return 2 * (self.plain[finite].to(exact) - exact).abs().max() + _EPSILON * exact.abs().max()

    def norm(self, mine: Tensor) -> float:
        """Return the error's Euclidean norm as a multiple of what is allowed."""
        allowed = 2 * (self.plain.to(self.exact) - self.exact).norm() + _EPSILON * self.exact.norm()
        return _over((mine.to(self.exact) - self.exact).norm(), allowed)


def _over(error: Tensor, allowed: Tensor) -> float:
    ratio = 0.0 if float(error) == 0 else (error / allowed).item()
    return math.inf if math.isnan(ratio) else ratio


class Truth:
    """Exact results of a cell, computed when first asked for and then kept."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.exact = torch.float64 if cell.q.dtype == torch.float32 else torch.float32

    def forward_error(self, out: Tensor, lse: Tensor | None) -> float:
        """Return the largest error of out and lse as a multiple of what is allowed; right is <= 1.

        Of the first, the last and some other heads, at rows spread over the sequence and random ones.

        Args:
            out: [batch, rows, query heads, dim].
            lse: [batch, query heads, rows], or None.
        """
        if not bool(torch.isfinite(out).all()):
            return math.inf
        worst = 0.0
        for (b, h), (out_pair, lse_pair) in self._samples.items():
            worst = max(worst, out_pair.largest(out[b, self._rows, h]))
            if lse is not None:
                worst = max(worst, lse_pair.largest(lse[b, h, self._rows]))
        return worst

    def gradient_error(self, gradients: list[Tensor]) -> float:
        """Return the worst error of dq, dk and dv of the first and the last kv head, in Euclidean norm.

        Args:
            gradients: dq, dk and dv; right is <= 1.
        """
        if not all(bool(torch.isfinite(x).all()) for x in gradients):
            return math.inf
        return max(
            pair.norm(gradients[which][b, :, head]) for (which, b, head), pair in self._gradients.items()
        )

    @cached_property
    def allowed(self) -> dict[str, float]:
        """Largest error that is allowed of an entry of out, lse, dq, dk and dv, of any sampled head."""
        pairs = {
            "out": [out for out, _ in self._samples.values()],
            "lse": [lse for _, lse in self._samples.values()],
        } | {
            name: [pair for (of, _, _), pair in self._gradients.items() if of == which]
            for which, name in enumerate(("dq", "dk", "dv"))
        }
        return {name: max(float(pair.allowed) for pair in mine) for name, mine in pairs.items()}

    @cached_property
    def _rows(self) -> Tensor:
        tokens = self.cell.tokens
        rows = np.linspace(0, tokens - 1, SPREAD_ROWS).astype(int)
        drawn = np.random.default_rng(tokens).integers(0, tokens, RANDOM_ROWS)
        return torch.from_numpy(np.unique(np.concatenate([rows, drawn]))).to(self.cell.q.device)

    @cached_property
    def _samples(self) -> dict[tuple[int, int], tuple[Pair, Pair]]:
        """Return out and lse at the sampled rows, by (batch entry, query head)."""
        batch, _, heads, _ = self.cell.q.shape
        random = np.random.default_rng(heads)
        chosen = {(int(random.integers(batch)), int(random.integers(heads))) for _ in range(RANDOM_HEADS)}
        return {at: self._attend(*at) for at in sorted(chosen | {(0, 0), (batch - 1, heads - 1)})}

    def _attend(self, b: int, h: int) -> tuple[Pair, Pair]:
        cell = self.cell
        g = h * cell.k.shape[2] // cell.q.shape[2]
        single = (cell.q[b, self._rows, h], cell.k[b, :, g], cell.v[b, :, g])
        hidden = self._hidden(b, h, self._rows)
        exact = _attend(*(x.to(self.exact) for x in single), hidden)
        plain = _attend(*single, hidden)
        return Pair(exact[0], plain[0]), Pair(exact[1], plain[1])

    @cached_property
    def _gradients(self) -> dict[tuple[int, int, int], Pair]:
        """Return gradients by (0 dq, 1 dk, 2 dv; batch entry; head of that gradient)."""
        cell = self.cell
        batch, _, heads, _ = cell.q.shape
        kv_heads = cell.k.shape[2]
        pairs: dict[tuple[int, int, int], Pair] = {}
        for b, g in sorted({(0, 0), (batch - 1, kv_heads - 1)}):
            mine = range(g * heads // kv_heads, (g + 1) * heads // kv_heads)
            parts = {
                h: [self._gradients_of_head(b, h, g, dtype) for dtype in (self.exact, None)] for h in mine
            }
            for h, (exact, plain) in parts.items():
                pairs[0, b, h] = Pair(exact[0], plain[0])
            for which in (1, 2):
                exact_sum, plain_sum = (
                    torch.stack([part[kind][which] for part in parts.values()]).sum(0) for kind in range(2)
                )
                pairs[which, b, g] = Pair(exact_sum, plain_sum.to(cell.q.dtype))
        return pairs

    def _gradients_of_head(
        self, b: int, h: int, g: int, dtype: torch.dtype | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return dq, dk and dv of one query head, some rows at a time.

        In plain arithmetic where dtype is None; sums over rows are exact in either case.
        """
        cell = self.cell
        dtype = cell.q.dtype if dtype is None else dtype
        k, v = cell.k[b, :, g].to(dtype), cell.v[b, :, g].to(dtype)
        scale = k.shape[1] ** -0.5
        dq = torch.empty(cell.tokens, k.shape[1], dtype=dtype, device=k.device)
        dk, dv = torch.zeros_like(k, dtype=self.exact), torch.zeros_like(v, dtype=self.exact)
        for start in range(0, cell.tokens, ROWS_AT_ONCE):
            rows = torch.arange(start, min(start + ROWS_AT_ONCE, cell.tokens), device=k.device)
            q, dout = cell.q[b, rows, h].to(dtype), cell.dout[b, rows, h].to(dtype)
            hidden = self._hidden(b, h, rows)
            p = ((q @ k.T) * scale).masked_fill(hidden, -math.inf).softmax(1).nan_to_num(0.0)
            ds = p * (dout @ v.T - (dout * (p @ v)).sum(-1, keepdim=True))
            dq[rows], dk, dv = ds @ k * scale, dk + ds.T @ q * scale, dv + p.T @ dout
        return dq, dk, dv

    def _hidden(self, b: int, h: int, rows: Tensor) -> Tensor:
        """Return bool [rows, keys] of one batch entry and query head."""
        mask = self.cell.mask
        batch, head = (0 if mask.batch == 1 else b), h * mask.heads // self.cell.q.shape[2]
        lts, lte, uts, ute = (
            torch.from_numpy(np.array(x[batch, head])).to(rows.device)[None]
            for x in (mask.lts, mask.lte, mask.uts, mask.ute)
        )
        row = rows[:, None]
        return ((row >= lts) & (row < lte)) | ((row >= uts) & (row < ute))


def _attend(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    scores = ((q @ k.T) * q.shape[1] ** -0.5).masked_fill(hidden, -math.inf)
    wide = scores if scores.dtype == torch.float64 else scores.float()
    return scores.softmax(1).nan_to_num(0.0) @ v, wide.logsumexp(1)
