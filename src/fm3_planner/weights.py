"""What a query chunk costs: kernel blocks by kind, times the cost of a block of that kind."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fm3_core.check import require_int
from fm3_core.errors import PlanError
from fm3_core.mask import ColumnMask
from fm3_core.workload import block_counts

_COSTS = (
    "full_forward",
    "partial_forward",
    "full_backward",
    "partial_backward",
    "row_block_forward",
    "row_block_backward",
)


@dataclass(frozen=True, kw_only=True)
class CostWeights:
    """Integer cost of one kernel block of one query head, by kind and direction; only ratios matter.

    The defaults are an assumption, not a measurement: 10 units for each matrix product of a block, of which
    forward does 2 and backward 5, and a tenth more where the mask must be applied element by element.

    Attributes:
        full_forward: forward cost of a block that is wholly visible.
        partial_forward: forward cost of a block that the mask cuts.
        full_backward: backward cost of a wholly visible block; 0 where no backward runs.
        partial_backward: backward cost of a block that the mask cuts; 0 where no backward runs.
        row_block_forward: forward cost of a block of rows before it visits any key: loading q, storing out.
        row_block_backward: the same in backward.
        block_rows: query rows of the block that these are the costs of.
        block_keys: keys of that block.
        backward_block_rows: rows of backward's block, None for as many.
        backward_block_keys: keys of backward's block, None for as many.
        provenance: where the numbers come from, one sentence.

    Raises:
        PlanError: a cost is not an integer >= 0, or a block size not one >= 1.
    """

    full_forward: int = 20
    partial_forward: int = 22
    full_backward: int = 50
    partial_backward: int = 55
    row_block_forward: int = 0
    row_block_backward: int = 0
    block_rows: int = 128
    block_keys: int = 128
    backward_block_rows: int | None = None
    backward_block_keys: int | None = None
    provenance: str = (
        "assumption: 10 units a matrix product, 2 forward and 5 backward, a tenth more under a partial mask"
    )

    def __post_init__(self) -> None:
        """Validate every number."""
        for name in _COSTS:
            require_int(f"CostWeights.{name}", getattr(self, name), error=PlanError)
        for name in ("block_rows", "block_keys"):
            require_int(f"CostWeights.{name}", getattr(self, name), minimum=1, error=PlanError)
            if getattr(self, f"backward_{name}") is not None:
                size = getattr(self, f"backward_{name}")
                require_int(f"CostWeights.backward_{name}", size, minimum=1, error=PlanError)
        if not isinstance(self.provenance, str):
            raise PlanError(f"CostWeights.provenance must be a string, got {self.provenance!r}")

    @property
    def full(self) -> int:
        """Forward and backward cost of a wholly visible block."""
        return int(self.full_forward) + int(self.full_backward)

    @property
    def partial(self) -> int:
        """Forward and backward cost of a block that the mask cuts."""
        return int(self.partial_forward) + int(self.partial_backward)

    @property
    def row_block(self) -> int:
        """Forward and backward cost of a block of rows beside the key blocks that it visits."""
        return int(self.row_block_forward) + int(self.row_block_backward)

    def by_block_size(self) -> list[tuple[int, int, tuple[int, int, int]]]:
        """Return (rows, keys, costs of a full, a partial and a row block) of each size of block."""
        forward = (int(self.full_forward), int(self.partial_forward), int(self.row_block_forward))
        backward = (int(self.full_backward), int(self.partial_backward), int(self.row_block_backward))
        rows, keys = self.block_rows, self.block_keys
        backward_rows = rows if self.backward_block_rows is None else self.backward_block_rows
        backward_keys = keys if self.backward_block_keys is None else self.backward_block_keys
        if (backward_rows, backward_keys) == (rows, keys):
            return [(rows, keys, (self.full, self.partial, self.row_block))]
        return [(rows, keys, forward), (backward_rows, backward_keys, backward)]


def chunk_weights(mask: ColumnMask, *, chunk_size: int, cost: CostWeights, query_heads: int) -> list[int]:
    """Return the cost of each query chunk: its visited blocks, over batch entries and query heads.

    Row blocks start anew at each chunk, as they do on the rank that owns it; where a chunk is smaller than a
    block, blocks have the chunk's size in rows and keys, so that small inputs are weighed as finely as they
    are cut.

    Args:
        mask: the mask; its rows are cut into chunks.
        chunk_size: rows of a chunk, the last may be shorter.
        cost: what a block costs.
        query_heads: heads of q, a multiple of the mask's heads.

    Returns:
        Python integers, which do not overflow, one a chunk.
    """
    weights = [0] * -(-mask.num_rows // chunk_size)
    for block_rows, block_keys, costs in cost.by_block_size():
        blocks = (min(block_rows, chunk_size), min(block_keys, chunk_size))
        counted = _blocks_of_chunks(mask, chunk_size, *blocks)
        for chunk, counts in enumerate(zip(*counted, strict=True)):
            weights[chunk] += sum(count * price for count, price in zip(counts, costs, strict=True))
    return [query_heads // mask.heads * weight for weight in weights]


def _blocks_of_chunks(
    mask: ColumnMask, chunk_size: int, block_rows: int, block_keys: int
) -> tuple[list[int], list[int], list[int]]:
    """Return the full, the partial and the row blocks of each chunk, over batch entries and mask heads."""
    bounds, first_block = row_bounds(mask.num_rows, chunk_size, block_rows)
    full, partial = block_counts(mask, bounds, block_keys)
    full_by_chunk = np.add.reduceat(full.sum(axis=(0, 1)), first_block)
    partial_by_chunk = np.add.reduceat(partial.sum(axis=(0, 1)), first_block)
    row_blocks = np.diff([*first_block.tolist(), len(bounds) - 1]) * mask.batch * mask.heads
    return full_by_chunk.tolist(), partial_by_chunk.tolist(), row_blocks.tolist()


def row_bounds(
    num_rows: int, chunk_size: int, block_rows: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cut each chunk into blocks of `block_rows` rows, the last of a chunk shorter where it does not divide.

    Returns:
        bounds: int64 [blocks + 1], ascending from 0 to num_rows; block b is rows bounds[b]..bounds[b + 1] -
            1.
        first_block: int64 [chunks], the block that each chunk starts with.
    """
    offsets_in_chunk = np.arange(0, chunk_size, block_rows, dtype=np.int64)
    chunk_starts = np.arange(0, num_rows, chunk_size, dtype=np.int64)
    starts = (chunk_starts[:, None] + offsets_in_chunk[None, :]).ravel()
    starts = starts[starts < num_rows]
    first_block = np.searchsorted(starts, chunk_starts)
    return np.append(starts, np.int64(num_rows)), first_block.astype(np.int64, copy=False)
