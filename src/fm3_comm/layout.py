"""Where the tokens of an exchange's chunks lie in one rank's tensors, for backends that send messages."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from fm3_comm.hops import RankHops, hops_by_rank
from fm3_core import Exchange, ExchangeError, Transfer, UnsupportedError


@dataclass(frozen=True)
class Parcel:
    """The chunks that travel in one message between this rank and a peer, ascending.

    Args:
        hops: the chunks' hops in the gather's direction.
        lengths: tokens of each chunk.
        runs: (first token in the message, first token in this rank's tensor, tokens), chunks that touch in
            both joined; chunks that the tensor does not hold have none.
    """

    hops: tuple[Transfer, ...]
    lengths: tuple[int, ...]
    runs: tuple[tuple[int, int, int], ...]

    @property
    def num_tokens(self) -> int:
        """Tokens of the message."""
        return sum(self.lengths)


@dataclass(frozen=True)
class Round:
    """One message a peer: what leaves, and where the tokens of what arrives go.

    Args:
        outgoing: by peer, with runs in the tensor that the round sends from.
        incoming: by peer, with runs in the tensor that the operation returns.
        passing: by peer, the messages of `incoming` with runs in the relayed tokens.
    """

    outgoing: Mapping[int, Parcel]
    incoming: Mapping[int, Parcel]
    passing: Mapping[int, Parcel]


@dataclass(frozen=True)
class RankLayout:
    """One rank's view of an exchange. Relayed tokens are a tensor of its own: the chunks that it passes on.

    Args:
        local_tokens: tokens that the rank owns.
        gathered_tokens: keys that it gathers.
        relayed_tokens: tokens that it passes on.
        gather: rounds; the first sends own tokens, a second one relayed tokens.
        reduce: rounds; the first sends gathered keys, a second one relayed tokens.
        own: its own gathered chunks, runs (first own token, first gathered key, tokens).
        own_relayed: chunks that it gathers and relays, runs (first gathered key, first relayed token,
            tokens).
        digest: 63 bits that tell exchanges apart, the same on every rank.
    """

    local_tokens: int
    gathered_tokens: int
    relayed_tokens: int
    gather: tuple[Round, ...]
    reduce: tuple[Round, ...]
    own: tuple[tuple[int, int, int], ...]
    own_relayed: tuple[tuple[int, int, int], ...]
    digest: int


def rank_layout(exchange: Exchange, rank: int) -> RankLayout:
    """Lay out what `rank` sends, keeps, passes on and receives.

    Raises:
        ExchangeError: a gathered chunk arrives from nowhere or twice, or a rank sends what it does not own.
        UnsupportedError: a transfer has more than one relay.
    """
    long_way = next((transfer for transfer in exchange.transfers if len(transfer.route) > 1), None)
    if long_way is not None:
        raise UnsupportedError("exchange by messages", [f"{long_way} goes through more than one relay"])
    require_complete(exchange, rank)
    trees = hops_by_rank(exchange)
    me = trees[rank]
    partition = exchange.partition
    local = _starts(exchange, partition.chunks_of(rank))
    gathered = _starts(exchange, exchange.gathered[rank])
    relayed = _starts(exchange, (chunk for chunk in me.children if chunk in me.parent))
    hops = _Hops(exchange, me)

    def is_leaf(hop: Transfer) -> bool:
        return hop.chunk not in trees[hop.destination].children

    def from_owner(hop: Transfer) -> bool:
        return hop.chunk not in trees[hop.source].parent

    gather = [
        hops.round(hops.below(from_owner), local, hops.above(from_owner), gathered, relayed),
        hops.round(hops.below(_not(from_owner)), relayed, hops.above(_not(from_owner)), gathered, {}),
    ]
    reduce = [
        hops.round(hops.above(is_leaf), gathered, hops.below(is_leaf), local, relayed),
        hops.round(hops.above(_not(is_leaf)), relayed, hops.below(_not(is_leaf)), local, {}),
    ]
    num_rounds = 2 if any(transfer.route for transfer in exchange.transfers) else 1
    return RankLayout(
        local_tokens=partition.num_tokens_of(rank),
        gathered_tokens=int(exchange.gathered_lengths(rank).sum()),
        relayed_tokens=sum(partition.chunk_length(chunk) for chunk in relayed),
        gather=tuple(gather[:num_rounds]),
        reduce=tuple(reduce[:num_rounds]),
        own=_shared_runs(exchange, local, gathered),
        own_relayed=_shared_runs(exchange, gathered, relayed),
        digest=exchange_digest(exchange),
    )


def require_complete(exchange: Exchange, rank: int) -> None:
    """Raise ExchangeError unless `rank` sends what it owns and receives what it gathers exactly once."""
    local = set(exchange.partition.chunks_of(rank))
    for transfer in exchange.sends(rank):
        if transfer.chunk not in local or transfer.destination == rank:
            raise ExchangeError(f"{transfer}: rank {rank} must own what it sends, and not send to itself")
    own = [chunk for chunk in exchange.gathered[rank] if chunk in local]
    arriving = sorted([*own, *(transfer.chunk for transfer in exchange.receives(rank))])
    if arriving != list(exchange.gathered[rank]):
        odd = sorted(set(arriving) ^ set(exchange.gathered[rank])) or arriving
        raise ExchangeError(
            f"rank {rank} must receive each chunk that it gathers exactly once; chunk {odd[0]} does not "
            "(check_exchange tells all)"
        )


def exchange_digest(exchange: Exchange) -> int:
    """Return 63 bits that tell exchanges apart: partition, gathered chunks, transfers and their routes."""
    partition = exchange.partition
    moves = [(t.chunk, t.source, t.destination, len(t.route), *t.route) for t in exchange.transfers]
    figures = hashlib.blake2b(digest_size=8)
    for part in (
        [partition.num_tokens, partition.chunk_size, partition.num_ranks],
        partition.owner,
        [number for move in moves for number in move],
        *exchange.gathered,
    ):
        numbers = np.asarray(part, dtype="<i8").reshape(-1)
        figures.update(len(numbers).to_bytes(8, "little"))
        figures.update(numbers.tobytes())
    return int.from_bytes(figures.digest(), "little") >> 1


class _Hops:
    """One rank's hops by what they are, and rounds of them."""

    def __init__(self, exchange: Exchange, me: RankHops) -> None:
        self._exchange = exchange
        self._me = me

    def below(self, which: Callable[[Transfer], bool]) -> dict[int, list[Transfer]]:
        """Hops that leave this rank in a gather, by peer."""
        rank = self._me.rank
        return _kept(
            {
                peer: [Transfer(chunk, rank, peer) for chunk in chunks]
                for peer, chunks in self._me.below.items()
            },
            which,
        )

    def above(self, which: Callable[[Transfer], bool]) -> dict[int, list[Transfer]]:
        """Hops that end at this rank in a gather, by peer."""
        rank = self._me.rank
        return _kept(
            {
                peer: [Transfer(chunk, peer, rank) for chunk in chunks]
                for peer, chunks in self._me.above.items()
            },
            which,
        )

    def round(
        self,
        outgoing: Mapping[int, list[Transfer]],
        out_of: Mapping[int, int],
        incoming: Mapping[int, list[Transfer]],
        into: Mapping[int, int],
        passing: Mapping[int, int],
    ) -> Round:
        """Lay out one round; the last of each pair says where chunks start in the tensor."""
        return Round(
            outgoing={peer: self._parcel(hops, out_of) for peer, hops in outgoing.items()},
            incoming={peer: self._parcel(hops, into) for peer, hops in incoming.items()},
            passing={peer: self._parcel(hops, passing) for peer, hops in incoming.items()},
        )

    def _parcel(self, hops: list[Transfer], starts: Mapping[int, int]) -> Parcel:
        lengths = tuple(self._exchange.partition.chunk_length(hop.chunk) for hop in hops)
        runs: list[tuple[int, int, int]] = []
        filled = 0
        for hop, length in zip(hops, lengths, strict=True):
            if hop.chunk in starts:
                _append_run(runs, filled, starts[hop.chunk], length)
            filled += length
        return Parcel(tuple(hops), lengths, tuple(runs))


def _kept(
    by_peer: Mapping[int, list[Transfer]], which: Callable[[Transfer], bool]
) -> dict[int, list[Transfer]]:
    kept = {peer: [hop for hop in hops if which(hop)] for peer, hops in by_peer.items()}
    return {peer: hops for peer, hops in kept.items() if hops}


def _not(which: Callable[[Transfer], bool]) -> Callable[[Transfer], bool]:
    return lambda hop: not which(hop)


def _starts(exchange: Exchange, chunks: Iterable[int]) -> dict[int, int]:
    starts, start = {}, 0
    for chunk in chunks:
        starts[chunk] = start
        start += exchange.partition.chunk_length(chunk)
    return starts


def _shared_runs(
    exchange: Exchange, first: Mapping[int, int], second: Mapping[int, int]
) -> tuple[tuple[int, int, int], ...]:
    """Return runs of the chunks that both tensors hold."""
    runs: list[tuple[int, int, int]] = []
    for chunk in first:
        if chunk in second:
            _append_run(runs, first[chunk], second[chunk], exchange.partition.chunk_length(chunk))
    return tuple(runs)


def _append_run(runs: list[tuple[int, int, int]], first: int, second: int, length: int) -> None:
    if runs and runs[-1][0] + runs[-1][2] == first and runs[-1][1] + runs[-1][2] == second:
        runs[-1] = (runs[-1][0], runs[-1][1], runs[-1][2] + length)
    else:
        runs.append((first, second, length))
