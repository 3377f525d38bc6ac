"""Views of one share's tensors as stacked matrix products.

Shape legend: N stacked products (batch entries x kv heads), M stacked rows (query heads of one kv head x
rows of the block), B batch entries, G kv heads, J query heads of one kv head, S rows of the block, T keys
of the run, D head dim.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fm3_kernels.shares import Share


def row_view(x: Tensor, share: Share, rows: slice) -> Tensor:
    """View a share's rows of x [batch, rows, query heads, dim] as [B, G, J, S, D]."""
    tile_BSHD = x[share.batch, rows, share.query_heads]
    return torch.unflatten(tile_BSHD, 2, (-1, share.heads_per_kv)).permute(0, 2, 3, 1, 4)


def stack_rows(x: Tensor, share: Share, rows: slice, dtype: torch.dtype) -> Tensor:
    """Copy a share's rows of x [batch, rows, query heads, dim] into a stack [N, M, D] of `dtype`."""
    tile_BGJSD = row_view(x, share, rows).to(dtype)
    return tile_BGJSD.reshape(-1, tile_BGJSD.shape[2] * tile_BGJSD.shape[3], tile_BGJSD.shape[4])


def key_view(x: Tensor, share: Share, keys: slice) -> Tensor:
    """View a share's keys of x [batch, keys, kv heads, dim] as [B, G, T, D]."""
    return x[share.batch, keys, share.kv_heads].transpose(1, 2)


def stack_keys(x: Tensor, share: Share, keys: slice, dtype: torch.dtype) -> Tensor:
    """Return a share's keys of x [batch, keys, kv heads, dim] as a stack [N, T, D], a view if it can be."""
    return key_view(x, share, keys).to(dtype).flatten(0, 1)


def stack_statistic(x: Tensor, share: Share, rows: slice) -> Tensor:
    """Copy a share's rows of x [batch, query heads, rows] into a stack [N, M, 1]."""
    tile_BGJS = torch.unflatten(x[share.batch, share.query_heads, rows], 1, (-1, share.heads_per_kv))
    return tile_BGJS.reshape(-1, tile_BGJS.shape[2] * tile_BGJS.shape[3], 1)


def store_rows(x: Tensor, share: Share, rows: slice, tile_NMD: Tensor) -> None:
    """Write a stack [N, M, D] into a share's rows of x, rounding to x's dtype."""
    view = row_view(x, share, rows)
    view.copy_(tile_NMD.view(view.shape))


def store_statistic(x: Tensor, share: Share, rows: slice, tile_NM1: Tensor) -> None:
    """Write a stack [N, M, 1] into a share's rows of x [batch, query heads, rows]."""
    view = x[share.batch, share.query_heads, rows]
    view.copy_(tile_NM1.view(view.shape))


def add_keys(x: Tensor, share: Share, keys: slice, tile_NTD: Tensor, *, scale: float = 1.0) -> None:
    """Add `scale` times a stack [N, T, D] to a share's keys of x."""
    view = key_view(x, share, keys)
    view.add_(tile_NTD.view(view.shape), alpha=scale)
