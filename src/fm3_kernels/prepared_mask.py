"""`PreparedMask`: a mask in the form that the Hopper kernels read, made once a mask on the device."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fm3_core.errors import MaskError
from fm3_kernels import hopper_ops
from fm3_kernels.device_mask import DeviceMask
from fm3_kernels.made_on import MadeOn

BLOCK_KEYS = hopper_ops.BLOCK_KEYS
BLOCK_ROWS = 128


@dataclass(frozen=True, kw_only=True, eq=False)
class PreparedMask:
    """What the kernels walk: packed columns, extrema of half blocks, row blocks in their order.

    Attributes:
        columns: int32 [batch, heads, key blocks, 4, 128]: lts, lte, uts, ute of each key block.
        extrema: int32 [batch, heads, 2 * key blocks, 2, 4] of 64 columns each, lower span then upper span.
        row_blocks: int32 [batch, heads, row blocks, 4]: row block, first and last key block that it visits,
            number of key blocks that it visits; in the order in which they are worked on, most work first
            unless `by_arrival`.
        keep: uint8 [batch, heads, row blocks, key blocks], 0 where a block is hidden whatever the columns
            say; None keeps all.
        num_rows: rows of the mask.
        num_keys: keys of the mask.
        made: when the arrays are filled.
    """

    columns: Tensor
    extrema: Tensor
    row_blocks: Tensor
    keep: Tensor | None
    num_rows: int
    num_keys: int
    made: MadeOn

    @classmethod
    def from_mask(cls, mask: DeviceMask, *, keep: Tensor | None = None) -> PreparedMask:
        """Prepare a mask on its CUDA device, without waiting for it.

        Args:
            mask: the mask.
            keep: bool or uint8 [1 or batch, 1 or heads, row blocks, key blocks] over blocks of 128 rows and
                128 keys, as `BlockMap.kinds` is: where it is 0 the block is hidden beside what the mask
                hides. Its batch and heads may exceed the mask's, if those are 1 or divide them.

        Raises:
            MaskError: `keep` does not fit the mask.
        """
        vectors = mask.vectors
        if keep is not None:
            batch, heads = _check_keep(keep, mask)
            keep = keep.to(torch.uint8).expand(batch, -1, -1, -1)
            keep = keep.repeat_interleave(heads // keep.shape[1], dim=1).contiguous()
            vectors = [x.repeat_interleave(heads // mask.heads, dim=1).expand(batch, -1, -1) for x in vectors]
        lts, lte, uts, ute = (x.contiguous() for x in vectors)
        columns, extrema, row_blocks = hopper_ops.prepare_mask(
            lts, lte, uts, ute, keep, mask.num_rows, BLOCK_ROWS
        )
        return cls(
            columns=columns,
            extrema=extrema,
            row_blocks=row_blocks,
            keep=keep,
            num_rows=mask.num_rows,
            num_keys=mask.num_keys,
            made=MadeOn.now(mask.device),
        )

    def by_arrival(self) -> PreparedMask:
        """Return the same mask for keys that arrive in their order.

        Row blocks come by their last key block, most work first among those that have the same: one that is
        begun too early keeps a multiprocessor waiting.
        """
        self.made.wait()
        last, count = self.row_blocks[..., 2], self.row_blocks[..., 3]
        order = torch.argsort(last * (self.columns.shape[2] + 1) - count, dim=-1, stable=True)
        row_blocks = self.row_blocks.gather(2, order[..., None].expand(-1, -1, -1, 4))
        return replace(self, row_blocks=row_blocks, made=MadeOn.now(row_blocks.device))


def prepared(mask: DeviceMask, *, by_arrival: bool = False) -> PreparedMask:
    """Return the mask's prepared form; made at the first call, then kept with the mask.

    Args:
        mask: the mask.
        by_arrival: rows in the order in which their keys arrive, see `PreparedMask.by_arrival`.
    """
    if by_arrival:
        found = mask.derived("prepared by arrival", lambda m: prepared(m).by_arrival())
    else:
        found = mask.derived("prepared", PreparedMask.from_mask)
    if not torch.compiler.is_compiling():
        found.made.wait()
    return found


def _check_keep(keep: Tensor, mask: DeviceMask) -> tuple[int, int]:
    """Return batch and heads of the prepared mask."""
    blocks = (-(-mask.num_rows // BLOCK_ROWS), -(-mask.num_keys // BLOCK_KEYS))
    if keep.dim() != 4 or tuple(keep.shape[2:]) != blocks:
        raise MaskError(
            f"keep must be [batch, heads, {blocks[0]} row blocks, {blocks[1]} key blocks] of {BLOCK_ROWS} "
            f"rows and {BLOCK_KEYS} keys, got {list(keep.shape)}"
        )
    if keep.dtype not in (torch.bool, torch.uint8):
        raise MaskError(f"keep must be bool or uint8, got {keep.dtype}")
    if keep.device != mask.device:
        raise MaskError(f"keep is on {keep.device}, the mask on {mask.device}")
    batch, heads = max(keep.shape[0], mask.batch), max(keep.shape[1], mask.heads)
    for name, whole, parts in (
        ("batch", batch, (keep.shape[0], mask.batch)),
        ("heads", heads, (keep.shape[1], mask.heads)),
    ):
        if any(
            part != whole and (part == 0 or whole % part or (name == "batch" and part != 1)) for part in parts
        ):
            raise MaskError(f"keep has {name} {parts[0]}, the mask {parts[1]}: one must repeat the other")
    return batch, heads
