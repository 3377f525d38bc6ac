"""Per-key-block extrema of a mask's vectors, and the O(1) block classification that they allow.

The rule (sound, O(1) a block) for rows [r0, r1):
EMPTY if `r0 >= max(start) and r1 <= min(end)` of one span over all columns of the block;
else a span cuts the block if `r0 < max(end) and r1 > min(start)` over the columns whose span is not empty;
FULL if no span cuts it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

EMPTY_BLOCK = 4
LOWER_CUTS = 1
UPPER_CUTS = 2


@dataclass(frozen=True, eq=False)
class BlockExtrema:
    """Extrema of the two spans of each key block.

    Args:
        table: int32 [8, batch, heads, key blocks] on the mask's device. Rows 0..3 are the lower span's
            max(start) and min(end) over all columns, then max(end) and min(start) over its non-empty
            columns; rows 4..7 are the upper span's.
        block_keys: keys of a block; the last block may be shorter.
    """

    table: Tensor
    block_keys: int

    @classmethod
    def from_vectors(
        cls, lts: Tensor, lte: Tensor, uts: Tensor, ute: Tensor, *, num_rows: int, block_keys: int
    ) -> BlockExtrema:
        """Reduce the vectors, int32 [batch, heads, keys], on their device and without waiting for it."""
        lower = _span_extrema(lts, lte, num_rows, block_keys)
        upper = _span_extrema(uts, ute, num_rows, block_keys)
        return cls(torch.stack(lower + upper), block_keys)

    @cached_property
    def host(self) -> NDArray[np.int32]:
        """The table as a numpy array (the first access waits for the device)."""
        values: NDArray[np.int32] = self.table.cpu().numpy()
        return values

    def classify(self, batch: int, head: int, row_start: int, row_end: int) -> NDArray[np.uint8]:
        """Classify the key blocks for the rows [row_start, row_end) of one batch entry and mask head.

        Returns:
            uint8 [key blocks]: EMPTY_BLOCK, or the sum of LOWER_CUTS and UPPER_CUTS of the spans that cut
            the block, 0 where all of it is visible.
        """
        lower, upper = self.host[:4, batch, head], self.host[4:, batch, head]
        empty = _covers(lower, row_start, row_end) | _covers(upper, row_start, row_end)
        codes = _cuts(lower, row_start, row_end) * np.uint8(LOWER_CUTS)
        codes += _cuts(upper, row_start, row_end) * np.uint8(UPPER_CUTS)
        codes[empty] = EMPTY_BLOCK
        return codes


def _span_extrema(start: Tensor, end: Tensor, num_rows: int, block_keys: int) -> list[Tensor]:
    """Return max(start), min(end) over all columns, then max(end), min(start) over the non-empty ones."""
    some = start < end
    touched_end = torch.where(some, end, 0)
    touched_start = torch.where(some, start, num_rows)
    return [
        _reduce(start, block_keys, largest=True, neutral=0),
        _reduce(end, block_keys, largest=False, neutral=num_rows),
        _reduce(touched_end, block_keys, largest=True, neutral=0),
        _reduce(touched_start, block_keys, largest=False, neutral=num_rows),
    ]


def _reduce(values: Tensor, block_keys: int, *, largest: bool, neutral: int) -> Tensor:
    """Reduce [batch, heads, keys] to [batch, heads, key blocks]; neutral values fill the tail block."""
    batch, heads, num_keys = values.shape
    num_blocks = -(-num_keys // block_keys)
    padded = torch.nn.functional.pad(values, (0, num_blocks * block_keys - num_keys), value=neutral)
    blocks = padded.view(batch, heads, num_blocks, block_keys)
    return blocks.amax(-1) if largest else blocks.amin(-1)


def _covers(span: NDArray[np.int32], row_start: int, row_end: int) -> NDArray[np.bool_]:
    covered: NDArray[np.bool_] = (span[0] <= row_start) & (span[1] >= row_end)
    return covered


def _cuts(span: NDArray[np.int32], row_start: int, row_end: int) -> NDArray[np.bool_]:
    cut: NDArray[np.bool_] = (row_start < span[2]) & (row_end > span[3])
    return cut
