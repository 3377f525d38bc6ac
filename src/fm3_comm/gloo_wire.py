"""Tagged messages between the ranks of one gloo group, and word of ranks that stop.

gloo aborts the process when a message is larger than the buffer it lands in. So every message is two: a head
of fixed size, and a body that is received only after the head has been found to be the expected one.

A rank that stops says why to each peer in a *notice*, a message that every rank has waited for since it
joined. Then it closes its connections, which wakes whoever waits for it; that rank reads the notices to learn
the first cause, passes it on, and stops as well.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fm3_comm.message import Head, Message
from fm3_comm.turns import Turns
from fm3_core import ExchangeError

# Above the tags that user code is likely to give its own send and recv on the same group; gloo's are int32.
_FIRST_TAG = 1 << 24
_NUM_OPERATIONS = 1 << 29
_NOTICE_TAG = _FIRST_TAG - 2
_CLOSING_TAG = _FIRST_TAG - 1

_NOTICE_BYTES = 1024
_NOTICE_TIMEOUT = timedelta(seconds=1)
_AT_ONCE = timedelta(milliseconds=1)
_CLOSED = ("closed by peer", "reset by peer", "Broken pipe", "pair closure")


class _Shared:
    """What all wires of one group in this process share; it must not refer to the group, to die with it."""

    def __init__(self, group: Any) -> None:
        self.operations = itertools.count()
        self.turns = Turns()
        self.lock = threading.Lock()
        self.stopped: str | None = None
        self.notices: dict[int, Tensor] = {}
        self.waiting: list[Any] = []
        for peer in _peers(group):
            self.notices[peer] = torch.zeros(_NOTICE_BYTES, dtype=torch.uint8)
            self.waiting.append(group.recv([self.notices[peer]], peer, _NOTICE_TAG))


_SHARED: WeakKeyDictionary[Any, _Shared] = WeakKeyDictionary()
_SHARED_LOCK = threading.Lock()


class GlooWire:
    """This rank's end of a gloo group.

    Args:
        group: a gloo process group; several wires over one group share its order of operations.
        timeout_seconds: longest wait for one message; None for the group's own timeout.
    """

    def __init__(self, group: Any, timeout_seconds: float | None) -> None:
        """Join; nothing is sent."""
        self._group = group
        self._timeout = timeout_seconds
        self.rank: int = group.rank()
        self.num_ranks: int = group.size()
        with _SHARED_LOCK:
            if group not in _SHARED:
                _SHARED[group] = _Shared(group)
            self._shared = _SHARED[group]

    def take_numbers(self, count: int) -> int:
        """Reserve numbers of operations, in the order that the group's wires share; return the first."""
        with self._shared.lock:
            first, *_ = [next(self._shared.operations) for _ in range(count)]
        return first

    @property
    def turns(self) -> Turns:
        """The order of what is moved by other ways than this wire; every number must be run or skipped."""
        return self._shared.turns

    def start(
        self,
        operation: int,
        outgoing: Mapping[int, Message],
        expected: Mapping[int, Head],
        *,
        with_bodies: bool = True,
    ) -> Operation:
        """Start sending messages by peer, or only heads, and receiving a head from each in `expected`."""
        if self._shared.stopped is not None:
            raise ExchangeError(f"rank {self.rank} of {self.num_ranks}: {self._shared.stopped}")
        return Operation(self, operation, outgoing, expected, with_bodies)

    def send(self, tensor: Tensor, peer: int, tag: int) -> Any:
        """Start sending a tensor, which must stay as it is until the work has been waited for."""
        return self._group.send([tensor], peer, tag)

    def receive(self, tensor: Tensor, peer: int, tag: int) -> Any:
        """Start receiving into a tensor of the right size."""
        return self._group.recv([tensor], peer, tag)

    def wait(self, work: Any) -> None:
        """Wait for a send or a receive."""
        work.wait() if self._timeout is None else work.wait(timedelta(seconds=self._timeout))

    @contextmanager
    def naming(self, what: str, peer: int) -> Iterator[None]:
        """Turn a failure of gloo, or a wrong message, into an ExchangeError with its cause, and stop."""
        try:
            yield
        except (RuntimeError, ExchangeError) as error:
            where = f"rank {self.rank} of {self.num_ranks}: {what}, rank {peer}"
            cause = self._cause(error, peer)
            mine = isinstance(error, ExchangeError)
            self.stop(f"rank {self.rank} stopped: {where}: {error}" if mine else cause)
            raise ExchangeError(f"{where}: {cause}") from error

    def stop(self, cause: str) -> None:
        """Tell every peer the cause, close the connections, and refuse later operations; once."""
        with self._shared.lock:
            if self._shared.stopped is not None:
                return
            self._shared.stopped = cause
        notice = _encode_notice(cause)
        sent = []
        for peer in _peers(self._group):
            with suppress(RuntimeError):
                sent.append(self.send(notice, peer, _NOTICE_TAG))
        for work in sent:
            with suppress(RuntimeError):
                work.wait(_NOTICE_TIMEOUT)
        for peer in _peers(self._group):
            # gloo closes a connection on which a wait timed out; it has no other call for it.
            with suppress(RuntimeError):
                self.receive(torch.empty(1, dtype=torch.uint8), peer, _CLOSING_TAG).wait(_AT_ONCE)
        self._shared.turns.stop()

    def release(self) -> None:
        """Let go of the group."""
        self._group = None

    def _cause(self, error: Exception, peer: int) -> str:
        if isinstance(error, ExchangeError):
            return str(error)
        if self._shared.stopped is not None:
            return self._shared.stopped
        notices = {rank: _decode_notice(notice) for rank, notice in self._shared.notices.items()}
        heard = notices[peer] or next(filter(None, notices.values()), None)
        if heard is not None:
            return heard
        if "Timed out" in str(error):
            after = "in the group's timeout" if self._timeout is None else f"for {self._timeout:g} s"
            return f"rank {peer} sent nothing {after}"
        if any(sign in str(error) for sign in _CLOSED):
            return f"rank {peer} stopped without a word: its connection closed"
        return f"no connection to rank {peer}: {error}"


class Operation:
    """One start on every rank: messages that leave and messages that are awaited."""

    def __init__(
        self,
        wire: GlooWire,
        number: int,
        outgoing: Mapping[int, Message],
        expected: Mapping[int, Head],
        with_bodies: bool,
    ) -> None:
        """Start sending, and receiving heads."""
        self._wire = wire
        self._number = number
        self._body_tag = _FIRST_TAG + 2 * (number % _NUM_OPERATIONS)
        self._head_tag = self._body_tag + 1
        self._expected = expected
        self._sends: list[tuple[int, str, Any, Tensor]] = []
        self._heads: dict[int, tuple[Any, Tensor]] = {}
        for peer, head in expected.items():
            encoded = torch.zeros_like(head.encode())
            with wire.naming(self._what(head), peer):
                self._heads[peer] = (wire.receive(encoded, peer, self._head_tag), encoded)
        for peer, message in outgoing.items():
            with wire.naming(self._what(message.head), peer):
                self._send(peer, message.head, message.head.encode(), self._head_tag)
                if with_bodies and message.num_bytes:
                    self._send(peer, message.head, message.body, self._body_tag)

    def collect(self) -> dict[int, Message]:
        """Wait for each head, then for its body; return the messages by peer."""
        bodies: dict[int, tuple[Any, Message]] = {}
        for peer in self._heads:
            head = self._head_of(peer)
            body = torch.empty(head.num_elements, dtype=head.dtype)
            with self._wire.naming(self._what(head), peer):
                receiving = self._wire.receive(body, peer, self._body_tag) if head.num_elements else None
            bodies[peer] = (receiving, Message(head, body))
        for peer, (receiving, message) in bodies.items():
            if receiving is not None:
                with self._wire.naming(self._what(message.head), peer):
                    self._wire.wait(receiving)
        return {peer: message for peer, (_, message) in bodies.items()}

    def collect_heads(self) -> None:
        """Wait for each head, and raise unless it is the expected one."""
        for peer in self._heads:
            self._head_of(peer)

    def drain(self) -> None:
        """Wait until everything has left this rank."""
        for peer, what, work, _ in self._sends:
            with self._wire.naming(what, peer):
                self._wire.wait(work)
        self._sends.clear()

    def _head_of(self, peer: int) -> Head:
        work, encoded = self._heads[peer]
        expected = self._expected[peer]
        with self._wire.naming(self._what(expected), peer):
            self._wire.wait(work)
            head = Head.decode(encoded)
            difference = head.difference(expected)
            if difference is not None:
                raise ExchangeError(difference)
        return head

    def _send(self, peer: int, head: Head, tensor: Tensor, tag: int) -> None:
        # The tensor is kept: gloo reads it until the work is done.
        self._sends.append((peer, self._what(head), self._wire.send(tensor, peer, tag), tensor))

    def _what(self, head: Head) -> str:
        return f"{head.operation} (operation {self._number})"


def _peers(group: Any) -> list[int]:
    return [peer for peer in range(group.size()) if peer != group.rank()]


def _encode_notice(text: str) -> Tensor:
    """Return [1024] bytes: the text, zeros, and a last byte 1 that says that all of it is there."""
    raw = text.encode()[: _NOTICE_BYTES - 1]
    return torch.frombuffer(bytearray(raw.ljust(_NOTICE_BYTES - 1, b"\0") + b"\1"), dtype=torch.uint8)


def _decode_notice(notice: Tensor) -> str | None:
    raw = notice.numpy().tobytes()
    return raw[:-1].rstrip(b"\0").decode(errors="replace") if raw[-1] else None
