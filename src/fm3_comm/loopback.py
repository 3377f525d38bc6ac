"""P ranks in one process: the backend to test with, to teach with, and to compare others against."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from fm3_comm.backend import ExchangeBackend
from fm3_comm.message import Head, Message
from fm3_comm.point_to_point import PointToPointBackend
from fm3_comm.rank_threads import describe, run_rank_threads
from fm3_core import ExchangeError
from fm3_core.check import require_int

R = TypeVar("R")

DEFAULT_TIMEOUT_SECONDS = 300.0


class _World:
    """The mailboxes that the ranks of one process share."""

    def __init__(self, num_ranks: int, timeout_seconds: float) -> None:
        self.num_ranks = num_ranks
        self.timeout_seconds = timeout_seconds
        self.changed = threading.Condition()
        self.mail: dict[tuple[int, int, int], Message] = {}
        self.finished: set[int] = set()
        self.stopped: str | None = None

    def post(self, operation: int, source: int, messages: Mapping[int, Message]) -> None:
        with self.changed:
            for destination, message in messages.items():
                self.mail[operation, source, destination] = message
            self.changed.notify_all()

    def take(self, operation: int, source: int, destination: int, deadline: float) -> Message:
        """Wait for a message and take it out; raise what stands in its way."""
        key = (operation, source, destination)
        with self.changed:
            while key not in self.mail:
                if self.stopped is not None:
                    raise ExchangeError(self.stopped)
                if source in self.finished:
                    raise ExchangeError(f"rank {source} has finished without starting this operation")
                if not self.changed.wait(deadline - time.monotonic()):
                    raise ExchangeError(f"rank {source} sent nothing for {self.timeout_seconds:g} s")
            return self.mail.pop(key)

    def stop(self, reason: str) -> None:
        with self.changed:
            self.stopped = self.stopped or reason
            self.changed.notify_all()

    def finish(self, rank: int) -> None:
        with self.changed:
            self.finished.add(rank)
            self.changed.notify_all()


class Loopback(PointToPointBackend):
    """One rank of `run`; made by `run` and `solo`. On a GPU all ranks must work on one stream."""

    def __init__(self, world: _World, rank: int) -> None:
        """Join the world as `rank`."""
        super().__init__(rank, world.num_ranks)
        self._world = world

    def abort(self, reason: str) -> None:
        """Make every operation of every rank raise ExchangeError with this rank and the reason."""
        self._world.stop(f"rank {self.rank} stopped: {reason}")

    def close(self) -> None:
        """Refuse later starts; ranks that wait for one of them stop waiting."""
        super().close()
        self._world.finish(self.rank)

    def _start(
        self, operation: int, outgoing: Mapping[int, Message], expected: Mapping[int, Head]
    ) -> Callable[[], Mapping[int, Message]]:
        if self._world.stopped is not None:
            raise ExchangeError(f"{self._who}: {self._world.stopped}")
        self._world.post(operation, self.rank, outgoing)

        def arrive() -> Mapping[int, Message]:
            deadline = time.monotonic() + self._world.timeout_seconds
            arrived = {}
            for peer, head in expected.items():
                where = f"{self._who}: {head.operation} (operation {operation}), message from rank {peer}"
                try:
                    message = self._world.take(operation, peer, self.rank, deadline)
                except ExchangeError as error:
                    raise ExchangeError(f"{where}: {error}") from None
                difference = message.head.difference(head)
                if difference is not None:
                    raise ExchangeError(f"{where}: {difference}")
                arrived[peer] = message
            return arrived

        return arrive


def solo() -> Loopback:
    """Return the handle of a world of one rank."""
    return Loopback(_World(1, DEFAULT_TIMEOUT_SECONDS), 0)


def run(
    num_ranks: int, fn: Callable[[ExchangeBackend], R], *, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
) -> list[R]:
    """Run `fn(handle)` for P ranks as threads of this process and return the results by rank.

    A rank that raises makes every rank's pending and later operations raise at once, so that all end. The
    threads have the caller's gradient mode; handles are closed when `fn` returns.

    Args:
        num_ranks: P >= 1.
        fn: one rank's work; its argument is the rank's `ExchangeBackend`.
        timeout_seconds: longest wait for a message.

    Raises:
        BaseException: the first exception that any rank raised, with a note that names the rank.
        ExchangeError: `num_ranks` is not a positive integer.
    """
    world = _World(require_int("num_ranks", num_ranks, minimum=1, error=ExchangeError), timeout_seconds)

    def body(rank: int) -> R:
        handle = Loopback(world, rank)
        result = fn(handle)
        handle.close()
        return result

    def stop(rank: int, error: BaseException) -> None:
        world.stop(f"rank {rank} stopped: {describe(error)}")

    return run_rank_threads(world.num_ranks, body, stop)


class LoopbackKind:
    """Loopback as the registry holds it."""

    def connect(self, group: Any = None, *, timeout_seconds: float | None = None) -> ExchangeBackend:
        """Return `group`, a handle that `run` passed to its function; without one, a world of one rank.

        Raises:
            ExchangeError: `group` is something else.
        """
        if group is None:
            return solo()
        if not isinstance(group, Loopback):
            raise ExchangeError(
                "backend 'loopback' takes the handle that fm3_comm.loopback.run passes to its function, "
                f"got {type(group).__name__}"
            )
        return group

    def run(
        self,
        num_ranks: int,
        fn: Callable[[ExchangeBackend], R],
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> list[R]:
        """Run P ranks as threads; see `run`."""
        return run(num_ranks, fn, timeout_seconds=timeout_seconds)

    def why_unavailable(self) -> str | None:
        """Loopback runs everywhere."""
        return None
