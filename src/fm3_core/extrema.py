"""Per-key-block maxima and minima of a mask's vectors: what classifies a block of rows in O(1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fm3_core.check import require_int
from fm3_core.mask import MAX_ROWS, ColumnMask
from fm3_core.span import Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockExtrema:
    """Extrema of the vectors over each block of key columns, int32 [batch, heads, key blocks], read-only.

    Over *all* columns of the block: rows in [max_lts, min_lte) are hidden by every column's lower span, rows
    in [max_uts, min_ute) by every column's upper span. Over the columns whose span is *not empty*: rows
    outside [min_lts, max_lte) are hidden by no column's lower span, rows outside [min_uts, max_ute) by no
    upper span; a block whose spans are all empty has min = num_rows and max = 0.

    The two kinds must not be mixed: leaving empty spans out of the first would call visible blocks empty;
    keeping them in the second would make blocks partial that no span touches.
    """

    max_lts: NDArray[np.int32]
    min_lte: NDArray[np.int32]
    max_uts: NDArray[np.int32]
    min_ute: NDArray[np.int32]
    min_lts: NDArray[np.int32]
    max_lte: NDArray[np.int32]
    min_uts: NDArray[np.int32]
    max_ute: NDArray[np.int32]
    num_rows: int
    block_keys: int

    def __post_init__(self) -> None:
        """Freeze the arrays."""
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Unpickle, and freeze again."""
        self.__dict__.update(state)
        self.__post_init__()

    @property
    def num_blocks(self) -> int:
        """Key blocks of each batch entry and head, a shorter last one counted."""
        return int(self.max_lts.shape[2])

    @classmethod
    def from_mask(cls, mask: ColumnMask, block_keys: int) -> BlockExtrema:
        """Take the extrema of a mask's vectors as they stand, the last block over the keys that there are.

        Args:
            mask: any mask; it is not brought to canonical form first.
            block_keys: key columns of a block, at least 1.
        """
        block_keys = require_int("block_keys", block_keys, minimum=1)
        first_keys = np.arange(0, mask.num_keys, min(block_keys, MAX_ROWS))
        max_lts, min_lte, min_lts, max_lte = _span_extrema(mask.lts, mask.lte, first_keys, mask.num_rows)
        max_uts, min_ute, min_uts, max_ute = _span_extrema(mask.uts, mask.ute, first_keys, mask.num_rows)
        return cls(
            max_lts=max_lts,
            min_lte=min_lte,
            max_uts=max_uts,
            min_ute=min_ute,
            min_lts=min_lts,
            max_lte=max_lte,
            min_uts=min_uts,
            max_ute=max_ute,
            num_rows=mask.num_rows,
            block_keys=block_keys,
        )


def _span_extrema(start: Ints, end: Ints, first_keys: Ints, num_rows: int) -> list[NDArray[np.int32]]:
    """Return max start and min end over all columns, then min start and max end over the non-empty spans."""
    hides = start < end
    taken = [
        (np.maximum, start),
        (np.minimum, end),
        (np.minimum, np.where(hides, start, np.int32(num_rows))),
        (np.maximum, np.where(hides, end, np.int32(0))),
    ]
    if not len(first_keys):
        return [np.zeros((*start.shape[:2], 0), dtype=np.int32) for _ in taken]
    return [
        reduce.reduceat(values, first_keys, axis=2).astype(np.int32, copy=False) for reduce, values in taken
    ]
