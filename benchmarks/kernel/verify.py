"""How far an engine's results are from float32 attention, on heads and rows that are sampled."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from kernel.cell import Cell

ROWS_AT_ONCE = 4096
OUTPUT_ROWS = 97


def forward_error(cell: Cell, out: Tensor, lse: Tensor) -> float:
    """Return the largest error over that of plain arithmetic in the inputs' dtype, times two; right is <= 1.

    Of the first and the last head, at rows spread over the sequence; lse is [batch, query heads, rows].
    """
    if not bool(torch.isfinite(out).all()):
        return math.inf
    rows = torch.from_numpy(np.unique(np.linspace(0, cell.tokens - 1, OUTPUT_ROWS).astype(int))).to(
        out.device
    )
    worst = 0.0
    for b, h in _corners(cell):
        g = h * cell.k.shape[2] // cell.q.shape[2]
        hidden = _hidden(cell, b, h, rows)
        single = (cell.q[b, rows, h].float(), cell.k[b, :, g].float(), cell.v[b, :, g].float())
        right, right_lse = _attend(*single, hidden)
        plain, plain_lse = _attend(*(x.to(cell.q.dtype) for x in single), hidden)
        for mine, truth, rough in ((out[b, rows, h], right, plain), (lse[b, h, rows], right_lse, plain_lse)):
            finite = torch.isfinite(truth)
            allowed = 2 * (rough.float() - truth)[finite].abs().max().item() + 1e-6
            worst = max(worst, (mine.float() - truth)[finite].abs().max().item() / allowed)
    return worst


def _attend(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    scores = ((q @ k.T) * q.shape[1] ** -0.5).masked_fill(hidden, -math.inf)
    lse = scores.float().logsumexp(1)
    return scores.softmax(1).nan_to_num(0.0) @ v, lse


def _hidden(cell: Cell, b: int, h: int, rows: Tensor) -> Tensor:
    """Return bool [rows, keys] of one batch entry and query head."""
    batch, head = (0 if cell.mask.batch == 1 else b), h * cell.mask.heads // cell.q.shape[2]
    lts, lte, uts, ute = (
        torch.from_numpy(np.array(x[batch, head])).to(rows.device)[None]
        for x in (cell.mask.lts, cell.mask.lte, cell.mask.uts, cell.mask.ute)
    )
    row = rows[:, None]
    return ((row >= lts) & (row < lte)) | ((row >= uts) & (row < ute))


def _corners(cell: Cell) -> set[tuple[int, int]]:
    """Return the first and the last (batch entry, query head)."""
    return {(0, 0), (cell.q.shape[0] - 1, cell.q.shape[2] - 1)}


GRADIENT_ERROR = 0.012
"""Relative error, in the Euclidean norm, that gradients in bf16 stay below."""


def gradient_error(cell: Cell, reference: tuple[Tensor, Tensor], gradients: list[Tensor]) -> float:
    """Return the worst relative error of the gradients of the first and the last kv head, in Euclidean norm.

    Args:
        cell: the problem.
        reference: out and log-sum-exp, verified.
        gradients: dq, dk and dv.
    """
    if not all(bool(torch.isfinite(x).all()) for x in gradients):
        return math.inf
    out, lse = reference
    batch, _, heads, _ = cell.q.shape
    kv_heads = cell.k.shape[2]
    worst = 0.0
    for b, g in {(0, 0), (batch - 1, kv_heads - 1)}:
        k, v = cell.k[b, :, g].float(), cell.v[b, :, g].float()
        dk, dv = torch.zeros_like(k), torch.zeros_like(v)
        for h in range(g * heads // kv_heads, (g + 1) * heads // kv_heads):
            dq, more_dk, more_dv = _gradients_of_head(cell, b, h, k, v, out[b, :, h].float(), lse[b, h])
            dk, dv = dk + more_dk, dv + more_dv
            worst = max(worst, _apart(gradients[0][b, :, h], dq))
        worst = max(worst, _apart(gradients[1][b, :, g], dk), _apart(gradients[2][b, :, g], dv))
    return worst


def _gradients_of_head(
    cell: Cell, b: int, h: int, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dq, dk and dv of one query head in float32, some rows at a time."""
    scale = k.shape[1] ** -0.5
    dq, dk, dv = torch.empty_like(out), torch.zeros_like(k), torch.zeros_like(v)
    for start in range(0, cell.tokens, ROWS_AT_ONCE):
        rows = torch.arange(start, min(start + ROWS_AT_ONCE, cell.tokens), device=out.device)
        q, dout = cell.q[b, rows, h].float(), cell.dout[b, rows, h].float()
        p = torch.exp((q @ k.T) * scale - lse[rows, None].float())
        p.masked_fill_(_hidden(cell, b, h, rows), 0.0)
        ds = p * (dout @ v.T - (dout * out[rows]).sum(-1, keepdim=True))
        dq[rows], dk, dv = ds @ k * scale, dk + ds.T @ q * scale, dv + p.T @ dout
    return dq, dk, dv


def _apart(mine: Tensor, right: Tensor) -> float:
    return ((mine.float() - right).norm() / right.norm().clamp_min(1e-30)).item()
