"""What the kernels of a reduction read, as tables of integers: who puts which partial where, who adds what.

Partials lie in the slots of the gather. Words of a rank: for each peer `opened`, the epoch in which this rank
may put partials there; then the bitmasks of contributors of each chunk that it passes on or owns. Flags of a
rank: for each slot `final`, set by the backward kernel; then for each slot `summed`, set when the partials of
others are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fm3_comm.hops import RankHops, hops_by_rank
from fm3_comm.symmetric.device_tables import GatherTables, rows_of_ranks
from fm3_comm.symmetric.footprint import BITS, mask_of, mask_words
from fm3_core import Exchange

PUT = np.dtype(
    [
        ("target", "<u8"),
        ("target_rank", "<i4"),
        ("contribution", "<i4"),
        ("slot", "<i4"),
        ("num_tokens", "<i4"),
        ("final_flag", "<i4"),
        ("opened", "<i4"),
        ("bits", "<i4"),
        ("padding", "<i4"),
    ]
)
"""Rows of `PutChunk` in csrc/comm/put.h."""

SUMMED = np.dtype(
    [
        ("first_contribution", "<i4"),
        ("num_contributions", "<i4"),
        ("own_place", "<i4"),
        ("slot", "<i4"),
        ("num_tokens", "<i4"),
        ("bits", "<i4"),
        ("expected", "<i4"),
        ("summed", "<i4"),
        ("own_final", "<i4"),
        ("padding", "<i4"),
    ]
)
"""Rows of `SummedChunk` in csrc/comm/reduce.h."""


@dataclass(frozen=True)
class ReduceTables:
    """One rank's tables for the reduction of what an exchange has gathered.

    A rank puts and adds one chunk after the other. Chunks come by how many stations lie behind them: so one
    that waits for others never stands before one that others wait for.

    Args:
        exchange: what the gather moved.
        rank: this rank.
    """

    exchange: Exchange
    rank: int

    @cached_property
    def num_words(self) -> int:
        """Words of every rank."""
        return self._num_ranks + self._mask_words * max(len(tree.children) for tree in self._trees)

    @cached_property
    def num_contributions(self) -> int:
        """Partials that arrive, on the rank where most do."""
        return max(len(tree.contributions) for tree in self._trees)

    @cached_property
    def num_puts(self) -> int:
        """Partials that leave, on the rank where most do."""
        return max(len(tree.received) for tree in self._trees)

    @property
    def num_flags(self) -> int:
        """Flags of this rank."""
        return 2 * len(self._slots)

    def puts(self, targets: Sequence[int]) -> NDArray[np.void]:
        """Return rows of `PUT`: a partial of every received chunk, for the rank that it came from.

        Args:
            targets: address at which this rank's device sees each rank's buffer, 0 where it does not.
        """
        rows = np.zeros(len(self._me.received), dtype=PUT)
        for row, chunk in zip(rows, self._by_height(self._me.received), strict=True):
            parent, slot = self._me.parent[chunk], self._slots[chunk]
            tree = self._trees[parent]
            row["target"], row["target_rank"] = targets[parent], parent
            row["contribution"] = tree.contribution_index[chunk, self.rank]
            row["slot"], row["num_tokens"] = slot, self.exchange.partition.chunk_length(chunk)
            row["final_flag"] = self._summed(slot) if chunk in self._me.children else slot
            row["opened"] = parent
            row["bits"] = self._bits(tree, chunk) + self.rank // BITS
        return rows

    def sums(self) -> NDArray[np.void]:
        """Return rows of `SUMMED`: every chunk of which partials arrive.

        The backward kernel writes all slots, zeros where this rank sees nothing: sums come after that.
        """
        rows = np.zeros(len(self._me.children), dtype=SUMMED)
        for row, chunk in zip(rows, self._by_height(self._me.children), strict=True):
            children, slot = self._me.children[chunk], self._slots[chunk]
            row["first_contribution"] = self._me.contribution_index[chunk, children[0]]
            row["num_contributions"] = len(children)
            row["own_place"] = sum(child < self.rank for child in children)
            row["slot"], row["num_tokens"] = slot, self.exchange.partition.chunk_length(chunk)
            row["bits"] = self._bits(self._me, chunk)
            row["expected"] = self._me.passed_index[chunk] * self._mask_words
            row["summed"], row["own_final"] = self._summed(slot), slot
        return rows

    def expected(self) -> NDArray[np.uint64]:
        """Return the bitmasks of contributors of `sums`."""
        masks = [mask_of(children, self._num_ranks) for children in self._me.children.values()]
        return np.array([word for mask in masks for word in mask], dtype=np.uint64)

    def opens(self) -> NDArray[np.void]:
        """Return the words that this rank sets when it takes partials: of the ranks below, its own place."""
        return rows_of_ranks([(child, self.rank) for child in self._me.below])

    def own_places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return which of this rank's tokens have sums, and where these lie among the slots' tokens."""
        partition = self.exchange.partition
        rows, places, start = [], [], 0
        for chunk in partition.chunks_of(self.rank):
            length = partition.chunk_length(chunk)
            if chunk in self._slots:
                rows.append(start + np.arange(length))
                places.append(self._slots[chunk] * partition.chunk_size + np.arange(length))
            start += length
        nothing = [np.zeros(0, dtype=np.int64)]
        return np.concatenate(nothing + rows), np.concatenate(nothing + places)

    @cached_property
    def _slots(self) -> dict[int, int]:
        slots = GatherTables(self.exchange, self.rank).slots
        return {chunk: slot for slot, chunk in enumerate(slots)}

    @cached_property
    def _trees(self) -> tuple[RankHops, ...]:
        return hops_by_rank(self.exchange)

    @property
    def _me(self) -> RankHops:
        return self._trees[self.rank]

    @property
    def _num_ranks(self) -> int:
        return len(self._trees)

    @property
    def _mask_words(self) -> int:
        return mask_words(self._num_ranks)

    def _bits(self, tree: RankHops, chunk: int) -> int:
        return self._num_ranks + tree.passed_index[chunk] * self._mask_words

    def _summed(self, slot: int) -> int:
        return len(self._slots) + slot

    def _by_height(self, chunks: Sequence[int] | dict[int, tuple[int, ...]]) -> list[int]:
        return sorted(chunks, key=lambda chunk: (self._height(self.rank, chunk), self._slots[chunk]))

    def _height(self, rank: int, chunk: int) -> int:
        """Return how many stations lie behind a rank on the longest way of a chunk."""
        children = self._trees[rank].children.get(chunk, ())
        return 1 + max(self._height(child, chunk) for child in children) if children else 0
