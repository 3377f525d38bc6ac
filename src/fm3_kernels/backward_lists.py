"""`BackwardLists`: which row blocks each key block meets, as the Hopper backward kernel reads it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fm3_kernels import hopper_backward_ops as ops
from fm3_kernels.device_mask import DeviceMask
from fm3_kernels.made_on import MadeOn
from fm3_kernels.prepared_mask import PreparedMask, prepared


@dataclass(frozen=True, kw_only=True, eq=False)
class BackwardLists:
    """Made once a mask, beside its `PreparedMask`.

    Attributes:
        records: int32 [batch, heads, key blocks, 4]: key block, first and last row block of 64 rows that meet
            it, number of them.
        sorted: the same in the order in which key blocks are taken.
        visits: int32 [batch, heads, row blocks, ceil(key blocks / 32), 2]: bits of the places in that order
            that meet the row block, and how many there are before.
        masks_of_kv_head: heads of the mask that share an order, that of the first: see `masks_of_kv_head`.
    """

    records: Tensor
    sorted: Tensor
    visits: Tensor
    masks_of_kv_head: int
    made: MadeOn

    @classmethod
    def from_prepared(cls, mask: PreparedMask, *, kv_heads: int) -> BackwardLists:
        """List the blocks of a prepared mask on its device, without waiting for it.

        Args:
            mask: the mask, with its map of blocks to keep if it has one.
            kv_heads: of the attention; a multiple of the mask's heads or a divisor of them.
        """
        records, in_order, visits = ops.prepare_backward(
            mask.columns,
            mask.extrema,
            mask.row_blocks,
            mask.keep,
            num_rows=mask.num_rows,
            num_keys=mask.num_keys,
            kv_heads=kv_heads,
        )
        return cls(
            records=records,
            sorted=in_order,
            visits=visits,
            masks_of_kv_head=masks_of_kv_head(mask.columns.shape[1], kv_heads),
            made=MadeOn.now(mask.columns.device),
        )


def backward_lists(mask: DeviceMask, *, kv_heads: int) -> BackwardLists:
    """Return the lists of a mask without a map; made at the first call, then kept with the mask."""
    found = mask.derived(
        ("backward lists", masks_of_kv_head(mask.heads, kv_heads)),
        lambda m: BackwardLists.from_prepared(prepared(m), kv_heads=kv_heads),
    )
    if not torch.compiler.is_compiling():
        found.made.wait()
    return found


def masks_of_kv_head(mask_heads: int, kv_heads: int) -> int:
    """Return how many heads of the mask a kv head's query heads have; all follow the first one's order."""
    return max(mask_heads // kv_heads, 1)


def repeat_heads(mask: DeviceMask, *, query_heads: int, kv_heads: int) -> DeviceMask:
    """Return a mask whose heads divide or are a multiple of kv_heads: itself, or one for each query head."""
    if kv_heads % mask.heads == 0 or mask.heads % kv_heads == 0:
        return mask
    return mask.derived(("repeated heads", query_heads), lambda m: _repeated(m, query_heads))


def _repeated(mask: DeviceMask, heads: int) -> DeviceMask:
    vectors = (x.repeat_interleave(heads // mask.heads, dim=1) for x in mask.vectors)
    return DeviceMask(*vectors, num_rows=mask.num_rows)
