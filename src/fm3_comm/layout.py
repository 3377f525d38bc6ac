"""Where the tokens of an exchange's chunks lie in one rank's tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from fm3_core import Exchange, ExchangeError, Transfer, UnsupportedError


@dataclass(frozen=True)
class Parcel:
    """The chunks that travel between this rank and one peer, ascending.

    Args:
        transfers: the chunks' transfers in the gather's direction.
        lengths: tokens of each chunk.
        runs: (first token, tokens) in this rank's tensor, chunks that touch joined; in a message they follow
            one another without gaps.
    """

    transfers: tuple[Transfer, ...]
    lengths: tuple[int, ...]
    runs: tuple[tuple[int, int], ...]

    @property
    def num_tokens(self) -> int:
        """Tokens in all."""
        return sum(self.lengths)


@dataclass(frozen=True)
class RankLayout:
    """One rank's view of an exchange.

    Args:
        local_tokens: tokens that the rank owns.
        gathered_tokens: keys that it gathers.
        outgoing: by peer, chunks it sends; runs in its own tokens.
        incoming: by peer, chunks it receives; runs in the gathered keys.
        own_local: its own gathered chunks, runs in its own tokens.
        own_gathered: the same, runs in the gathered keys.
        digest: 63 bits that tell exchanges apart, the same on every rank.
    """

    local_tokens: int
    gathered_tokens: int
    outgoing: Mapping[int, Parcel]
    incoming: Mapping[int, Parcel]
    own_local: Parcel
    own_gathered: Parcel
    digest: int


def rank_layout(exchange: Exchange, rank: int) -> RankLayout:
    """Lay out what `rank` sends, keeps and receives.

    Raises:
        ExchangeError: a gathered chunk arrives from nowhere or twice, or a rank sends what it does not own.
        UnsupportedError: a transfer has relays.
    """
    partition = exchange.partition
    relayed = next((t for t in exchange.sends(rank) + exchange.receives(rank) if t.route), None)
    if relayed is not None:
        raise UnsupportedError("direct exchange", [f"{relayed} goes through relays"])
    local = _starts(partition.chunks_of(rank), partition.lengths(rank).tolist())
    gathered = _starts(exchange.gathered[rank], exchange.gathered_lengths(rank).tolist())
    own = [Transfer(chunk, rank, rank) for chunk in exchange.gathered[rank] if chunk in local]
    _require_complete(exchange, rank, own, local)
    return RankLayout(
        local_tokens=partition.num_tokens_of(rank),
        gathered_tokens=int(exchange.gathered_lengths(rank).sum()),
        outgoing=_by_peer(exchange, exchange.sends(rank), local, "destination"),
        incoming=_by_peer(exchange, exchange.receives(rank), gathered, "source"),
        own_local=_parcel(exchange, own, local),
        own_gathered=_parcel(exchange, own, gathered),
        digest=_digest(exchange),
    )


def _starts(chunks: Iterable[int], lengths: Iterable[int]) -> dict[int, int]:
    starts, start = {}, 0
    for chunk, length in zip(chunks, lengths, strict=True):
        starts[chunk] = start
        start += length
    return starts


def _require_complete(exchange: Exchange, rank: int, own: list[Transfer], local: dict[int, int]) -> None:
    for transfer in exchange.sends(rank):
        if transfer.chunk not in local or transfer.destination == rank:
            raise ExchangeError(f"{transfer}: rank {rank} must own what it sends, and not send to itself")
    arriving = sorted(transfer.chunk for transfer in (*own, *exchange.receives(rank)))
    if arriving != list(exchange.gathered[rank]):
        odd = sorted(set(arriving) ^ set(exchange.gathered[rank])) or arriving
        raise ExchangeError(
            f"rank {rank} must receive each chunk that it gathers exactly once; chunk {odd[0]} does not "
            "(check_exchange tells all)"
        )


def _by_peer(
    exchange: Exchange, transfers: Iterable[Transfer], starts: dict[int, int], peer: str
) -> dict[int, Parcel]:
    groups: dict[int, list[Transfer]] = {}
    for transfer in transfers:
        groups.setdefault(getattr(transfer, peer), []).append(transfer)
    return {rank: _parcel(exchange, groups[rank], starts) for rank in sorted(groups)}


def _parcel(exchange: Exchange, transfers: list[Transfer], starts: dict[int, int]) -> Parcel:
    lengths = tuple(exchange.partition.chunk_length(transfer.chunk) for transfer in transfers)
    runs: list[tuple[int, int]] = []
    for transfer, length in zip(transfers, lengths, strict=True):
        start = starts[transfer.chunk]
        if runs and sum(runs[-1]) == start:
            runs[-1] = (runs[-1][0], runs[-1][1] + length)
        else:
            runs.append((start, length))
    return Parcel(tuple(transfers), lengths, tuple(runs))


def _digest(exchange: Exchange) -> int:
    partition = exchange.partition
    moves = [(t.chunk, t.source, t.destination) for t in exchange.transfers]
    figures = hashlib.blake2b(digest_size=8)
    for part in (
        [partition.num_tokens, partition.chunk_size, partition.num_ranks],
        partition.owner,
        moves,
        *exchange.gathered,
    ):
        numbers = np.asarray(part, dtype="<i8").reshape(-1)
        figures.update(len(numbers).to_bytes(8, "little"))
        figures.update(numbers.tobytes())
    return int.from_bytes(figures.digest(), "little") >> 1
