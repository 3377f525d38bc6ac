"""Symmetric memory of ranks in one process, with a scheduler that looks for protocol bugs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fm3_comm import loopback
from fm3_comm.backend import ExchangeBackend
from fm3_comm.rank_threads import describe, run_rank_threads
from fm3_comm.symmetric.memory import (
    SignalOp,
    SymmetricBuffer,
    SymmetricMemory,
    check_bytes,
    check_pe,
    check_span,
    check_word,
)
from fm3_comm.symmetric.schedule import Action, AdversarialSchedule
from fm3_core import ExchangeError
from fm3_core.check import require_int

R = TypeVar("R")

_MASK = (1 << 64) - 1
_MOST_PIECES = 3
_POLL_SECONDS = 0.005


class InProcessBuffer:
    """One rank's view of an allocation.

    Args:
        parts: every rank's bytes.
        rank: the rank that looks.
    """

    def __init__(self, parts: list[Tensor], rank: int) -> None:
        """View the parts as bytes and words."""
        self.parts = parts
        self.local = parts[rank]
        self.num_bytes = len(parts[rank])
        self.words: list[NDArray[np.uint64]] = [
            part[: self.num_bytes // 8 * 8].numpy().view(np.uint64) for part in parts
        ]


class InProcessWorld:
    """What the ranks share.

    Args:
        num_ranks: ranks in all.
        seed: of the scheduler.
    """

    def __init__(self, num_ranks: int, seed: int = 0) -> None:
        """Start with no buffers."""
        self.num_ranks = require_int("num_ranks", num_ranks, minimum=1, error=ExchangeError)
        self.schedule = AdversarialSchedule(seed)
        self.changed = threading.Condition()
        self.allocations: list[list[Tensor]] = []
        self.barriers: dict[tuple[int, int], int] = {}
        self.stopped: str | None = None

    def memories(self) -> list[InProcessMemory]:
        """Return one view a rank."""
        return [InProcessMemory(self, rank) for rank in range(self.num_ranks)]


class InProcessMemory:
    """One rank's view; the scheduler works whenever some rank calls a method."""

    def __init__(self, world: InProcessWorld, rank: int) -> None:
        """Join."""
        self.world = world
        self.rank = rank
        self.num_ranks = world.num_ranks
        self._num_allocations = 0

    def alloc(self, num_bytes: int) -> InProcessBuffer:
        """Return a zeroed buffer; the first rank that comes makes it for all."""
        num_bytes = require_int("num_bytes", num_bytes, minimum=0, error=ExchangeError)
        with self.world.changed:
            if self._num_allocations == len(self.world.allocations):
                parts = [torch.zeros(num_bytes, dtype=torch.uint8) for _ in range(self.num_ranks)]
                self.world.allocations.append(parts)
            parts = self.world.allocations[self._num_allocations]
            self._num_allocations += 1
        if len(parts[0]) != num_bytes:
            raise ExchangeError(
                f"rank {self.rank}: alloc of {num_bytes} bytes, another rank asked for {len(parts[0])}"
            )
        return InProcessBuffer(parts, self.rank)

    def free(self, buffer: SymmetricBuffer) -> None:
        """Poison this rank's bytes: whoever still uses the buffer finds no data there."""
        buffer.local.fill_(0xFF)

    def peer_ptr(self, buffer: SymmetricBuffer, pe: int) -> int | None:
        """Return the address of rank `pe`'s bytes."""
        check_pe(self, pe)
        return int(_mine(buffer).parts[pe].data_ptr())

    def get(self, into: Tensor, buffer: SymmetricBuffer, start: int, pe: int) -> None:
        """Start a copy that reads the peer at some later time."""
        check_bytes("into", into)
        check_pe(self, pe)
        check_span(buffer, start, len(into))
        source = _mine(buffer).parts[pe][start : start + len(into)]
        self._add(source, into, None)

    def put_signal(
        self,
        data: Tensor | None,
        buffer: SymmetricBuffer,
        start: int,
        *,
        word: int,
        value: int,
        op: SignalOp,
        pe: int,
    ) -> None:
        """Start a copy that reads `data` at some later time, and a signal that comes after it."""
        check_pe(self, pe)
        check_word(buffer, word)
        words = _mine(buffer).words[pe]

        def signal() -> None:
            before = int(words[word]) if op is SignalOp.ADD else 0
            words[word] = (before + value) & _MASK

        if data is None:
            self._add(None, None, signal)
            return
        check_bytes("data", data)
        check_span(buffer, start, len(data))
        self._add(data, _mine(buffer).parts[pe][start : start + len(data)], signal)

    def read(self, buffer: SymmetricBuffer, word: int) -> int:
        """Return a word of this rank."""
        check_word(buffer, word)
        with self.world.changed:
            return int(_mine(buffer).words[self.rank][word])

    def wait_ge(self, buffer: SymmetricBuffer, word: int, value: int, timeout_seconds: float) -> bool:
        """Let the scheduler work until the word is there."""
        check_word(buffer, word)
        words = _mine(buffer).words[self.rank]
        return self._until(lambda: int(words[word]) >= value, timeout_seconds)

    def fetch_or(self, buffer: SymmetricBuffer, word: int, value: int, pe: int) -> int:
        """Set bits at once, before what is under way."""
        return self._fetch(buffer, word, pe, lambda before: before | value)

    def fetch_add(self, buffer: SymmetricBuffer, word: int, value: int, pe: int) -> int:
        """Add at once, before what is under way."""
        return self._fetch(buffer, word, pe, lambda before: before + value)

    def quiet(self) -> None:
        """Carry out what this thread has started."""
        with self.world.changed:
            self.world.schedule.finish(self._owner)
            self.world.changed.notify_all()

    def is_quiet(self) -> bool:
        """Say whether everything that this thread has started is done."""
        with self.world.changed:
            return not self.world.schedule.holds(self._owner)

    def barrier(self, team: Sequence[int], timeout_seconds: float) -> None:
        """Count who came for each pair of ranks, so that teams may overlap."""
        self.quiet()
        barriers = self.world.barriers
        with self.world.changed:
            for peer in team:
                barriers[self.rank, peer] = barriers.get((self.rank, peer), 0) + 1
            self.world.changed.notify_all()
        deadline = time.monotonic() + timeout_seconds
        for peer in team:
            came = barriers[self.rank, peer]
            if not self._until(
                lambda peer=peer, came=came: barriers.get((peer, self.rank), 0) >= came,  # type: ignore[misc]
                deadline - time.monotonic(),
            ):
                raise ExchangeError(
                    f"rank {self.rank}: barrier of ranks {list(team)}: rank {peer} did not come for "
                    f"{timeout_seconds:g} s"
                )

    def lost_peers(self) -> dict[int, str]:
        """Return none: the ranks are threads of one process."""
        return {}

    def close(self) -> None:
        """Carry out what is under way."""
        self.quiet()

    @property
    def _owner(self) -> tuple[int, int]:
        return self.rank, threading.get_ident()

    def _add(self, source: Tensor | None, target: Tensor | None, signal: Action | None) -> None:
        with self.world.changed:
            schedule = self.world.schedule
            pieces: list[Action] = []
            if source is not None and target is not None and len(source):
                cuts = sorted(
                    schedule.random.randrange(len(source) + 1)
                    for _ in range(schedule.random.randrange(_MOST_PIECES))
                )
                for first, last in zip([0, *cuts], [*cuts, len(source)], strict=True):
                    pieces.append(_Copy(source[first:last], target[first:last]))
            schedule.add(self._owner, pieces, signal)
            if schedule.random.random() < 0.5:
                schedule.tick()
                self.world.changed.notify_all()

    def _fetch(self, buffer: SymmetricBuffer, word: int, pe: int, change: Callable[[int], int]) -> int:
        check_pe(self, pe)
        check_word(buffer, word)
        words = _mine(buffer).words[pe]
        with self.world.changed:
            before = int(words[word])
            words[word] = change(before) & _MASK
            self.world.changed.notify_all()
            return before

    def _until(self, reached: Callable[[], bool], timeout_seconds: float) -> bool:
        deadline = time.monotonic() + timeout_seconds
        while True:
            with self.world.changed:
                if reached():
                    return True
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                if len(self.world.schedule):
                    self.world.schedule.tick()
                    self.world.changed.notify_all()
                else:
                    self.world.changed.wait(min(left, _POLL_SECONDS))


class _Copy:
    def __init__(self, source: Tensor, target: Tensor) -> None:
        self._source, self._target = source, target

    def __call__(self) -> None:
        self._target.copy_(self._source)


class InProcessKind:
    """Ranks of one process as the registry holds them."""

    def connect(self, bootstrap: ExchangeBackend, *, timeout_seconds: float) -> SymmetricMemory:
        """Return a view of the world that rank 0 makes; the ranks must be threads of this process."""
        world = InProcessWorld(bootstrap.num_ranks)
        with _MEETING_LOCK:
            _MEETING[id(world)] = world
        try:
            there = bootstrap.share(f"{id(world)}")[0]
            with _MEETING_LOCK:
                joined = _MEETING.get(int(there))
            bootstrap.barrier()
        finally:
            with _MEETING_LOCK:
                del _MEETING[id(world)]
        if joined is None:
            raise ExchangeError("backend 'in_process' needs all ranks to be threads of one process")
        return InProcessMemory(joined, bootstrap.rank)

    def run(self, num_ranks: int, fn: Callable[[SymmetricMemory], R], *, timeout_seconds: float) -> list[R]:
        """Run P ranks as threads."""
        memories = InProcessWorld(num_ranks).memories()
        return run_rank_threads(num_ranks, lambda rank: fn(memories[rank]), _note)

    def run_ranks(
        self, num_ranks: int, body: Callable[[ExchangeBackend], R], *, timeout_seconds: float
    ) -> list[R]:
        """Run P ranks as threads."""
        return loopback.run(num_ranks, body, timeout_seconds=timeout_seconds)

    def why_unavailable(self) -> str | None:
        """It runs everywhere."""
        return None


_MEETING: dict[int, InProcessWorld] = {}
_MEETING_LOCK = threading.Lock()


def _note(rank: int, error: BaseException) -> None:
    error.add_note(f"rank {rank}: {describe(error)}")


def _mine(buffer: Any) -> InProcessBuffer:
    if not isinstance(buffer, InProcessBuffer):
        raise ExchangeError(f"a buffer of this memory is needed, got {type(buffer).__name__}")
    return buffer
