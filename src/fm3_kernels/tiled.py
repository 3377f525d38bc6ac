"""Block-sparse attention in torch: any torch device, any floating dtype, memory linear in rows and keys.

A row block and a run of adjacent visible key blocks meet in one matrix product; EMPTY blocks are never
visited, and only the cuts of a run are masked. Forward is the online softmax; backward recomputes the
probabilities from the log-sum-exp. Sums run in a fixed order, so that a result is the same bits every
time.

Shape legend: N stacked products (batch entries x kv heads), M stacked rows (query heads of one kv head x
rows of the block), T keys of the run, D head dim, E value head dim.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fm3_kernels.device_mask import DeviceMask
from fm3_kernels.hiding import hidden_pairs
from fm3_kernels.precision import accumulation_dtype
from fm3_kernels.schedule import Run, visible_runs
from fm3_kernels.shares import Share, shares
from fm3_kernels.stacking import (
    add_keys,
    stack_keys,
    stack_rows,
    stack_statistic,
    store_rows,
    store_statistic,
)


@dataclass(frozen=True, kw_only=True)
class TiledEngine:
    """The torch engine.

    Args:
        block_rows: query rows of a row block.
        block_keys: keys of a block of the mask.
        run_keys: most keys of one matrix product, a multiple of block_keys.
        tile_elements: most elements of a score tile, unless one block of one head needs more; forward keeps
            one tile, backward two.

    The defaults were the fastest of nine choices at 16K tokens (causal documents, 8 heads of dim 64,
    float32, two quiet AVX-512 cores): 1.81 s forward + backward. Half the tile, half the rows or half the
    keys took 1.9 to 2.1 s, an eighth of the tile 3.98 s; on cores shared with other work, smaller tiles
    were up to 8 % faster.
    """

    block_rows: int = 256
    block_keys: int = 128
    run_keys: int = 1024
    tile_elements: int = 1 << 21

    def why_unsupported(
        self, q: Tensor, k: Tensor, v: Tensor, mask: DeviceMask, *, deterministic: bool
    ) -> list[str]:
        """Return no reason: every checked call is served, and always deterministically."""
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
        if torch.compiler.is_compiling():
            result: tuple[Tensor, Tensor] = traced_forward(
                q, k, v, mask.vectors, mask.num_rows, self._sizes(), softmax_scale, out_dtype
            )
            return result
        dtype = accumulation_dtype(q.dtype)
        out = q.new_empty((*q.shape[:3], v.shape[3]), dtype=out_dtype)
        lse = q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=dtype)
        scratch = _Scratch(q, dtype)
        for share, rows, runs in self._work(q, k, mask):
            q_NMD = stack_rows(q, share, rows, dtype)
            peak_NM1 = q_NMD.new_full((*q_NMD.shape[:2], 1), -math.inf)
            sum_NM1 = torch.zeros_like(peak_NM1)
            out_NME = q_NMD.new_zeros((*q_NMD.shape[:2], v.shape[3]))
            for run in runs:
                keys = slice(run.start, run.end)
                k_NTD, v_NTE = stack_keys(k, share, keys, dtype), stack_keys(v, share, keys, dtype)
                p_NMT = _scores(q_NMD, k_NTD, softmax_scale, scratch)
                for pairs in hidden_pairs(mask, share, rows, run):
                    pairs.forbid(p_NMT)
                new_peak_NM1 = torch.maximum(peak_NM1, p_NMT.amax(-1, keepdim=True))
                base_NM1 = torch.where(new_peak_NM1 == -math.inf, 0.0, new_peak_NM1)
                p_NMT.sub_(base_NM1).exp_()
                decay_NM1 = torch.exp(peak_NM1 - base_NM1)
                sum_NM1.mul_(decay_NM1).add_(p_NMT.sum(-1, keepdim=True))
                out_NME.mul_(decay_NM1).baddbmm_(p_NMT, v_NTE)
                peak_NM1 = new_peak_NM1
            seen_NM1 = sum_NM1 > 0
            store_rows(out, share, rows, out_NME.div_(torch.where(seen_NM1, sum_NM1, 1.0)))
            store_statistic(lse, share, rows, peak_NM1 + sum_NM1.log())
        return out, lse

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
        if torch.compiler.is_compiling():
            gradients: tuple[Tensor, Tensor, Tensor] = traced_backward(
                dout, q, k, v, out, lse, dlse, mask.vectors, mask.num_rows, self._sizes(), softmax_scale,
                kv_grad_dtype,
            )  # fmt: skip
            return gradients
        dtype = accumulation_dtype(q.dtype)
        dq = torch.empty_like(q, memory_format=torch.contiguous_format)
        dk = torch.zeros_like(k, dtype=dtype, memory_format=torch.contiguous_format)
        dv = torch.zeros_like(v, dtype=dtype, memory_format=torch.contiguous_format)
        p_scratch, dp_scratch = _Scratch(q, dtype), _Scratch(q, dtype)
        for share, rows, runs in self._work(q, k, mask):
            lse_NM1 = stack_statistic(lse, share, rows)
            empty_NM1 = lse_NM1 == -math.inf
            q_NMD = stack_rows(q, share, rows, dtype)
            do_NME = stack_rows(dout, share, rows, dtype).masked_fill(empty_NM1, 0.0)
            delta_NM1 = (do_NME * stack_rows(out, share, rows, dtype)).sum(-1, keepdim=True)
            if dlse is not None:
                delta_NM1 -= stack_statistic(dlse, share, rows).masked_fill(empty_NM1, 0.0)
            base_NM1 = lse_NM1.masked_fill(empty_NM1, 0.0)
            dq_NMD = torch.zeros_like(q_NMD)
            for run in runs:
                keys = slice(run.start, run.end)
                k_NTD, v_NTE = stack_keys(k, share, keys, dtype), stack_keys(v, share, keys, dtype)
                hidden = hidden_pairs(mask, share, rows, run)
                p_NMT = _scores(q_NMD, k_NTD, softmax_scale, p_scratch).sub_(base_NM1).exp_()
                for pairs in hidden:
                    pairs.clear(p_NMT)
                add_keys(dv, share, keys, torch.bmm(p_NMT.mT, do_NME))
                ds_NMT = dp_scratch.product(do_NME, v_NTE.mT).sub_(delta_NM1).mul_(p_NMT)
                for pairs in hidden:
                    pairs.clear(ds_NMT)
                dq_NMD.baddbmm_(ds_NMT, k_NTD)
                add_keys(dk, share, keys, torch.bmm(ds_NMT.mT, q_NMD), scale=softmax_scale)
            store_rows(dq, share, rows, dq_NMD.mul_(softmax_scale))
        return dq, dk.to(kv_grad_dtype), dv.to(kv_grad_dtype)

    def _sizes(self) -> list[int]:
        return [self.block_rows, self.block_keys, self.run_keys, self.tile_elements]

    def _work(self, q: Tensor, k: Tensor, mask: DeviceMask) -> Iterator[tuple[Share, slice, Iterator[Run]]]:
        """Yield (share, rows, runs) that cover every query head's rows once."""
        (batch, num_rows, query_heads, _), num_keys = q.shape, k.shape[1]
        tile = min(self.block_rows, num_rows) * min(self.run_keys, num_keys)
        extrema = mask.block_extrema(self.block_keys)
        for share in shares(
            batch=batch,
            query_heads=query_heads,
            kv_heads=k.shape[2],
            mask_batch=mask.batch,
            mask_heads=mask.heads,
            max_products=self.tile_elements // max(1, tile),
        ):
            for start in range(0, num_rows, self.block_rows):
                end = min(num_rows, start + self.block_rows)
                runs = visible_runs(
                    extrema,
                    share.mask_batch,
                    share.mask_head,
                    start,
                    end,
                    num_keys=num_keys,
                    max_keys=self.run_keys,
                )
                yield share, slice(start, end), runs


class _Scratch:
    """Memory of the largest product so far, reused by the later ones: fresh pages are dear."""

    def __init__(self, like: Tensor, dtype: torch.dtype) -> None:
        self._flat = like.new_empty(0, dtype=dtype)

    def product(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the stacked product [N, M, T] of [N, M, D] and [N, D, T]; valid until the next call."""
        shape = (left.shape[0], left.shape[1], right.shape[2])
        size = math.prod(shape)
        if size > self._flat.numel():
            self._flat = self._flat.new_empty(size)
        return torch.bmm(left, right, out=self._flat[:size].view(shape))


def _scores(q_NMD: Tensor, k_NTD: Tensor, softmax_scale: float, scratch: _Scratch) -> Tensor:
    """Return the scaled scores [N, M, T]."""
    return scratch.product(q_NMD * softmax_scale, k_NTD.mT)


# torch.compile cannot trace loops that depend on a mask's values: it sees these two operations instead.


@torch.library.custom_op("fm3::tiled_forward", mutates_args=())
def traced_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    vectors: Sequence[Tensor],
    num_rows: int,
    sizes: Sequence[int],
    softmax_scale: float,
    out_dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Run `TiledEngine.forward` with the engine's four sizes under a mask of the four vectors."""
    engine, mask = _rebuilt(sizes, vectors, num_rows)
    return engine.forward(q, k, v, mask, softmax_scale=softmax_scale, out_dtype=out_dtype)


@traced_forward.register_fake
def _fake_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    vectors: Sequence[Tensor],
    num_rows: int,
    sizes: Sequence[int],
    softmax_scale: float,
    out_dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    out = q.new_empty((*q.shape[:3], v.shape[3]), dtype=out_dtype)
    return out, q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=accumulation_dtype(q.dtype))


@torch.library.custom_op("fm3::tiled_backward", mutates_args=())
def traced_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dlse: Tensor | None,
    vectors: Sequence[Tensor],
    num_rows: int,
    sizes: Sequence[int],
    softmax_scale: float,
    kv_grad_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run `TiledEngine.backward`, as `traced_forward` runs forward."""
    engine, mask = _rebuilt(sizes, vectors, num_rows)
    return engine.backward(
        dout, q, k, v, out, lse, mask,
        dlse=dlse, softmax_scale=softmax_scale, deterministic=True, kv_grad_dtype=kv_grad_dtype,
    )  # fmt: skip


@traced_backward.register_fake
def _fake_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dlse: Tensor | None,
    vectors: Sequence[Tensor],
    num_rows: int,
    sizes: Sequence[int],
    softmax_scale: float,
    kv_grad_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    dk, dv = (x.new_empty(x.shape, dtype=kv_grad_dtype) for x in (k, v))
    return q.new_empty(q.shape), dk, dv


def _rebuilt(
    sizes: Sequence[int], vectors: Sequence[Tensor], num_rows: int
) -> tuple[TiledEngine, DeviceMask]:
    block_rows, block_keys, run_keys, tile_elements = sizes
    engine = TiledEngine(
        block_rows=block_rows, block_keys=block_keys, run_keys=run_keys, tile_elements=tile_elements
    )
    return engine, DeviceMask(*vectors, num_rows=num_rows)
