"""What runs one rank's programs: a thread, one after the other, as a stream of communication would."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

from fm3_comm.symmetric.board import LEFT, STOPPED
from fm3_comm.symmetric.program import AnyOf, Program, Quiet
from fm3_comm.symmetric.site import Site
from fm3_core import ExchangeError

R = TypeVar("R")

_LOOK_SECONDS = 0.02
_ONE_OF_MANY_SECONDS = 0.0005


class Runner(Protocol):
    """Runs one rank's programs in the order in which they are started."""

    @property
    def stopped(self) -> str | None:
        """Why this rank has stopped, None while it works."""

    def start(self, what: str, program: Callable[[], Program[R]]) -> Future[R]:
        """Run a program after those that were started before; its errors name `what` and its number."""

    def stop(self, reason: str) -> None:
        """Stop this rank and tell the others; once."""

    def close(self) -> None:
        """Let what was started finish; tell the others that this rank has left."""


class Engine:
    """Runs programs in the order in which they are started.

    Args:
        site: where they work.
        timeout_seconds: longest wait for a peer.
    """

    def __init__(self, site: Site, timeout_seconds: float) -> None:
        """Start with nothing to do."""
        self._site = site
        self._timeout = timeout_seconds
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"fm3-symmetric-{site.rank}")
        self._stopped: str | None = None
        self._started = 0
        self._lock = threading.Lock()

    @property
    def stopped(self) -> str | None:
        """Why this rank has stopped, None while it works."""
        return self._stopped

    def start(self, what: str, program: Callable[[], Program[R]]) -> Future[R]:
        """Run a program after those that were started before; its errors name `what` and its number."""
        with self._lock:
            self._started += 1
            return self._thread.submit(self._run, f"{what} (operation {self._started - 1})", program)

    def stop(self, reason: str) -> None:
        """Stop this rank and tell the others; once."""
        if self._stopped is None:
            self._stopped = reason
            self._site.board.say(STOPPED, reason)

    def close(self) -> None:
        """Let what was started finish; tell the others that this rank has left."""
        # Its last signals are still on their way; the news that it has left must not overtake them.
        last = self._thread.submit(self._site.memory.quiet)
        self._thread.shutdown(wait=True)
        if self._stopped is None:
            last.result()
            self._site.board.say(LEFT, "")

    def _run(self, what: str, program: Callable[[], Program[R]]) -> R:
        who = f"rank {self._site.rank} of {self._site.memory.num_ranks}"
        try:
            if self._stopped is not None:
                raise ExchangeError(self._stopped)
            return self._drive(program())
        except ExchangeError as error:
            text = f"{who}: {what}, {error}"
            self.stop(self._stopped or f"rank {self._site.rank} stopped: {text}")
            raise ExchangeError(text) from error
        except BaseException as error:
            self.stop(f"rank {self._site.rank} stopped: {what}: {type(error).__name__}: {error}")
            raise

    def _drive(self, program: Program[R]) -> R:
        while True:
            try:
                event = next(program)
            except StopIteration as end:
                result: R = end.value
                return result
            if isinstance(event, Quiet):
                self._site.memory.quiet()
            else:
                self._wait(event)

    def _wait(self, event: AnyOf) -> None:
        first, memory = event.untils[0], self._site.memory
        slice_seconds = _LOOK_SECONDS if len(event.untils) == 1 else _ONE_OF_MANY_SECONDS
        deadline = time.monotonic() + self._timeout
        looked = time.monotonic()
        while not event.reached(memory):
            now = time.monotonic()
            if now - looked >= _LOOK_SECONDS:
                looked = now
                self._look(event)
            if now > deadline:
                raise ExchangeError(
                    f"rank {first.peer}: rank {first.peer} sent nothing for {self._timeout:g} s "
                    f"(this rank waits for {first.what})"
                )
            memory.wait_ge(first.buffer, first.word, first.value, slice_seconds)

    def _look(self, event: AnyOf) -> None:
        """Raise if a rank has stopped, died, or left without what is waited for."""
        board, memory = self._site.board, self._site.memory
        where = f"rank {event.untils[0].peer}"
        if self._stopped is not None:
            raise ExchangeError(f"{where}: {self._stopped}")
        reason = board.stopped()
        if reason is not None:
            raise ExchangeError(f"{where}: {reason}")
        left = [until for until in event.untils if board.state_of(until.peer) == LEFT]
        if left and not event.reached(memory):
            raise ExchangeError(
                f"rank {left[0].peer}: rank {left[0].peer} has finished without starting this operation"
            )
        lost = [(peer, how) for peer, how in memory.lost_peers().items() if board.state_of(peer) != LEFT]
        if lost and not event.reached(memory):
            raise ExchangeError(f"{where}: rank {lost[0][0]} stopped without a word: {lost[0][1]}")
