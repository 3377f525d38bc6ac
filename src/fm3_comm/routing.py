"""How chunks travel from their owners to the ranks that need them, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fm3_core import Cluster, Partition, Registry, Transfer


class Route(Protocol):
    """Turns "who needs what" into transfers; pure and deterministic, so that all ranks get the same ones."""

    def __call__(
        self, partition: Partition, gathered: Sequence[Sequence[int]], cluster: Cluster
    ) -> list[Transfer]:
        """Return one transfer for each gathered chunk that its rank does not own.

        Args:
            partition: who owns which chunk.
            gathered: for each rank the chunks that its rows see, ascending.
            cluster: which ranks share a node.
        """


def flat(partition: Partition, gathered: Sequence[Sequence[int]], cluster: Cluster) -> list[Transfer]:
    """Send each chunk from its owner to every rank that needs it, without relays."""
    owner = partition.owner.tolist()
    return [
        Transfer(chunk, owner[chunk], rank)
        for rank, chunks in enumerate(gathered)
        for chunk in chunks
        if owner[chunk] != rank
    ]


def hierarchical(partition: Partition, gathered: Sequence[Sequence[int]], cluster: Cluster) -> list[Transfer]:
    """Send each chunk once to every node that needs it, to the rank in its owner's place there.

    That rank relays it to the peers of its node that need it, whether or not its own rows see it. So a rank
    receives from other nodes only what ranks of its own congruence class r mod G own: from at most N-1 ranks
    where nodes are full. In a last node of g < G ranks place p stands for p mod g, and its ranks receive from
    at most (N-1) * ceil(G / g).
    """
    owner = partition.owner.tolist()
    transfers = []
    for rank, chunks in enumerate(gathered):
        node = cluster.ranks_of(cluster.node_of(rank))
        for chunk in chunks:
            source = owner[chunk]
            relay = source if source in node else node[cluster.local_rank(source) % len(node)]
            if source != rank:
                route = () if relay in (source, rank) else (relay,)
                transfers.append(Transfer(chunk, source, rank, route))
    return transfers


routes: Registry[Route] = Registry("route")
"""The routes that `make_exchange` knows by name."""

routes.register("flat", flat)
routes.register("hierarchical", hierarchical)
