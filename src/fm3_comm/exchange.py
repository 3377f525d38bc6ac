"""From "whose rows see what" to what moves, and the check that exactly this moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fm3_comm.hops import hops
from fm3_comm.routing import routes
from fm3_core import Cluster, Exchange, ExchangeError, Partition, Transfer

_SHOWN = 8


def make_exchange(
    partition: Partition, needs: NDArray[np.bool_], cluster: Cluster, route: str = "flat"
) -> Exchange:
    """Derive what each rank gathers: chunk j goes to rank r iff some row of r sees some key of j.

    The result is a pure function of the arguments, the same on every rank.

    Args:
        partition: who owns which chunk.
        needs: bool [row chunks, key chunks], True where some row of the one sees some key of the other
            (`fm3_core.needs`).
        cluster: which ranks share a node.
        route: a name in `routes`; "flat" sends every chunk from its owner directly, "hierarchical" once to
            each other node, where one rank relays it.

    Raises:
        UnknownNameError: `route` is not registered; the message lists those that are.
        ExchangeError: `needs` is not bool [chunks, chunks], or partition and cluster differ in ranks.
    """
    find_transfers = routes.get(route)
    _require_same_ranks(partition, cluster)
    gathered = _gathered(partition, needs)
    return Exchange(partition, cluster, gathered, tuple(find_transfers(partition, gathered, cluster)))


def check_exchange(exchange: Exchange, needs: NDArray[np.bool_]) -> None:
    """Raise unless all that is needed arrives exactly once, nothing else moves, and sends and receives pair.

    Args:
        exchange: made by `make_exchange` or by hand.
        needs: bool [row chunks, key chunks] of the mask that it shall serve.

    Raises:
        ExchangeError: every violation with its chunk, source and destination; of very many the first ones and
            the number of the others. Also when `needs` has the wrong shape or dtype.
    """
    wrong = [
        *_wrong_gathered(exchange, _gathered(exchange.partition, needs)),
        *_wrong_transfers(exchange),
        *_wrong_arrivals(exchange),
        *_wrong_pairs(exchange),
        *_wrong_trees(exchange),
    ]
    if wrong:
        more = f" (and {len(wrong) - _SHOWN} more)" if len(wrong) > _SHOWN else ""
        raise ExchangeError("exchange: " + "; ".join(wrong[:_SHOWN]) + more)


def _require_same_ranks(partition: Partition, cluster: Cluster) -> None:
    if partition.num_ranks != cluster.num_ranks:
        raise ExchangeError(
            f"partition has {partition.num_ranks} ranks, cluster has {cluster.num_ranks}; they must be equal"
        )


def _gathered(partition: Partition, needs: Any) -> tuple[tuple[int, ...], ...]:
    seen = np.asarray(needs)
    chunks = partition.num_chunks
    if seen.shape != (chunks, chunks) or seen.dtype != np.bool_:
        raise ExchangeError(
            f"needs must be bool [{chunks}, {chunks}] as the partition has {chunks} chunks, "
            f"got {seen.dtype} {list(seen.shape)}"
        )
    return tuple(
        tuple(np.flatnonzero(seen[list(partition.chunks_of(rank))].any(axis=0)).tolist())
        for rank in range(partition.num_ranks)
    )


def _wrong_gathered(exchange: Exchange, needed: tuple[tuple[int, ...], ...]) -> Iterable[str]:
    owner = exchange.partition.owner.tolist()
    for rank, (has, must) in enumerate(zip(exchange.gathered, needed, strict=True)):
        for chunk in sorted(set(must) - set(has)):
            yield f"destination {rank} needs chunk {chunk} of source {owner[chunk]} and does not gather it"
        for chunk in sorted(set(has) - set(must)):
            yield f"chunk {chunk} is gathered at destination {rank}, no row of which sees it"


def _wrong_transfers(exchange: Exchange) -> Iterable[str]:
    owner = exchange.partition.owner.tolist()
    for transfer in exchange.transfers:
        name = _describe(transfer)
        if transfer.source == transfer.destination:
            yield f"{name}: a rank must not send to itself"
        if owner[transfer.chunk] != transfer.source:
            yield f"{name}: the chunk's owner is rank {owner[transfer.chunk]}"
        stations = (transfer.source, *transfer.route, transfer.destination)
        if transfer.route and len(set(stations)) < len(stations):
            yield f"{name}: route {transfer.route} passes a rank twice"


def _wrong_arrivals(exchange: Exchange) -> Iterable[str]:
    owner = exchange.partition.owner.tolist()
    sources: dict[tuple[int, int], list[int]] = {}
    for transfer in exchange.transfers:
        sources.setdefault((transfer.chunk, transfer.destination), []).append(transfer.source)
    gathered = [set(chunks) for chunks in exchange.gathered]
    for (chunk, rank), senders in sorted(sources.items()):
        if len(senders) > 1:
            yield f"chunk {chunk} arrives {len(senders)} times at destination {rank}, from sources {senders}"
        if chunk not in gathered[rank]:
            yield f"chunk {chunk} moves from source {senders[0]} to destination {rank}, which gathers none"
    for rank, chunks in enumerate(exchange.gathered):
        for chunk in chunks:
            if owner[chunk] != rank and (chunk, rank) not in sources:
                yield f"chunk {chunk} of source {owner[chunk]} never arrives at destination {rank}"


def _wrong_pairs(exchange: Exchange) -> Iterable[str]:
    ranks = range(exchange.partition.num_ranks)
    sends = Counter(transfer for rank in ranks for transfer in exchange.sends(rank))
    receives = Counter(transfer for rank in ranks for transfer in exchange.receives(rank))
    for transfer in sorted(set(sends) | set(receives)):
        if sends[transfer] != receives[transfer]:
            yield f"{_describe(transfer)}: sent {sends[transfer]} times, received {receives[transfer]} times"


def _wrong_trees(exchange: Exchange) -> Iterable[str]:
    came_from: dict[tuple[int, int], int] = {}
    for hop in hops(exchange):
        before = came_from.setdefault((hop.chunk, hop.destination), hop.source)
        if before != hop.source:
            yield (
                f"chunk {hop.chunk} reaches rank {hop.destination} both from rank {before} and from rank "
                f"{hop.source}"
            )


def _describe(transfer: Transfer) -> str:
    return f"chunk {transfer.chunk} from source {transfer.source} to destination {transfer.destination}"
