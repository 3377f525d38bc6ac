"""A backend whose transport moves one message between two ranks.

It packs tensors, counts bytes, relays, and puts what arrives where it belongs; a subclass moves messages.
Legend: B batch, S own tokens, T gathered keys, G key-value heads, D head dim.
"""

from __future__ import annotations

import itertools
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from fm3_comm.assembly import Assembly
from fm3_comm.backend import Pending
from fm3_comm.layout import Parcel, RankLayout, Round, rank_layout
from fm3_comm.message import Head, Message, pack, split
from fm3_comm.rank_backend import RankBackend, empty_pair, pair_head, text_body, text_head
from fm3_comm.traffic import reverse
from fm3_core import Exchange, Transfer

Pair = tuple[Tensor, Tensor]
Arrivals = Mapping[int, Message]
Arrive = Callable[[], Arrivals]

_LAYOUTS_KEPT = 16


class PointToPointBackend(RankBackend):
    """Everything of an `ExchangeBackend` but moving messages.

    Args:
        rank: this rank.
        num_ranks: ranks in all.
    """

    def __init__(self, rank: int, num_ranks: int) -> None:
        """Start with nothing under way."""
        super().__init__(rank, num_ranks)
        self._layouts: list[tuple[Exchange, RankLayout]] = []
        self._lock = threading.Lock()
        self._operations = itertools.count()
        self._relays: ThreadPoolExecutor | None = None

    def start_gather(self, exchange: Exchange, k: Tensor, v: Tensor) -> Pending:
        """Start a pruned all-gather; see `ExchangeBackend.start_gather`."""
        layout = self._layout(exchange)
        self._require_keys(k, v, layout.local_tokens)
        head = pair_head("gather", k, v, k.dtype, layout.digest)
        k, v = k.detach(), v.detach()
        own = pack(_sized(head, layout.own), k, v, ((start, length) for start, _, length in layout.own))

        def relayed(arrived: Arrivals) -> Pair:
            passing = empty_pair(head, layout.relayed_tokens, k.device)
            for peer, message in arrived.items():
                _fill(passing, message, layout.gather[0].passing[peer].runs)
            return passing

        def assemble(rounds: list[Arrivals]) -> Pair:
            result = empty_pair(head, layout.gathered_tokens, k.device)
            _fill(result, own, _packed(layout.own))
            for arrived, one in zip(rounds, layout.gather, strict=True):
                for peer, message in arrived.items():
                    _fill(result, message, one.incoming[peer].runs)
            return result

        return Assembly(self._start_rounds(layout.gather, head, (k, v), relayed, _unchanged), assemble)

    def start_reduce(
        self, exchange: Exchange, dk: Tensor, dv: Tensor, *, wire_dtype: torch.dtype | None = None
    ) -> Pending:
        """Start a pruned reduce-scatter; see `ExchangeBackend.start_reduce`."""
        layout = self._layout(exchange)
        wire = self._require_partials(dk, dv, layout.gathered_tokens, wire_dtype)
        head = pair_head("reduce", dk, dv, dk.dtype, layout.digest)
        wire_head = pair_head("reduce", dk, dv, wire, layout.digest)
        dk, dv = dk.detach(), dv.detach()
        own = pack(_sized(head, layout.own), dk, dv, ((start, length) for _, start, length in layout.own))
        runs = layout.own_relayed
        mine = pack(_sized(head, runs), dk, dv, ((start, length) for start, _, length in runs))

        def relayed(arrived: Arrivals) -> Pair:
            parcels = layout.reduce[0].passing
            parts = [(peer, message, parcels[peer].runs) for peer, message in arrived.items()]
            return self._sum(
                head, layout.relayed_tokens, dk.device, [*parts, (self.rank, mine, _packed(runs))]
            )

        def assemble(rounds: list[Arrivals]) -> Pair:
            parts = [
                (peer, message, one.incoming[peer].runs)
                for arrived, one in zip(rounds, layout.reduce, strict=True)
                for peer, message in arrived.items()
            ]
            kept = _packed([(there, here, length) for here, there, length in layout.own])
            return self._sum(head, layout.local_tokens, dk.device, [*parts, (self.rank, own, kept)])

        return Assembly(self._start_rounds(layout.reduce, wire_head, (dk, dv), relayed, reverse), assemble)

    def close(self) -> None:
        """Refuse later starts; a subclass gives back what it holds."""
        super().close()
        if self._relays is not None:
            self._relays.shutdown(wait=True)

    @abstractmethod
    def _start(self, operation: int, outgoing: Arrivals, expected: Mapping[int, Head]) -> Arrive:
        """Start one operation: send messages by peer and receive one from each peer in `expected`.

        Args:
            operation: its number: ranks match their messages by it. Numbers may come out of order, from
                another thread.
            outgoing: messages by peer.
            expected: heads by peer.

        Returns:
            a function, called at most once, that blocks until all have arrived and returns them by peer. It
            raises ExchangeError naming the peer that stopped, is late or sends another head.
        """

    def _take_numbers(self, count: int) -> int:
        """Reserve numbers of operations, the same on every rank; return the first."""
        with self._lock:
            first, *_ = [next(self._operations) for _ in range(count)]
        return first

    def _start_rounds(
        self,
        rounds: tuple[Round, ...],
        head: Head,
        pair: Pair,
        relayed: Callable[[Arrivals], Pair],
        direction: Callable[[Transfer], Transfer],
    ) -> Callable[[], list[Arrivals]]:
        """Send the first round now, and the second as soon as what it relays is here."""
        self._require_open()
        number = self._take_numbers(len(rounds))
        first = self._start(number, *self._messages(rounds[0], head, pair, direction))
        if len(rounds) == 1:
            return lambda: [first()]

        def pass_on() -> tuple[Arrivals, Arrive]:
            arrived = first()
            return arrived, self._start(
                number + 1, *self._messages(rounds[1], head, relayed(arrived), direction)
            )

        passed = self._relay_thread().submit(pass_on)

        def arrive(passed: Future[tuple[Arrivals, Arrive]] = passed) -> list[Arrivals]:
            arrived, second = passed.result()
            return [arrived, second()]

        return arrive

    def _messages(
        self, one: Round, head: Head, pair: Pair, direction: Callable[[Transfer], Transfer]
    ) -> tuple[dict[int, Message], dict[int, Head]]:
        outgoing = {peer: self._pack(head, pair, parcel, direction) for peer, parcel in one.outgoing.items()}
        return outgoing, {peer: head.sized(parcel.num_tokens) for peer, parcel in one.incoming.items()}

    def _relay_thread(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._relays is None:
                self._relays = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"fm3-relay-{self.rank}")
            return self._relays

    def _layout(self, exchange: Exchange) -> RankLayout:
        self._require_ranks(exchange)
        with self._lock:
            for known, layout in self._layouts:
                if known is exchange:
                    return layout
        layout = rank_layout(exchange, self.rank)
        with self._lock:
            self._layouts = [(exchange, layout), *self._layouts[: _LAYOUTS_KEPT - 1]]
        return layout

    def _share(self, operation: str, raw: bytes) -> list[bytes]:
        self._require_open()
        body, head = text_body(raw), text_head(operation, raw)
        peers = [peer for peer in range(self.num_ranks) if peer != self.rank]
        outgoing = {peer: Message(head, body) for peer in peers}
        arrived = self._start(self._take_numbers(1), outgoing, dict.fromkeys(peers, head))()
        texts = {peer: message.body.numpy().tobytes() for peer, message in arrived.items()}
        texts[self.rank] = raw
        return [texts[rank] for rank in range(self.num_ranks)]

    def _pack(
        self, head: Head, pair: Pair, parcel: Parcel, direction: Callable[[Transfer], Transfer]
    ) -> Message:
        runs = ((start, length) for _, start, length in parcel.runs)
        message = pack(head.sized(parcel.num_tokens), *pair, runs)
        token_bytes = message.num_bytes // max(parcel.num_tokens, 1)
        assert token_bytes * parcel.num_tokens == message.num_bytes
        with self._lock:
            for hop, length in zip(parcel.hops, parcel.lengths, strict=True):
                self._traffic.add(direction(hop), length * token_bytes)
        return message

    def _sum(
        self,
        head: Head,
        num_tokens: int,
        device: torch.device,
        parts: Iterable[tuple[int, Message, Iterable[tuple[int, int, int]]]],
    ) -> Pair:
        """Add parts (source, message, runs) to zeros in ascending order of source."""
        result = empty_pair(head, num_tokens, device)
        for tensor in result:
            tensor.zero_()
        for _, message, runs in sorted(parts, key=lambda part: part[0]):
            _add(result, message, runs)
        return result


def _unchanged(hop: Transfer) -> Transfer:
    return hop


def _sized(head: Head, runs: Iterable[tuple[int, int, int]]) -> Head:
    return head.sized(sum(length for *_, length in runs))


def _packed(runs: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return runs whose message holds the tokens of the given ones without gaps."""
    packed, filled = [], 0
    for _, start, length in runs:
        packed.append((filled, start, length))
        filled += length
    return packed


def _fill(result: Pair, message: Message, runs: Iterable[tuple[int, int, int]]) -> None:
    for tensor, part in zip(result, split(message.head, message.body), strict=True):
        for here, there, length in runs:
            tensor[:, there : there + length].copy_(part[:, here : here + length])


def _add(result: Pair, message: Message, runs: Iterable[tuple[int, int, int]]) -> None:
    for tensor, part in zip(result, split(message.head, message.body), strict=True):
        for here, there, length in runs:
            tensor[:, there : there + length] += part[:, here : here + length].to(tensor)
