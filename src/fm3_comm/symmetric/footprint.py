"""How the exchange buffer is laid out, and how large it must be; every rank computes the same.

First words: for each peer `landed[peer][k]`, the epoch in which the k-th chunk between the two was there; for
each received chunk `ready`; for each backward segment `work_done`; for each chunk that this rank passes on
the bitmask of its contributors, several words past 64 ranks. Then slots, one chunk each, at multiples of 128
bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fm3_comm.hops import RankHops
from fm3_comm.symmetric.memory import WORD_BYTES

SLOT_ALIGNMENT = 128
BITS = 64


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Room in the exchange buffer of every rank.

    Args:
        num_ranks: ranks in all.
        pair_chunks: most chunks between two ranks.
        received: most chunks that one rank receives.
        segments: most backward segments.
        passed: most chunks that one rank passes on, its own ones included.
        slot_bytes: bytes of all slots.
    """

    num_ranks: int
    pair_chunks: int = 0
    received: int = 0
    segments: int = 0
    passed: int = 0
    slot_bytes: int = 0

    def holds(self, other: Footprint) -> bool:
        """Say whether there is room for `other`."""
        return self.joined(other) == self

    def joined(self, other: Footprint) -> Footprint:
        """Return the least footprint that holds both."""
        return Footprint(**{name: max(mine, getattr(other, name)) for name, mine in vars(self).items()})

    @property
    def num_bytes(self) -> int:
        """Bytes of the buffer."""
        return self.slots_start + self.slot_bytes

    @property
    def slots_start(self) -> int:
        """First byte of the slots."""
        return aligned(WORD_BYTES * (self.contributors(0, 0) + self.passed * mask_words(self.num_ranks)))

    def landed(self, peer: int, k: int) -> int:
        """Return the word of the k-th chunk between this rank and `peer`, set by `peer`."""
        return peer * self.pair_chunks + k

    def ready(self, index: int) -> int:
        """Return the word of the index-th received chunk, set by this rank."""
        return self.num_ranks * self.pair_chunks + index

    def work_done(self, segment: int) -> int:
        """Return the word of a backward segment, set by whoever computes gradients on this rank."""
        return self.ready(self.received) + segment

    def contributors(self, index: int, word: int) -> int:
        """Return a word of the bitmask of the index-th passed chunk, set by its contributors."""
        return self.work_done(self.segments) + index * mask_words(self.num_ranks) + word


@dataclass(frozen=True, kw_only=True)
class Slots:
    """Which slot each chunk of one operation has, on every rank.

    Args:
        trees: every rank's place in the trees of the exchange.
        stride: bytes from slot to slot.
    """

    trees: Sequence[RankHops]
    stride: int

    def key(self, rank: int, chunk: int) -> int:
        """Return the byte, from the first slot, of a gathered chunk's keys and values on a rank."""
        tree = self.trees[rank]
        index = tree.sent_index.get(chunk)
        return self.stride * (len(tree.sent) + tree.received_index[chunk] if index is None else index)

    def contribution(self, rank: int, chunk: int, source: int) -> int:
        """Return the byte, from the first slot, at which `source` leaves its partial on a rank."""
        return self.stride * self.trees[rank].contribution_index[chunk, source]

    def partial(self, rank: int, chunk: int) -> int:
        """Return the byte, from the first slot, of the partial that a rank sends."""
        tree = self.trees[rank]
        return self.stride * (len(tree.contributions) + tree.received_index[chunk])


def needed(slots: Slots, *, segments: int, reduce: bool) -> Footprint:
    """Return the footprint of one operation.

    A gather has a slot for each chunk that starts or arrives at a rank; a reduction one for each partial that
    arrives (one a contributor, so that they can be added in a fixed order) or leaves.
    """
    trees = slots.trees
    counts = [len(t.contributions) if reduce else len(t.sent) for t in trees]
    return Footprint(
        num_ranks=len(trees),
        pair_chunks=max((len(chunks) for t in trees for chunks in t.below.values()), default=0),
        received=max(len(t.received) for t in trees),
        segments=segments,
        passed=max(len(t.children) for t in trees),
        slot_bytes=slots.stride * max(c + len(t.received) for c, t in zip(counts, trees, strict=True)),
    )


def mask_words(num_ranks: int) -> int:
    """Return the words of a bitmask of ranks."""
    return -(-num_ranks // BITS)


def mask_of(ranks: Sequence[int], num_ranks: int) -> list[int]:
    """Return the words of a bitmask that holds `ranks`."""
    words = [0] * mask_words(num_ranks)
    for rank in ranks:
        words[rank // BITS] |= 1 << (rank % BITS)
    return words


def aligned(num_bytes: int) -> int:
    """Round up to the alignment of slots."""
    return -(-num_bytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
