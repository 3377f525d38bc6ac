"""FlexAttention's masks, both ways: a `mask_mod` or `BlockMask` of a column mask, and back.

A column mask always has both forms. The way back may not exist: a `mask_mod` can hide more than two spans of
rows from a key, and then the first such key is named. torch.nn.attention.flex_attention is imported on use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fm3_core import BlockMap, ColumnMask
from fm3_core.blocks import FULL, PARTIAL
from fm3_core.check import require_int
from fm3_core.errors import MaskError
from fm3_kernels.device_mask import DeviceMask

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

MaskMod: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(batch, query head, row, key) -> whether the row sees the key, for integer tensors without dimensions."""

_STRIPE_ELEMENTS = 1 << 22


def to_mask_mod(
    mask: ColumnMask, *, query_heads: int | None = None, device: torch.device | str = "cpu"
) -> MaskMod:
    """Return FlexAttention's `mask_mod` of a mask.

    Args:
        mask: the mask.
        query_heads: heads of q, a multiple of the mask's heads; None where the mask has 1 or as many as q.
        device: where q, k and v are.
    """
    on_device = DeviceMask.from_mask(mask, device)
    heads_per_mask = _query_heads(mask, query_heads) // mask.heads
    one_batch, one_head = mask.batch == 1, mask.heads == 1

    def mask_mod(batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        """Say whether a row sees a key: it is in neither of the key's hidden spans."""
        entry = torch.zeros_like(batch) if one_batch else batch
        mask_head = torch.zeros_like(head) if one_head else head // heads_per_mask
        column = (entry, mask_head, key)
        in_lower = (on_device.lts[column] <= row) & (row < on_device.lte[column])
        in_upper = (on_device.uts[column] <= row) & (row < on_device.ute[column])
        return ~(in_lower | in_upper)

    return mask_mod


def to_block_mask(
    mask: ColumnMask,
    *,
    query_heads: int | None = None,
    block_size: int = 128,
    device: torch.device | str = "cpu",
) -> BlockMask:
    """Return FlexAttention's `BlockMask` of a mask, its blocks classified exactly and without a dense mask.

    Args:
        mask: the mask, with at least one row and one key.
        query_heads: heads of q, a multiple of the mask's heads; None where the mask has 1 or as many as q.
        block_size: rows and keys of a block.
        device: where q, k and v are.
    """
    from torch.nn.attention.flex_attention import BlockMask

    if mask.num_rows == 0 or mask.num_keys == 0:
        raise MaskError(f"a BlockMask needs rows and keys, the mask has {mask.num_rows} x {mask.num_keys}")
    heads = _query_heads(mask, query_heads)
    repeats = 1 if mask.heads == 1 else heads // mask.heads
    kinds = torch.tensor(BlockMap.from_mask(mask, block_size, block_size).kinds, device=device)
    kinds = kinds.repeat_interleave(repeats, dim=1)
    partial_count, partial_blocks = _listed(kinds == PARTIAL)
    full_count, full_blocks = _listed(kinds == FULL)
    return BlockMask.from_kv_blocks(
        partial_count,
        partial_blocks,
        full_count,
        full_blocks,
        BLOCK_SIZE=block_size,
        mask_mod=to_mask_mod(mask, query_heads=heads, device=device),
        seq_lengths=(mask.num_rows, mask.num_keys),
    )


def from_mask_mod(
    mask_mod: MaskMod,
    *,
    num_rows: int,
    num_keys: int | None = None,
    batch: int = 1,
    heads: int = 1,
    device: torch.device | str = "cpu",
) -> ColumnMask:
    """Return the column mask that means exactly what a `mask_mod` says, canonical.

    Every (row, key) pair is evaluated, some columns at a time: O(rows * keys) time, O(rows + keys) memory.

    Args:
        mask_mod: FlexAttention's function of (batch, head, row, key).
        num_rows: query rows.
        num_keys: keys, by default as many as rows.
        batch: batch entries to evaluate; 1 where the function does not look at its batch index.
        heads: heads to evaluate; 1 where it does not look at its head index.
        device: where the tensors that the function captures are.

    Raises:
        MaskError: names the first column that has no form with two hidden spans, and the spans that it hides.
    """
    num_rows = require_int("num_rows", num_rows)
    num_keys = num_rows if num_keys is None else require_int("num_keys", num_keys)
    shape = (require_int("batch", batch, minimum=1), require_int("heads", heads, minimum=1), num_keys)
    vectors = np.zeros((4, *shape), dtype=np.int32)
    for entry in np.ndindex(*shape[:2]):
        for first, visible in _stripes(mask_mod, entry, num_rows, num_keys, device):
            _fill_columns(
                vectors[:, entry[0], entry[1]], first, visible, f"batch {entry[0]}, head {entry[1]}"
            )
    return ColumnMask(*vectors, num_rows=num_rows).canonical()


def from_block_mask(
    block_mask: BlockMask, *, batch: int | None = None, heads: int | None = None
) -> ColumnMask:
    """Return the column mask that means exactly what a `BlockMask` says, canonical.

    A pair is visible iff its block is listed as full, or is listed and the `mask_mod` says so.

    Args:
        block_mask: the mask.
        batch: batch entries to evaluate, None for the block mask's own.
        heads: heads to evaluate, None for the block mask's own.

    Raises:
        MaskError: names the first column that has no form with two hidden spans, and the spans that it hides.
    """
    own_batch, own_heads = block_mask.kv_num_blocks.shape[:2]
    num_rows, num_keys = block_mask.seq_lengths
    block_rows, block_keys = block_mask.BLOCK_SIZE
    kinds = _dense_blocks(block_mask.kv_num_blocks, block_mask.kv_indices) * PARTIAL
    if block_mask.full_kv_num_blocks is not None and block_mask.full_kv_indices is not None:
        full = _dense_blocks(block_mask.full_kv_num_blocks, block_mask.full_kv_indices)
        kinds = torch.where(full, FULL, kinds)

    def visible(entry: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        """Say whether a row sees a key, by its block first."""
        own_entry = torch.zeros_like(entry) if own_batch == 1 else entry
        own_head = torch.zeros_like(head) if own_heads == 1 else head
        kind = kinds[own_entry, own_head, row // block_rows, key // block_keys]
        return (kind == FULL) | ((kind == PARTIAL) & block_mask.mask_mod(entry, head, row, key))

    return from_mask_mod(
        visible,
        num_rows=num_rows,
        num_keys=num_keys,
        batch=own_batch if batch is None else batch,
        heads=own_heads if heads is None else heads,
        device=block_mask.kv_indices.device,
    )


def _query_heads(mask: ColumnMask, query_heads: int | None) -> int:
    heads = mask.heads if query_heads is None else require_int("query_heads", query_heads, minimum=1)
    if mask.heads == 0 or heads % mask.heads:
        raise MaskError(f"the mask's {mask.heads} heads do not divide query_heads={heads}")
    return heads


def _listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of chosen blocks of each row block, and their indices first, ascending; int32."""
    order = torch.sort(chosen.to(torch.uint8), dim=-1, descending=True, stable=True).indices
    return chosen.sum(-1, dtype=torch.int32), order.to(torch.int32)


def _dense_blocks(counts: Tensor, indices: Tensor) -> Tensor:
    """Return bool [batch, heads, row blocks, key blocks] of a list of blocks."""
    listed = torch.arange(indices.shape[-1], device=indices.device) < counts.unsqueeze(-1)
    return torch.zeros_like(indices, dtype=torch.bool).scatter(-1, indices.long(), listed)


def _stripes(
    mask_mod: MaskMod, entry: tuple[int, ...], num_rows: int, num_keys: int, device: torch.device | str
) -> Iterator[tuple[int, Tensor]]:
    """Yield (first key, bool [rows, keys of the stripe]) over all keys."""
    from torch.nn.attention.flex_attention import create_mask

    step = max(1, _STRIPE_ELEMENTS // max(1, num_rows))
    for first in range(0, num_keys if num_rows else 0, step):
        shifted = _shifted(mask_mod, entry, first)
        yield first, create_mask(shifted, 1, 1, num_rows, min(step, num_keys - first), device)[0, 0]


def _shifted(mask_mod: MaskMod, entry: tuple[int, ...], first_key: int) -> MaskMod:
    """Return the function whose batch entry 0, head 0 and key 0 are the given ones of `mask_mod`."""
    batch, head = entry

    def shifted(b: Tensor, h: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return mask_mod(b + batch, h + head, row, key + first_key)

    return shifted


def _fill_columns(vectors: NDArray[np.int32], first: int, visible: Tensor, where: str) -> None:
    """Write a stripe's hidden spans into vectors [4, keys], or raise for the first column that has three."""
    edge = torch.ones_like(visible[:1])
    seen_before, seen_behind = torch.cat([edge, visible[:-1]]), torch.cat([visible[1:], edge])
    columns, starts = (~visible & seen_before).T.nonzero().cpu().numpy().T
    ends = (~visible & seen_behind).T.nonzero().cpu().numpy()[:, 1] + 1
    counts = np.bincount(columns, minlength=visible.shape[1])
    wrong = np.flatnonzero(counts > 2)
    if wrong.size:
        mine = columns == wrong[0]
        spans = ", ".join(f"[{s}, {e})" for s, e in zip(starts[mine], ends[mine], strict=True))
        raise MaskError(
            f"mask_mod: {where}, column {first + wrong[0]} has no form with two hidden spans: "
            f"it hides {spans} ({wrong.size} of the {counts.size} columns evaluated with it have none)"
        )
    place = np.arange(len(columns)) - (np.cumsum(counts) - counts)[columns]
    vectors[2 * place, first + columns] = starts
    vectors[2 * place + 1, first + columns] = ends
