"""Symmetric memory of processes on one host: POSIX shared memory and atomic words.

Each allocation is one segment a rank. Its name is removed as soon as every rank has mapped it, so that
nothing is left behind, however the processes end. Operations take effect at once; `quiet` has nothing to wait
for.
"""

from __future__ import annotations

import importlib
import json
import mmap
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor

from fm3_comm import loopback
from fm3_comm.backend import ExchangeBackend
from fm3_comm.symmetric.deaths import Deaths
from fm3_comm.symmetric.memory import (
    WORD_BYTES,
    SignalOp,
    SymmetricBuffer,
    SymmetricMemory,
    check_bytes,
    check_pe,
    check_span,
    check_word,
)
from fm3_core import ExchangeError, UnsupportedError
from fm3_core.check import require_int

R = TypeVar("R")

FOLDER = Path("/dev/shm")
"""Where Linux shows POSIX shared memory."""


class ShmBuffer:
    """One rank's view of an allocation.

    Args:
        parts: every rank's bytes, as this process has mapped them.
        rank: the rank that looks.
        num_bytes: bytes asked for.
    """

    def __init__(self, parts: list[Tensor], rank: int, num_bytes: int) -> None:
        """Keep the mappings and their addresses."""
        self.num_bytes = num_bytes
        self.local = parts[rank][:num_bytes]
        self.parts = parts
        self.addresses = [part.data_ptr() for part in parts]


class ShmMemory:
    """One rank's view; made by `connect` of the kind "shm".

    Args:
        words: the extension.
        meeting: where the ranks meet, for the time of this call.
        timeout_seconds: longest wait for a rank in `alloc`.
    """

    def __init__(self, words: ModuleType, meeting: ExchangeBackend, timeout_seconds: float) -> None:
        """Meet, and map the words of barriers."""
        self.rank = meeting.rank
        self.num_ranks = meeting.num_ranks
        self._words = words
        self._timeout = timeout_seconds
        self._num_allocations = 0
        self._barriers = [0] * self.num_ranks
        self._lock = threading.Lock()
        mine = {"host": _host(), "pid": os.getpid(), "job": secrets.token_hex(8)}
        ranks = [json.loads(text) for text in meeting.share(json.dumps(mine))]
        hosts = sorted({str(rank["host"]) for rank in ranks})
        if len(hosts) > 1:
            raise UnsupportedError("backend 'shm'", [f"the ranks are on several hosts: {', '.join(hosts)}"])
        self._job = ranks[0]["job"]
        self._deaths = Deaths({rank: int(found["pid"]) for rank, found in enumerate(ranks)})
        self._sync: ShmBuffer | None = None
        self._sync = self._alloc(self.num_ranks * WORD_BYTES, meeting.barrier)

    def alloc(self, num_bytes: int) -> ShmBuffer:
        """Return a zeroed buffer; all ranks must call it, in the same order, with the same size."""
        num_bytes = require_int("num_bytes", num_bytes, minimum=0, error=ExchangeError)
        everybody = range(self.num_ranks)
        return self._alloc(num_bytes, lambda: self.barrier(everybody, self._timeout))

    def free(self, buffer: SymmetricBuffer) -> None:
        """Forget the mappings: memory goes back when no rank holds it any more."""
        mine = _mine(buffer)
        mine.parts, mine.addresses = [], []
        mine.local = torch.empty(0, dtype=torch.uint8)
        mine.num_bytes = 0

    def peer_ptr(self, buffer: SymmetricBuffer, pe: int) -> int | None:
        """Return the address at which this process has mapped rank `pe`'s bytes."""
        check_pe(self, pe)
        return _mine(buffer).addresses[pe]

    def get(self, into: Tensor, buffer: SymmetricBuffer, start: int, pe: int) -> None:
        """Copy at once."""
        check_bytes("into", into)
        check_pe(self, pe)
        check_span(buffer, start, len(into))
        self._words.copy(into.data_ptr(), _mine(buffer).addresses[pe] + start, len(into))

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
        """Copy, then signal, at once."""
        check_pe(self, pe)
        check_word(buffer, word)
        base = _mine(buffer).addresses[pe]
        if data is not None:
            check_bytes("data", data)
            check_span(buffer, start, len(data))
            self._words.copy(base + start, data.data_ptr(), len(data))
        change = self._words.store if op is SignalOp.SET else self._words.fetch_add
        change(base + WORD_BYTES * word, value)

    def read(self, buffer: SymmetricBuffer, word: int) -> int:
        """Return a word of this rank."""
        check_word(buffer, word)
        return int(self._words.load(self._address(buffer, word, self.rank)))

    def wait_ge(self, buffer: SymmetricBuffer, word: int, value: int, timeout_seconds: float) -> bool:
        """Wait until a word of this rank is at least `value`; False on a timeout."""
        check_word(buffer, word)
        return bool(self._words.wait_ge(self._address(buffer, word, self.rank), value, timeout_seconds))

    def fetch_or(self, buffer: SymmetricBuffer, word: int, value: int, pe: int) -> int:
        """Set bits of a word of rank `pe`; return what it was."""
        check_pe(self, pe)
        check_word(buffer, word)
        return int(self._words.fetch_or(self._address(buffer, word, pe), value))

    def fetch_add(self, buffer: SymmetricBuffer, word: int, value: int, pe: int) -> int:
        """Add to a word of rank `pe`, modulo 2^64; return what it was."""
        check_pe(self, pe)
        check_word(buffer, word)
        return int(self._words.fetch_add(self._address(buffer, word, pe), value))

    def quiet(self) -> None:
        """Return: everything has taken effect."""

    def barrier(self, team: Sequence[int], timeout_seconds: float) -> None:
        """Return when all of `team` have come; pairs of ranks are counted, so that teams may overlap."""
        assert self._sync is not None
        with self._lock:
            for peer in team:
                self._barriers[peer] += 1
                self.fetch_add(self._sync, self.rank, 1, peer)
            expected = {peer: self._barriers[peer] for peer in team}
        for peer, count in expected.items():
            if not self._wait_for(peer, count, timeout_seconds):
                raise ExchangeError(
                    f"rank {self.rank}: barrier of ranks {list(team)}: rank {peer} did not come for "
                    f"{timeout_seconds:g} s"
                )

    def lost_peers(self) -> dict[int, str]:
        """Return the ranks whose processes have ended."""
        return self._deaths.found()

    def close(self) -> None:
        """Forget what watches the peers; mappings go with their buffers."""
        self._deaths.close()

    def _wait_for(self, peer: int, count: int, timeout_seconds: float) -> bool:
        assert self._sync is not None
        waited = 0.0
        while waited < timeout_seconds:
            step = min(0.1, timeout_seconds - waited)
            if self.wait_ge(self._sync, peer, count, step):
                return True
            waited += step
            how = self.lost_peers().get(peer)
            if how is not None and self.read(self._sync, peer) < count:
                raise ExchangeError(f"rank {self.rank}: barrier: rank {peer} stopped without a word: {how}")
        return False

    def _alloc(self, num_bytes: int, meet: Callable[[], None]) -> ShmBuffer:
        with self._lock:
            number = self._num_allocations
            self._num_allocations += 1
        names = [FOLDER / f"fm3-{self._job}-{number}-{rank}" for rank in range(self.num_ranks)]
        size = max(num_bytes, WORD_BYTES)
        try:
            mine = _map(names[self.rank], size, create=True)
            meet()
            parts = [
                mine if rank == self.rank else _map(name, size, create=False)
                for rank, name in enumerate(names)
            ]
            meet()
        except BaseException:
            _unlink(names)
            raise
        _unlink(names[self.rank : self.rank + 1])
        return ShmBuffer(parts, self.rank, num_bytes)

    def _address(self, buffer: SymmetricBuffer, word: int, pe: int) -> int:
        return _mine(buffer).addresses[pe] + WORD_BYTES * word


class ShmKind:
    """Processes of one host, or threads of one process, as the registry holds them."""

    def connect(self, bootstrap: ExchangeBackend, *, timeout_seconds: float) -> SymmetricMemory:
        """Return this rank's memory; all ranks of `bootstrap` must be on one host."""
        return ShmMemory(_extension(), bootstrap, timeout_seconds)

    def run(self, num_ranks: int, fn: Callable[[SymmetricMemory], R], *, timeout_seconds: float) -> list[R]:
        """Run P ranks as threads, each with mappings of its own."""
        return loopback.run(
            num_ranks,
            lambda meeting: fn(self.connect(meeting, timeout_seconds=timeout_seconds)),
            timeout_seconds=timeout_seconds,
        )

    def run_ranks(
        self, num_ranks: int, body: Callable[[ExchangeBackend], R], *, timeout_seconds: float
    ) -> list[R]:
        """Run P ranks as threads."""
        return loopback.run(num_ranks, body, timeout_seconds=timeout_seconds)

    def why_unavailable(self) -> str | None:
        """Say what this machine or install lacks."""
        if not FOLDER.is_dir() or not os.access(FOLDER, os.W_OK):
            return f"there is no {FOLDER} to write to: POSIX shared memory of Linux is needed"
        try:
            _extension()
        except ImportError as error:
            return (
                f"fm3_comm._shm was not built ({error}); install fm3 from source with a C++17 compiler and "
                "Python's headers"
            )
        return None


def _extension() -> ModuleType:
    return importlib.import_module("fm3_comm._shm")


def _host() -> str:
    """Name this host and its boot, and the place where shared memory is: containers have their own."""
    return f"{socket.gethostname()} {FOLDER.stat().st_dev}"


def _map(name: Path, num_bytes: int, *, create: bool) -> Tensor:
    flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0)
    descriptor = os.open(name, flags, 0o600)
    try:
        if create:
            # Not ftruncate: a full /dev/shm then fails here and not with SIGBUS at the first write.
            os.posix_fallocate(descriptor, 0, num_bytes)
        return torch.frombuffer(mmap.mmap(descriptor, num_bytes), dtype=torch.uint8)
    finally:
        os.close(descriptor)


def _unlink(names: Iterable[Path]) -> None:
    for name in names:
        with suppress(FileNotFoundError):
            name.unlink()


def _mine(buffer: Any) -> ShmBuffer:
    if not isinstance(buffer, ShmBuffer):
        raise ExchangeError(f"a buffer of this memory is needed, got {type(buffer).__name__}")
    return buffer
