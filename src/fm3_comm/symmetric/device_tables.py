"""What the kernels of a gather read, as tables of integers: which slot holds what, who pulls what from where.

On every rank slots hold first its own chunks that it gathers, then those that it only sends, then what it
receives, nearest first. Words of a rank: `landed`, for each peer one a chunk between the two, set by the
peer; then `closed`, one a peer, set by the peer when it has pulled everything from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fm3_comm.hops import RankHops, hops_by_rank, nearest_first
from fm3_core import Exchange

PULLED = np.dtype(
    [
        ("source", "<u8"),
        ("source_rank", "<i4"),
        ("source_slot", "<i4"),
        ("slot", "<i4"),
        ("num_tokens", "<i4"),
        ("landed", "<i4"),
        ("first_reader", "<i4"),
        ("num_readers", "<i4"),
        ("padding", "<i4"),
    ]
)
"""Rows of `PulledChunk` in csrc/comm/pull.h."""

WORD_OF_RANK = np.dtype([("rank", "<i4"), ("word", "<i4")])
"""Rows of `Reader` and `Signal`: a rank, and one of its words (or one of this rank's that it sets)."""


@dataclass(frozen=True)
class GatherTables:
    """One rank's tables for an exchange.

    Args:
        exchange: what moves.
        rank: this rank.
    """

    exchange: Exchange
    rank: int

    @cached_property
    def slots(self) -> tuple[int, ...]:
        """The chunk in each slot of this rank."""
        return self._orders[self.rank]

    @cached_property
    def num_own(self) -> int:
        """Slots that hold own chunks; they come first."""
        return len(self.slots) - len(self._me.received)

    @cached_property
    def num_slots(self) -> int:
        """Slots of every rank: as many as the one that needs most."""
        return max(len(order) for order in self._orders)

    @cached_property
    def num_words(self) -> int:
        """Words of every rank."""
        return self._closed_start + len(self._orders)

    def pulled(self, sources: Sequence[int]) -> NDArray[np.void]:
        """Return rows of `PULLED`, in the order in which chunks are asked for.

        Args:
            sources: address at which this rank's device sees each rank's buffer, 0 where it does not.
        """
        rows = np.zeros(len(self._me.received), dtype=PULLED)
        first_reader = 0
        for row, chunk in zip(rows, nearest_first(self._me, self.exchange.cluster), strict=True):
            parent = self._me.parent[chunk]
            readers = len(self._me.children.get(chunk, ()))
            row["source"], row["source_rank"] = sources[parent], parent
            row["source_slot"] = self._orders[parent].index(chunk)
            row["slot"] = self.slots.index(chunk)
            row["num_tokens"] = self.exchange.partition.chunk_length(chunk)
            row["landed"] = self._landed(parent, self._me.place_above[chunk])
            row["first_reader"], row["num_readers"] = first_reader, readers
            first_reader += readers
        return rows

    def readers(self) -> NDArray[np.void]:
        """Return rows of `WORD_OF_RANK`: for each pulled chunk the ranks that pull it from here."""
        order = nearest_first(self._me, self.exchange.cluster)
        return rows_of_ranks([pair for chunk in order for pair in self._told(chunk)])

    def opened(self) -> NDArray[np.void]:
        """Return the words that this rank sets when its own chunks are in their slots."""
        return rows_of_ranks([pair for chunk in self._me.sent for pair in self._told(chunk)])

    def closing(self) -> NDArray[np.void]:
        """Return the words that this rank sets when it has pulled everything."""
        return rows_of_ranks([(parent, self._closed_start + self.rank) for parent in self._me.above])

    def closed_by(self) -> NDArray[np.void]:
        """Return this rank's words that its readers set when they have pulled everything."""
        return rows_of_ranks([(child, self._closed_start + child) for child in self._me.below])

    def slot_tokens(self) -> NDArray[np.int64]:
        """Return the global tokens [slots, chunk size] of this rank's slots, -1 behind the end of a chunk."""
        partition = self.exchange.partition
        tokens = np.full((len(self.slots), partition.chunk_size), -1, dtype=np.int64)
        for row, chunk in zip(tokens, self.slots, strict=True):
            length = partition.chunk_length(chunk)
            row[:length] = partition.chunk_start(chunk) + np.arange(length)
        return tokens

    @cached_property
    def _trees(self) -> tuple[RankHops, ...]:
        return hops_by_rank(self.exchange)

    @cached_property
    def _me(self) -> RankHops:
        return self._trees[self.rank]

    @cached_property
    def _orders(self) -> tuple[tuple[int, ...], ...]:
        return tuple(_slot_order(self.exchange, tree) for tree in self._trees)

    @cached_property
    def _pair_chunks(self) -> int:
        return max((len(chunks) for tree in self._trees for chunks in tree.below.values()), default=0)

    @cached_property
    def _closed_start(self) -> int:
        return len(self._trees) * self._pair_chunks

    def _landed(self, peer: int, place: int) -> int:
        return peer * self._pair_chunks + place

    def _told(self, chunk: int) -> list[tuple[int, int]]:
        """Return the ranks that read a chunk from here, each with its word of `landed`."""
        return [
            (child, self._landed(self.rank, self._me.place_below[child, chunk]))
            for child in self._me.children.get(chunk, ())
        ]


def _slot_order(exchange: Exchange, tree: RankHops) -> tuple[int, ...]:
    gathered = set(exchange.gathered[tree.rank])
    own = set(exchange.partition.chunks_of(tree.rank))
    return (
        *sorted(own & gathered),
        *(chunk for chunk in tree.sent if chunk not in gathered),
        *nearest_first(tree, exchange.cluster),
    )


def rows_of_ranks(pairs: Sequence[tuple[int, int]]) -> NDArray[np.void]:
    """Return pairs of a rank and a word as rows of `WORD_OF_RANK`."""
    return np.array(pairs, dtype=WORD_OF_RANK)
