"""Block maps: which blocks of rows and keys a kernel skips, which it must mask, which it takes whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fm3_core.check import require_int
from fm3_core.counts import RowChunks, num_key_chunks, pairs_by_span
from fm3_core.extrema import BlockExtrema
from fm3_core.mask import MAX_ROWS, ColumnMask
from fm3_core.registry import Registry

EMPTY = 0
"""Nothing of the block is visible."""
PARTIAL = 1
"""Some of the block may be hidden: whoever computes it applies the spans that cut it."""
FULL = 2
"""All of the block is visible."""

CUT_BY_LOWER = 1
"""Bit of `BlockMap.cuts`: lower spans hide rows of the block."""
CUT_BY_UPPER = 2
"""Bit of `BlockMap.cuts`: upper spans hide rows of the block."""

Kinds: TypeAlias = NDArray[np.uint8]
"""uint8 [batch, heads, row blocks, key blocks]."""

_BLOCKS_AT_ONCE = 1 << 17
"""Blocks whose temporaries fit the cache."""


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockMap:
    """The kind of every block of a mask, edge blocks clamped to the rows and keys that there are.

    Attributes:
        kinds: uint8 [batch, heads, row blocks, key blocks], read-only: EMPTY 0, PARTIAL 1, FULL 2. EMPTY and
            FULL are always true; PARTIAL is always true with method "exact", and with "extrema" it may be
            EMPTY or FULL in truth.
        cuts: uint8, same shape, read-only: for a PARTIAL block the bits CUT_BY_LOWER 1 and CUT_BY_UPPER 2,
            else 0. Applying only the mask's spans named there gives exactly the visible pairs of the block.
        block_rows: rows of a block.
        block_keys: keys of a block.
        num_rows: rows of the mask.
        num_keys: keys of the mask.
    """

    kinds: Kinds
    cuts: Kinds
    block_rows: int
    block_keys: int
    num_rows: int
    num_keys: int

    def __post_init__(self) -> None:
        """Freeze the arrays."""
        self.kinds.flags.writeable = False
        self.cuts.flags.writeable = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Unpickle, and freeze again."""
        self.__dict__.update(state)
        self.__post_init__()

    @classmethod
    def from_mask(cls, mask: ColumnMask, block_rows: int, block_keys: int, method: str = "exact") -> BlockMap:
        """Classify every block of a mask.

        Args:
            mask: any mask; its spans are taken as they stand, so that `cuts` names them.
            block_rows: rows of a block, at least 1.
            block_keys: keys of a block, at least 1.
            method: "exact" decides by counts of visible pairs; "extrema" by the maxima and minima of each key
                block's vectors, O(1) a block, as a kernel can afford.

        Raises:
            MaskError: a block size below 1.
            UnknownNameError: an unknown method; the message lists the known ones.
        """
        block_rows = require_int("block_rows", block_rows, minimum=1)
        block_keys = require_int("block_keys", block_keys, minimum=1)
        classify = METHODS.get(method)
        kinds, cuts = classify(mask, min(block_rows, MAX_ROWS), min(block_keys, MAX_ROWS))
        return cls(
            kinds=kinds,
            cuts=cuts,
            block_rows=block_rows,
            block_keys=block_keys,
            num_rows=mask.num_rows,
            num_keys=mask.num_keys,
        )

    @property
    def num_empty(self) -> int:
        """EMPTY blocks, over all batch entries and heads."""
        return int(np.count_nonzero(self.kinds == EMPTY))

    @property
    def num_partial(self) -> int:
        """PARTIAL blocks, over all batch entries and heads."""
        return int(np.count_nonzero(self.kinds == PARTIAL))

    @property
    def num_full(self) -> int:
        """FULL blocks, over all batch entries and heads."""
        return int(np.count_nonzero(self.kinds == FULL))

    def __repr__(self) -> str:
        """Say the shape and the counts, not the blocks."""
        return (
            f"BlockMap({self.num_rows} x {self.num_keys} in blocks of {self.block_rows} x {self.block_keys}: "
            f"{self.num_empty} empty, {self.num_partial} partial, {self.num_full} full)"
        )


def _by_extrema(mask: ColumnMask, block_rows: int, block_keys: int) -> tuple[Kinds, Kinds]:
    extrema = BlockExtrema.from_mask(mask, block_keys)
    row_start = np.arange(0, mask.num_rows, block_rows, dtype=np.int64)[:, None]
    row_end = np.minimum(row_start + block_rows, mask.num_rows)
    kinds = np.empty((mask.batch, mask.heads, len(row_start), extrema.num_blocks), dtype=np.uint8)
    cuts = np.empty_like(kinds)
    at_once = max(1, _BLOCKS_AT_ONCE // max(extrema.num_blocks, 1))
    for batch, head, piece in np.ndindex(mask.batch, mask.heads, -(-len(row_start) // at_once)):
        rows, entry = slice(piece * at_once, (piece + 1) * at_once), (batch, head)
        start, end = row_start[rows], row_end[rows]
        empty = (start >= extrema.max_lts[entry]) & (end <= extrema.min_lte[entry])
        empty |= (start >= extrema.max_uts[entry]) & (end <= extrema.min_ute[entry])
        lower = (start < extrema.max_lte[entry]) & (end > extrema.min_lts[entry])
        upper = (start < extrema.max_ute[entry]) & (end > extrema.min_uts[entry])
        kinds[batch, head, rows], cuts[batch, head, rows] = _classified(empty, ~(lower | upper), lower, upper)
    return kinds, cuts


def _by_counts(mask: ColumnMask, block_rows: int, block_keys: int) -> tuple[Kinds, Kinds]:
    rows = RowChunks.equal(mask.num_rows, block_rows)
    kinds = np.empty(
        (mask.batch, mask.heads, rows.num_chunks, num_key_chunks(mask, block_keys)), dtype=np.uint8
    )
    cuts = np.empty_like(kinds)
    for cells, hidden in pairs_by_span(mask, rows, block_keys):
        either = hidden.lower + hidden.upper - hidden.both
        lower, upper = hidden.lower > 0, hidden.upper > 0
        kinds[cells.index], cuts[cells.index] = _classified(either == hidden.pairs, either == 0, lower, upper)
    return kinds, cuts


def _classified(
    empty: NDArray[np.bool_], full: NDArray[np.bool_], lower: NDArray[np.bool_], upper: NDArray[np.bool_]
) -> tuple[Kinds, Kinds]:
    """Return the kinds and cuts of blocks that are not both empty and full."""
    partial = ~(empty | full)
    kinds = full * np.uint8(FULL) + partial * np.uint8(PARTIAL)
    return kinds, partial * (lower * np.uint8(CUT_BY_LOWER) + upper * np.uint8(CUT_BY_UPPER))


METHODS: Registry[Callable[[ColumnMask, int, int], tuple[Kinds, Kinds]]] = Registry("block map method")
"""The ways to classify blocks, by name."""
METHODS.register("exact", _by_counts)
METHODS.register("extrema", _by_extrema)
