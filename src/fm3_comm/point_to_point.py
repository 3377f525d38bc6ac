"""A backend whose transport moves one message between two ranks.

It checks tensors, packs them, counts bytes, and puts what arrives where it belongs; a subclass moves
messages.
Legend: B batch, S own tokens, T gathered keys, G key-value heads, D head dim.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from fm3_comm.backend import Pending
from fm3_comm.layout import Parcel, RankLayout, rank_layout
from fm3_comm.message import FLOATS, Head, Message, pack, split
from fm3_comm.traffic import Traffic, reverse
from fm3_core import Exchange, ExchangeError, Transfer

Text = TypeVar("Text", str, bytes)
Pair = tuple[Tensor, Tensor]

_SUMS = (torch.float32, torch.float64)
_LAYOUTS_KEPT = 16


class PointToPointBackend(ABC):
    """Everything of an `ExchangeBackend` but moving messages.

    Args:
        rank: this rank.
        num_ranks: ranks in all.
    """

    def __init__(self, rank: int, num_ranks: int) -> None:
        """Start with nothing under way."""
        self._rank = rank
        self._num_ranks = num_ranks
        self._traffic = Traffic()
        self._layouts: list[tuple[Exchange, RankLayout]] = []
        self._lock = threading.Lock()
        self._closed = False

    @property
    def rank(self) -> int:
        """This rank."""
        return self._rank

    @property
    def num_ranks(self) -> int:
        """Ranks in all."""
        return self._num_ranks

    @property
    def traffic(self) -> Traffic:
        """Payload bytes that this rank has sent in gathers and reductions."""
        return self._traffic

    def __repr__(self) -> str:
        """Name the kind and the rank."""
        return f"<{type(self).__name__} rank {self.rank} of {self.num_ranks}>"

    def start_gather(self, exchange: Exchange, k: Tensor, v: Tensor) -> Pending:
        """Start a pruned all-gather; see `ExchangeBackend.start_gather`."""
        layout = self._layout(exchange)
        self._require_pair("k", "v", k, v, layout.local_tokens, FLOATS)
        head = _head("gather", k, v, k.dtype, layout.digest)
        k, v = k.detach(), v.detach()
        outgoing = {
            peer: self._pack(head, k, v, parcel, parcel.transfers) for peer, parcel in layout.outgoing.items()
        }
        expected = {peer: _sized(head, parcel) for peer, parcel in layout.incoming.items()}
        own = pack(_sized(head, layout.own_local), k, v, layout.own_local.runs)

        def assemble(arrived: Mapping[int, Message]) -> Pair:
            result = _empty(head, layout.gathered_tokens, k.device)
            _fill(result, own, layout.own_gathered)
            for peer, message in arrived.items():
                _fill(result, message, layout.incoming[peer])
            return result

        return Assembly(self._start(outgoing, expected), assemble)

    def start_reduce(
        self, exchange: Exchange, dk: Tensor, dv: Tensor, *, wire_dtype: torch.dtype | None = None
    ) -> Pending:
        """Start a pruned reduce-scatter; see `ExchangeBackend.start_reduce`."""
        layout = self._layout(exchange)
        self._require_pair("dk", "dv", dk, dv, layout.gathered_tokens, _SUMS)
        wire = dk.dtype if wire_dtype is None else wire_dtype
        if wire not in (torch.bfloat16, dk.dtype):
            raise ExchangeError(
                f"{self._who}: wire_dtype must be None, torch.bfloat16 or the {dk.dtype} of dk, got {wire}"
            )
        head = _head("reduce", dk, dv, dk.dtype, layout.digest)
        wire_head = _head("reduce", dk, dv, wire, layout.digest)
        dk, dv = dk.detach(), dv.detach()
        outgoing = {
            peer: self._pack(wire_head, dk, dv, parcel, tuple(map(reverse, parcel.transfers)))
            for peer, parcel in layout.incoming.items()
        }
        expected = {peer: _sized(wire_head, parcel) for peer, parcel in layout.outgoing.items()}
        own = pack(_sized(head, layout.own_gathered), dk, dv, layout.own_gathered.runs)

        def assemble(arrived: Mapping[int, Message]) -> Pair:
            result = _empty(head, layout.local_tokens, dk.device)
            for tensor in result:
                tensor.zero_()
            for source in sorted([*arrived, self.rank]):
                mine = source == self.rank
                parcel = layout.own_local if mine else layout.outgoing[source]
                _add(result, own if mine else arrived[source], parcel)
            return result

        return Assembly(self._start(outgoing, expected), assemble)

    def share(self, text: Text) -> list[Text]:
        """Return every rank's `text`, by rank; see `ExchangeBackend.share`."""
        if not isinstance(text, str | bytes):
            raise ExchangeError(f"{self._who}: share takes str or bytes, got {type(text).__name__}")
        if isinstance(text, str):
            return [shared.decode() for shared in self._share("share text", text.encode())]
        return self._share("share bytes", text)

    def barrier(self) -> None:
        """Return when every rank has come here."""
        self._share("barrier", b"")

    @abstractmethod
    def abort(self, reason: str) -> None:
        """Tell the other ranks that this one stops and why; see `ExchangeBackend.abort`."""

    def close(self) -> None:
        """Refuse later starts; a subclass gives back what it holds."""
        self._closed = True

    @abstractmethod
    def _start(
        self, outgoing: Mapping[int, Message], expected: Mapping[int, Head]
    ) -> Callable[[], Mapping[int, Message]]:
        """Start one operation: send messages by peer and receive one from each peer in `expected`.

        Returns:
            a function, called at most once, that blocks until all have arrived and returns them by peer. It
            raises ExchangeError naming the peer that stopped, is late or sends another head.
        """

    @property
    def _who(self) -> str:
        return f"rank {self.rank} of {self.num_ranks}"

    def _require_open(self) -> None:
        if self._closed:
            raise ExchangeError(f"{self._who}: this backend is closed")

    def _layout(self, exchange: Exchange) -> RankLayout:
        if exchange.partition.num_ranks != self.num_ranks:
            raise ExchangeError(
                f"{self._who}: the exchange must be for {self.num_ranks} ranks, "
                f"got one for {exchange.partition.num_ranks}"
            )
        with self._lock:
            for known, layout in self._layouts:
                if known is exchange:
                    return layout
        layout = rank_layout(exchange, self.rank)
        with self._lock:
            self._layouts = [(exchange, layout), *self._layouts[: _LAYOUTS_KEPT - 1]]
        return layout

    def _require_pair(
        self, first: str, second: str, a: Tensor, b: Tensor, tokens: int, dtypes: tuple[torch.dtype, ...]
    ) -> None:
        """Refuse tensors that are not a pair [B, tokens, G, D], [B, tokens, G, D'] of one of `dtypes`."""
        wrong = []
        for name, tensor in ((first, a), (second, b)):
            if not isinstance(tensor, Tensor):
                raise ExchangeError(f"{self._who}: {name} must be a tensor, got {type(tensor).__name__}")
            if tensor.dim() != 4:
                wrong.append(f"{name} must be [batch, {tokens}, heads, dim], got {list(tensor.shape)}")
            elif tensor.shape[1] != tokens:
                wrong.append(f"{name} must have {tokens} tokens (dim 1), got {list(tensor.shape)}")
            if tensor.dtype not in dtypes:
                allowed = ", ".join(map(str, dtypes))
                wrong.append(f"{name} must have one of the dtypes {allowed}, got {tensor.dtype}")
        if not wrong and a.shape[:3] != b.shape[:3]:
            wrong.append(f"{second} must be {[*a.shape[:3]]} and any dim as {first} is, got {list(b.shape)}")
        for what in ("dtype", "device"):
            must, has = getattr(a, what), getattr(b, what)
            if must != has:
                wrong.append(f"{second} must have the {what} {must} of {first}, got {has}")
        if wrong:
            raise ExchangeError(f"{self._who}: " + "; ".join(wrong))

    def _share(self, operation: str, raw: bytes) -> list[bytes]:
        body = torch.from_numpy(np.frombuffer(raw, dtype=np.uint8).copy())
        head = Head(
            operation=operation,
            batch=1,
            num_tokens=len(raw),
            heads=1,
            key_dim=1,
            value_dim=0,
            dtype=torch.uint8,
            exchange=0,
        )
        peers = [peer for peer in range(self.num_ranks) if peer != self.rank]
        arrived = self._start({peer: Message(head, body) for peer in peers}, dict.fromkeys(peers, head))()
        texts = {peer: message.body.numpy().tobytes() for peer, message in arrived.items()}
        texts[self.rank] = raw
        return [texts[rank] for rank in range(self.num_ranks)]

    def _pack(
        self, head: Head, k: Tensor, v: Tensor, parcel: Parcel, transfers: tuple[Transfer, ...]
    ) -> Message:
        message = pack(_sized(head, parcel), k, v, parcel.runs)
        token_bytes = message.num_bytes // max(parcel.num_tokens, 1)
        assert token_bytes * parcel.num_tokens == message.num_bytes
        with self._lock:
            for transfer, length in zip(transfers, parcel.lengths, strict=True):
                self._traffic.add(transfer, length * token_bytes)
        return message


class Assembly:
    """A Pending that waits for messages and puts them together, once.

    Args:
        arrive: blocks until the messages are here.
        assemble: makes the result of them.
    """

    def __init__(
        self, arrive: Callable[[], Mapping[int, Message]], assemble: Callable[[Mapping[int, Message]], Pair]
    ) -> None:
        """Hold both until `wait`."""
        self._todo: (
            tuple[Callable[[], Mapping[int, Message]], Callable[[Mapping[int, Message]], Pair]] | None
        ) = (arrive, assemble)
        self._result: Pair | None = None
        self._error: Exception | None = None
        self._lock = threading.Lock()

    def wait(self) -> Pair:
        """Return the result; an error is raised again on every call."""
        with self._lock:
            if self._todo is not None:
                arrive, assemble = self._todo
                self._todo = None
                try:
                    self._result = assemble(arrive())
                except Exception as error:
                    self._error = error
            if self._error is not None:
                raise self._error
            assert self._result is not None
            return self._result


def _head(operation: str, k: Tensor, v: Tensor, dtype: torch.dtype, exchange: int) -> Head:
    return Head(
        operation=operation,
        batch=k.shape[0],
        num_tokens=0,
        heads=k.shape[2],
        key_dim=k.shape[3],
        value_dim=v.shape[3],
        dtype=dtype,
        exchange=exchange,
    )


def _sized(head: Head, parcel: Parcel) -> Head:
    return Head(**{**vars(head), "num_tokens": parcel.num_tokens})


def _empty(head: Head, num_tokens: int, device: torch.device) -> Pair:
    shape = (head.batch, num_tokens, head.heads)
    return (
        torch.empty(*shape, head.key_dim, dtype=head.dtype, device=device),
        torch.empty(*shape, head.value_dim, dtype=head.dtype, device=device),
    )


def _fill(result: Pair, message: Message, parcel: Parcel) -> None:
    for tensor, part in zip(result, split(message.head, message.body), strict=True):
        filled = 0
        for start, length in parcel.runs:
            tensor[:, start : start + length].copy_(part[:, filled : filled + length])
            filled += length


def _add(result: Pair, message: Message, parcel: Parcel) -> None:
    for tensor, part in zip(result, split(message.head, message.body), strict=True):
        filled = 0
        for start, length in parcel.runs:
            tensor[:, start : start + length] += part[:, filled : filled + length].to(tensor)
            filled += length
