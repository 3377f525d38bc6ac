"""The cluster as a graph: ranks, NVLink switches, network cards, rails and the spine, with bandwidths.

Routes and congested links are for reports: they are floats of seconds, and no planner decides by them.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fm3_core.check import require_int
from fm3_core.cluster import Cluster
from fm3_core.errors import PlanError

if TYPE_CHECKING:
    import networkx as nx

Vertex: TypeAlias = tuple[str, int] | tuple[str, int, int]
"""("rank", r), ("nvlink", node), ("card", node, c), ("rail", c) or ("spine", 0)."""
_LESS_THAN_ANY_LINK = 1e-18
"""Seconds a byte that each link costs besides, so that fewer links win where routes are equally fast."""


@dataclass(frozen=True, kw_only=True)
class LinkSpeeds:
    """Bytes per second of each kind of link, one direction.

    The defaults are round numbers of an eight-GPU Hopper host: NVLink 4 at 450 GB/s a GPU, one 400 Gbit/s
    card a GPU.

    Attributes:
        nvlink: between a rank and its node's switch.
        card: between a rank and its network card, and from the card to its rail.
        spine: between a rail and the spine that joins the rails, over all nodes.

    Raises:
        PlanError: a speed is not a finite number > 0.
    """

    nvlink: float = 450e9
    card: float = 50e9
    spine: float = 200e9

    def __post_init__(self) -> None:
        """Validate every speed."""
        for name in ("nvlink", "card", "spine"):
            value = getattr(self, name)
            is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
            if not is_number or not math.isfinite(value) or value <= 0:
                raise PlanError(
                    f"LinkSpeeds.{name} must be a finite number of bytes per second > 0, got {value!r}"
                )


@dataclass(frozen=True, kw_only=True)
class LinkLoad:
    """What crosses a link in one direction.

    Attributes:
        source: where it comes from.
        destination: where it goes.
        num_bytes: how much.
        seconds: num_bytes by the link's speed.
    """

    source: Vertex
    destination: Vertex
    num_bytes: int
    seconds: float


@dataclass(frozen=True)
class ClusterGraph:
    """Ranks and what joins them, as a networkx graph.

    Each rank is on its node's NVLink switch and on a network card; card c of every node is on rail c; the
    rails meet in the spine. So ranks of one node meet over NVLink, ranks with cards on one rail meet on
    that rail, and others cross NVLink to a card on the right rail, or the spine, whatever is faster.

    Args:
        cluster: ranks and nodes.
        speeds: bytes per second of the links.
        cards_per_node: network cards of a node, at most one a rank; None: one a rank.

    Raises:
        PlanError: cards_per_node is not an integer in 1..ranks of a node.
    """

    cluster: Cluster
    speeds: LinkSpeeds = LinkSpeeds()
    cards_per_node: int | None = None

    def __post_init__(self) -> None:
        """Validate and fill in the default."""
        most = self.cluster.node_size
        cards = most if self.cards_per_node is None else self.cards_per_node
        cards = require_int("cards_per_node", cards, minimum=1, maximum=most, error=PlanError)
        object.__setattr__(self, "cards_per_node", cards)

    @cached_property
    def graph(self) -> nx.Graph:
        """The undirected networkx graph; edges have `bytes_per_second` and `seconds_per_byte`."""
        import networkx as nx

        graph: Any = nx.Graph()
        assert self.cards_per_node is not None
        for rank in range(self.cluster.num_ranks):
            node, card = self.cluster.node_of(rank), self.cluster.local_rank(rank) % self.cards_per_node
            self._join(graph, ("rank", rank), ("nvlink", node), self.speeds.nvlink)
            self._join(graph, ("rank", rank), ("card", node, card), self.speeds.card)
            self._join(graph, ("card", node, card), ("rail", card), self.speeds.card)
            self._join(graph, ("rail", card), ("spine", 0), self.speeds.spine)
        return graph

    def route(self, source: int, destination: int) -> list[Vertex]:
        """Return the vertices from one rank to another, both included: the least seconds a byte.

        Of equally fast routes one with fewest links is taken, the same one each time.

        Raises:
            PlanError: a rank is not one of the cluster.
        """
        for name, rank in (("source", source), ("destination", destination)):
            require_int(name, rank, maximum=self.cluster.num_ranks - 1, error=PlanError)
        return self._routes_from(source)[("rank", destination)]

    def link_loads(self, traffic: NDArray[np.integer[Any]]) -> list[LinkLoad]:
        """Return what crosses each link that is used, the longest in time first.

        Args:
            traffic: bytes from each rank to each, [sources, destinations], as `traffic_matrix` makes it.

        Raises:
            PlanError: traffic is not a square matrix of the cluster's ranks.
        """
        ranks = self.cluster.num_ranks
        if np.shape(traffic) != (ranks, ranks):
            raise PlanError(f"traffic must have shape [{ranks}, {ranks}], got {list(np.shape(traffic))}")
        crossing: dict[tuple[Vertex, Vertex], int] = {}
        for source, destination in zip(*np.nonzero(traffic), strict=True):
            num_bytes = int(traffic[source, destination])
            for link in _links(self.route(int(source), int(destination))):
                crossing[link] = crossing.get(link, 0) + num_bytes
        loads = [
            LinkLoad(
                source=source,
                destination=destination,
                num_bytes=num_bytes,
                seconds=num_bytes * self.graph.edges[source, destination]["seconds_per_byte"],
            )
            for (source, destination), num_bytes in crossing.items()
        ]
        return sorted(loads, key=lambda load: (-load.seconds, load.source, load.destination))

    def congested(self, traffic: NDArray[np.integer[Any]], *, share: float = 0.5) -> list[LinkLoad]:
        """Return the links that take at least `share` of the time of the slowest one, slowest first."""
        loads = self.link_loads(traffic)
        return [load for load in loads if load.seconds >= share * loads[0].seconds]

    def _routes_from(self, source: int) -> dict[Vertex, list[Vertex]]:
        if source not in self._known_routes:
            import networkx as nx

            def seconds(_: Vertex, __: Vertex, link: dict[str, float]) -> float:
                return link["seconds_per_byte"] + _LESS_THAN_ANY_LINK

            routes = nx.single_source_dijkstra_path(self.graph, ("rank", source), weight=seconds)
            self._known_routes[source] = routes
        return self._known_routes[source]

    @cached_property
    def _known_routes(self) -> dict[int, dict[Vertex, list[Vertex]]]:
        return {}

    @staticmethod
    def _join(graph: Any, one: Vertex, other: Vertex, bytes_per_second: float) -> None:
        graph.add_edge(
            one, other, bytes_per_second=float(bytes_per_second), seconds_per_byte=1 / bytes_per_second
        )


def _links(route: Iterable[Vertex]) -> list[tuple[Vertex, Vertex]]:
    return list(pairwise(route))
