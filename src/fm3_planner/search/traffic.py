"""What crosses nodes: which key chunks ("nets") each node touches, and what an exchange would change."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fm3_planner.search.placement import Placement


class Needs:
    """The need graph as bit sets, which are Python integers.

    Net j is key chunk j; chunk i is on net j if it owns or needs j.

    Attributes:
        nets: [chunks], the nets that each chunk is on; a blank is on none.
        linked: [chunks], the chunks that need a chunk or are needed by it, ascending.
        bytes: [chunks], divided by their greatest common divisor.
    """

    def __init__(self, needs: NDArray[np.bool_], chunk_bytes: NDArray[np.int64]) -> None:
        """Read bool [chunks, chunks], (query chunk, key chunk), and int64 [chunks]."""
        on = needs | np.eye(len(needs), dtype=np.bool_)
        either = (needs | needs.T) & ~np.eye(len(needs), dtype=np.bool_)
        self.nets = [
            int.from_bytes(packed.tobytes(), "little")
            for packed in np.packbits(on, axis=1, bitorder="little")
        ]
        self.linked: list[list[int]] = [np.flatnonzero(row).tolist() for row in either]
        sizes: list[int] = chunk_bytes.tolist()
        divisor = max(math.gcd(*sizes), 1)
        self.bytes = [size // divisor for size in sizes]
        counts = Counter(self.bytes)
        self._usual = min(counts, key=lambda size: (-counts[size], size))
        self._unusual = sum(1 << net for net, size in enumerate(self.bytes) if size != self._usual)

    def bytes_of(self, nets: int) -> int:
        """Return the bytes of a set of nets."""
        odd = sum(self.bytes[net] - self._usual for net in _members(nets & self._unusual))
        return self._usual * nets.bit_count() + odd


class Traffic:
    """Counts of chunks on each net by node, kept up to date through exchanges.

    Attributes:
        total: N, the sum over nets of bytes times (nodes that touch it - 1).
    """

    def __init__(self, needs: Needs, placement: Placement) -> None:
        """Count from a placement."""
        self._needs = needs
        self._num_chunks = placement.layout.num_chunks
        num_nodes = placement.layout.num_nodes
        self._count = [[0] * self._num_chunks for _ in range(num_nodes)]
        self._touched = [0] * num_nodes  # nets with a count of 1 or more
        self._single = [0] * num_nodes  # nets with a count of 1
        for slot, item in enumerate(placement.item_at):
            self._add(self._nets_of(item), placement.node_of[placement.cell_of[slot]], 1)
        self.total = sum(map(needs.bytes_of, self._touched)) - sum(needs.bytes)

    def change(self, leaving: int, home: int, coming: int, away: int) -> int:
        """Return how N changes if `leaving` moves from node `home` to node `away`, `coming` the other way."""
        out, into = self._nets_of(leaving), self._nets_of(coming)
        bytes_of = self._needs.bytes_of
        return (
            bytes_of(out & ~self._touched[away])
            - bytes_of(out & self._single[home] & ~into)
            + bytes_of(into & ~self._touched[home])
            - bytes_of(into & self._single[away] & ~out)
        )

    def exchange(self, leaving: int, home: int, coming: int, away: int, change: int) -> None:
        """Make that exchange, whose change was computed before."""
        out, into = self._nets_of(leaving), self._nets_of(coming)
        self._add(out & ~into, home, -1)
        self._add(out & ~into, away, 1)
        self._add(into & ~out, away, -1)
        self._add(into & ~out, home, 1)
        self.total += change

    def change_of_leaving(self, item: int, home: int) -> int:
        """Return how N changes if an item leaves a node and nothing comes, <= 0."""
        return -self._needs.bytes_of(self._nets_of(item) & self._single[home])

    def change_of_joining(self, item: int, away: int) -> int:
        """Return how N changes if an item joins a node and nothing leaves, >= 0."""
        return self._needs.bytes_of(self._nets_of(item) & ~self._touched[away])

    def _nets_of(self, item: int) -> int:
        return self._needs.nets[item] if item < self._num_chunks else 0

    def _add(self, nets: int, node: int, sign: int) -> None:
        count = self._count[node]
        for net in _members(nets):
            count[net] += sign
            bit = 1 << net
            self._touched[node] = self._touched[node] | bit if count[net] else self._touched[node] & ~bit
            self._single[node] = self._single[node] | bit if count[net] == 1 else self._single[node] & ~bit


def _members(nets: int) -> Iterator[int]:
    """Yield the members of a set, ascending."""
    while nets:
        lowest = nets & -nets
        yield lowest.bit_length() - 1
        nets ^= lowest
