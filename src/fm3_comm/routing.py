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


routes: Registry[Route] = Registry("route")
"""The routes that `make_exchange` knows by name."""

routes.register("flat", flat)
