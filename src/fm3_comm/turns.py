"""Work that every rank must do in the same order, however late some of it is handed in."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

R = TypeVar("R")


class Turns:
    """Runs jobs by number from 0 on, one at a time; a number that is missing holds up the later ones.

    Each number is either run or skipped, once. When a job raises, or after `stop`, the order is given up:
    what is here and what comes later runs at once, to find out by itself that it cannot go on.
    """

    def __init__(self) -> None:
        """Begin with number 0."""
        self._jobs: dict[int, tuple[Future[Any], Callable[[], Any]] | None] = {}
        self._next = 0
        self._is_running = False
        self._stopped = False
        self._lock = threading.Lock()

    def run(self, number: int, job: Callable[[], R], executor: Executor) -> Future[R]:
        """Run `job` in its turn, in a thread of `executor` or of whoever fills a gap before it."""
        future: Future[R] = Future()
        with self._lock:
            self._jobs[number] = future, job
        executor.submit(self._advance)
        return future

    def skip(self, number: int, executor: Executor) -> None:
        """Do nothing in a turn."""
        with self._lock:
            self._jobs[number] = None
            self._pass_skipped()
            can_go_on = self._next in self._jobs
        if can_go_on:
            executor.submit(self._advance)

    def stop(self) -> None:
        """Give up the order."""
        with self._lock:
            self._stopped = True
        self._advance()

    def _advance(self) -> None:
        """Run what can run, unless another thread is at it: that one finds what has come."""
        with self._lock:
            if self._is_running:
                return
            self._is_running = True
        while (entry := self._take()) is not None:
            future, job = entry
            try:
                future.set_result(job())
            except BaseException as error:
                with self._lock:
                    self._stopped = True
                future.set_exception(error)

    def _take(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        """Take out the next job; where it is not here yet, say that nobody runs jobs and return None."""
        with self._lock:
            self._pass_skipped()
            if self._stopped:
                self._next = min(self._jobs, default=self._next)
            entry = self._jobs.pop(self._next, None)
            if entry is None:
                self._is_running = False
            else:
                self._next += 1
            return entry

    def _pass_skipped(self) -> None:
        numbers = sorted(self._jobs) if self._stopped else [self._next]
        for number in numbers:
            while number in self._jobs and self._jobs[number] is None:
                del self._jobs[number]
                number += 1
                self._next = max(self._next, number)
