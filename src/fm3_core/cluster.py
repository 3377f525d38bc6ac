"""Ranks and the nodes that they live on."""

from __future__ import annotations

from dataclasses import dataclass

from fm3_core.check import require_int
from fm3_core.errors import PartitionError


@dataclass(frozen=True)
class Cluster:
    """Ranks 0..num_ranks-1, laid out node after node.

    Args:
        num_ranks: ranks in all, at least 1.
        ranks_per_node: ranks of a node, by default all of them; the last node may have fewer.
    """

    num_ranks: int
    ranks_per_node: int | None = None

    def __post_init__(self) -> None:
        """Validate and fill in the default."""
        ranks = require_int("num_ranks", self.num_ranks, minimum=1, error=PartitionError)
        per_node = ranks if self.ranks_per_node is None else self.ranks_per_node
        per_node = require_int("ranks_per_node", per_node, minimum=1, error=PartitionError)
        object.__setattr__(self, "num_ranks", ranks)
        object.__setattr__(self, "ranks_per_node", min(per_node, ranks))

    @property
    def node_size(self) -> int:
        """Ranks of a full node."""
        assert self.ranks_per_node is not None
        return self.ranks_per_node

    @property
    def num_nodes(self) -> int:
        """Nodes, an uneven last one counted."""
        return -(-self.num_ranks // self.node_size)

    def node_of(self, rank: int) -> int:
        """Return the node that `rank` lives on."""
        return self._rank(rank) // self.node_size

    def local_rank(self, rank: int) -> int:
        """Return the place of `rank` inside its node, from 0."""
        return self._rank(rank) % self.node_size

    def ranks_of(self, node: int) -> range:
        """Return the ranks of `node`."""
        node = require_int("node", node, maximum=self.num_nodes - 1, error=PartitionError)
        first = node * self.node_size
        return range(first, min(first + self.node_size, self.num_ranks))

    def _rank(self, rank: int) -> int:
        return require_int("rank", rank, maximum=self.num_ranks - 1, error=PartitionError)
