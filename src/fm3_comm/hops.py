"""The hops that an exchange's transfers are made of: each chunk travels along a tree from its owner."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from fm3_core import Cluster, Exchange, ExchangeError, Transfer


def hops(exchange: Exchange) -> tuple[Transfer, ...]:
    """Return each hop once, as a transfer without relays from the rank that passes a chunk on, sorted.

    Transfers of one chunk that share the first part of their way share its hops: what a node needs several
    times crosses to it once.
    """
    return tuple(sorted({hop for transfer in exchange.transfers for hop in hops_of(transfer)}))


def hops_of(transfer: Transfer) -> list[Transfer]:
    """Return the hops of one transfer, in order."""
    stations = (transfer.source, *transfer.route, transfer.destination)
    return [Transfer(transfer.chunk, here, there) for here, there in pairwise(stations)]


@dataclass(frozen=True)
class RankHops:
    """One rank's place in the trees of all chunks.

    Args:
        rank: this rank.
        above: by peer, the chunks that it receives from there, ascending; peers ascending.
        below: by peer, the chunks that it sends there, its own ones and relayed ones, ascending.
    """

    rank: int
    above: Mapping[int, tuple[int, ...]]
    below: Mapping[int, tuple[int, ...]]

    @cached_property
    def received(self) -> tuple[int, ...]:
        """Chunks that arrive here, to be used or passed on, ascending."""
        return tuple(sorted(chunk for chunks in self.above.values() for chunk in chunks))

    @cached_property
    def parent(self) -> dict[int, int]:
        """The rank that each received chunk comes from."""
        return {chunk: peer for peer, chunks in self.above.items() for chunk in chunks}

    @cached_property
    def children(self) -> dict[int, tuple[int, ...]]:
        """The ranks that each passed on chunk goes to, ascending; chunks ascending."""
        found: dict[int, list[int]] = {}
        for peer, chunks in self.below.items():
            for chunk in chunks:
                found.setdefault(chunk, []).append(peer)
        return {chunk: tuple(sorted(found[chunk])) for chunk in sorted(found)}

    @cached_property
    def sent(self) -> tuple[int, ...]:
        """Chunks that start here: owned and sent to somebody, ascending."""
        return tuple(chunk for chunk in self.children if chunk not in self.parent)

    @cached_property
    def contributions(self) -> tuple[tuple[int, int], ...]:
        """(chunk, peer) of each partial gradient that comes back to this rank, ascending."""
        return tuple((chunk, peer) for chunk, peers in self.children.items() for peer in peers)

    @cached_property
    def received_index(self) -> dict[int, int]:
        """Place of each chunk in `received`."""
        return {chunk: index for index, chunk in enumerate(self.received)}

    @cached_property
    def sent_index(self) -> dict[int, int]:
        """Place of each chunk in `sent`."""
        return {chunk: index for index, chunk in enumerate(self.sent)}

    @cached_property
    def passed_index(self) -> dict[int, int]:
        """Place of each chunk among those that leave this rank, own ones and relayed ones."""
        return {chunk: index for index, chunk in enumerate(self.children)}

    @cached_property
    def contribution_index(self) -> dict[tuple[int, int], int]:
        """Place of each (chunk, peer) in `contributions`."""
        return {pair: index for index, pair in enumerate(self.contributions)}

    @cached_property
    def place_above(self) -> dict[int, int]:
        """Place of each received chunk among those from the same peer."""
        return {chunk: place for chunks in self.above.values() for place, chunk in enumerate(chunks)}

    @cached_property
    def place_below(self) -> dict[tuple[int, int], int]:
        """Place of each (peer, chunk) among the chunks that go to that peer."""
        return {
            (peer, chunk): place for peer, chunks in self.below.items() for place, chunk in enumerate(chunks)
        }


def hops_by_rank(exchange: Exchange) -> tuple[RankHops, ...]:
    """Return every rank's place in the trees.

    Raises:
        ExchangeError: the hops of a chunk are no tree: it would reach a rank from two others.
    """
    ranks = range(exchange.partition.num_ranks)
    above: list[dict[int, list[int]]] = [{} for _ in ranks]
    below: list[dict[int, list[int]]] = [{} for _ in ranks]
    came_from: dict[tuple[int, int], int] = {}
    for hop in hops(exchange):
        before = came_from.setdefault((hop.chunk, hop.destination), hop.source)
        if before != hop.source:
            raise ExchangeError(
                f"chunk {hop.chunk} reaches rank {hop.destination} from rank {before} and again from rank "
                f"{hop.source}"
            )
        above[hop.destination].setdefault(hop.source, []).append(hop.chunk)
        below[hop.source].setdefault(hop.destination, []).append(hop.chunk)
    return tuple(RankHops(rank, _by_peer(above[rank]), _by_peer(below[rank])) for rank in ranks)


def nearest_first(tree: RankHops, cluster: Cluster) -> tuple[int, ...]:
    """Return the chunks that a rank receives in the order in which it asks for them.

    What others wait for comes first, then what comes from its own node, then from the nearest nodes.
    """
    here = cluster.node_of(tree.rank)

    def distance(chunk: int) -> tuple[bool, int, int]:
        away = abs(cluster.node_of(tree.parent[chunk]) - here)
        return chunk not in tree.children, away, chunk

    return tuple(sorted(tree.received, key=distance))


def arrival_order(exchange: Exchange, rank: int) -> tuple[int, ...]:
    """Return the chunks that a rank gathers from others, in the order in which it asks for them."""
    gathered = set(exchange.gathered[rank])
    tree = hops_by_rank(exchange)[rank]
    return tuple(chunk for chunk in nearest_first(tree, exchange.cluster) if chunk in gathered)


def _by_peer(chunks: Mapping[int, Iterable[int]]) -> dict[int, tuple[int, ...]]:
    return {peer: tuple(sorted(chunks[peer])) for peer in sorted(chunks)}
