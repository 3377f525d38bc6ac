"""Symmetric memory of GPUs by NVSHMEM: one rank a process, operations on a stream, driven by the host."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor

from fm3_comm.backend import ExchangeBackend
from fm3_comm.rank_forks import run_rank_forks
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
from fm3_comm.symmetric.nvshmem_library import load
from fm3_core import ExchangeError, UnsupportedError
from fm3_core.check import require_int

R = TypeVar("R")

_WORD_MASK = (1 << 64) - 1
_STAGING_BYTES = 4 << 20
_CLOSE_SECONDS = 5.0
_FIRST_NAP_SECONDS = 2e-6
_LONGEST_NAP_SECONDS = 1e-3


class _Span:
    """Bytes of a device, for torch to view."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


class NvshmemBuffer:
    """One rank's view of an allocation.

    Args:
        address: of this rank's bytes.
        num_bytes: bytes asked for.
        device: this rank's GPU.
    """

    def __init__(self, address: int, num_bytes: int, device: torch.device) -> None:
        """View the bytes as a tensor and as words."""
        self.address = address
        self.num_bytes = num_bytes
        whole = torch.as_tensor(_Span(address, max(num_bytes, WORD_BYTES)), device=device)
        self.local = whole[:num_bytes]
        self.words = whole[: len(whole) // WORD_BYTES * WORD_BYTES].view(torch.int64)


class NvshmemMemory:
    """One rank's view; made by `connect` of the kind "nvshmem", on the current device.

    Tensors of the host travel through a symmetric staging buffer of 4 MiB; larger ones are refused.

    Args:
        extension: `fm3_comm._C`.
        meeting: where the ranks meet, for the time of this call.
        timeout_seconds: longest wait for a rank in `alloc`.
    """

    def __init__(self, extension: ModuleType, meeting: ExchangeBackend, timeout_seconds: float) -> None:
        """Join the job and make the words of barriers."""
        self.rank = meeting.rank
        self.num_ranks = meeting.num_ranks
        self.extension = extension
        self.device = torch.device("cuda", torch.cuda.current_device())
        self._timeout = timeout_seconds
        self._lock = threading.RLock()
        _join(extension, meeting)
        mine = {"host": os.uname().nodename, "pid": os.getpid()}
        ranks = [json.loads(text) for text in meeting.share(json.dumps(mine))]
        here = {rank: int(r["pid"]) for rank, r in enumerate(ranks) if r["host"] == mine["host"]}
        self._deaths = Deaths(here)
        self._stream = torch.cuda.Stream(self.device)
        self._fetches = torch.cuda.Stream(self.device)
        self._looks = torch.cuda.Stream(self.device)
        self._fetched = torch.zeros(1, dtype=torch.int64, pin_memory=True)
        self._barriers = [0] * self.num_ranks
        self._buffers: list[NvshmemBuffer] = []
        self._staged = 0
        self._arriving: list[tuple[Tensor, Tensor]] = []
        self._sync = self._alloc(self.num_ranks * WORD_BYTES, meeting.barrier)
        self._staging = self._alloc(_STAGING_BYTES, meeting.barrier)

    def alloc(self, num_bytes: int) -> NvshmemBuffer:
        """Return a zeroed buffer of the GPU; all ranks must call it, in the same order and with one size."""
        num_bytes = require_int("num_bytes", num_bytes, minimum=0, error=ExchangeError)
        # NVSHMEM's own call waits for a rank that has died for ever: meet first.
        return self._alloc(num_bytes, lambda: self.barrier(range(self.num_ranks), self._timeout))

    def free(self, buffer: SymmetricBuffer) -> None:
        """Give the buffer back; all ranks must call it."""
        mine = _mine(buffer)
        self.barrier(range(self.num_ranks), self._timeout)
        with self._lock, torch.cuda.device(self.device):
            self._buffers.remove(mine)
            self.extension.release(mine.address)
        mine.local = mine.words = torch.empty(0, dtype=torch.uint8, device=self.device)
        mine.num_bytes = 0

    def peer_ptr(self, buffer: SymmetricBuffer, pe: int) -> int | None:
        """Return the address at which this rank's GPU sees rank `pe`'s bytes, None across nodes."""
        check_pe(self, pe)
        address: int = self.extension.mapped_at(_mine(buffer).address, pe)
        return address or None

    def get(self, into: Tensor, buffer: SymmetricBuffer, start: int, pe: int) -> None:
        """Start a copy on this memory's stream, after what the caller's stream holds."""
        check_bytes("into", into)
        check_pe(self, pe)
        check_span(buffer, start, len(into))
        with self._lock, torch.cuda.device(self.device):
            target = into if into.is_cuda else self._stage(len(into))
            if not into.is_cuda:
                self._arriving.append((into, target))
            self._follow_caller()
            if len(into):
                self.extension.get(
                    target=target.data_ptr(),
                    source=_mine(buffer).address + start,
                    num_bytes=len(into),
                    rank=pe,
                    stream=self._stream.cuda_stream,
                )

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
        """Start a copy and its signal on this memory's stream, after what the caller's stream holds."""
        check_pe(self, pe)
        check_word(buffer, word)
        base = _mine(buffer).address
        how = {
            "word": base + WORD_BYTES * word,
            "value": value & _WORD_MASK,
            "adds": op is SignalOp.ADD,
            "rank": pe,
            "stream": self._stream.cuda_stream,
        }
        with self._lock, torch.cuda.device(self.device):
            if data is None or not len(data):
                self._follow_caller()
                self.extension.signal_word(**how)
                return
            check_bytes("data", data)
            check_span(buffer, start, len(data))
            source = data if data.is_cuda else self._stage(len(data)).copy_(data)
            self._follow_caller()
            self.extension.put_signal(
                target=base + start, source=source.data_ptr(), num_bytes=len(data), **how
            )

    def read(self, buffer: SymmetricBuffer, word: int) -> int:
        """Return a word of this rank."""
        check_word(buffer, word)
        words = _mine(buffer).words
        with torch.cuda.stream(self._looks):
            return int(words[word].item()) & _WORD_MASK

    def wait_ge(self, buffer: SymmetricBuffer, word: int, value: int, timeout_seconds: float) -> bool:
        """Look at a word of this rank until it is at least `value`; False on a timeout."""
        deadline = time.monotonic() + timeout_seconds
        nap = _FIRST_NAP_SECONDS
        while self.read(buffer, word) < value:
            if time.monotonic() >= deadline:
                return False
            time.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP_SECONDS)
        return True

    def fetch_or(self, buffer: SymmetricBuffer, word: int, value: int, pe: int) -> int:
        """Set bits of a word of rank `pe`; return what it was."""
        return self._fetch(self.extension.Fetch.OR, buffer, word, value, pe)

    def fetch_add(self, buffer: SymmetricBuffer, word: int, value: int, pe: int) -> int:
        """Add to a word of rank `pe`, modulo 2^64; return what it was."""
        return self._fetch(self.extension.Fetch.ADD, buffer, word, value, pe)

    def quiet(self) -> None:
        """Wait until everything on this memory's stream is done."""
        with self._lock, torch.cuda.device(self.device):
            self.extension.quiet(stream=self._stream.cuda_stream)
            self._stream.synchronize()
            for into, staged in self._arriving:
                into.copy_(staged)
            self._arriving.clear()
            self._staged = 0

    def barrier(self, team: Sequence[int], timeout_seconds: float) -> None:
        """Return when all of `team` have come; pairs of ranks are counted, so that teams may overlap."""
        self.quiet()
        with self._lock:
            for peer in team:
                self._barriers[peer] += 1
                self.fetch_add(self._sync, self.rank, 1, peer)
            expected = {peer: self._barriers[peer] for peer in team}
        deadline = time.monotonic() + timeout_seconds
        for peer, count in expected.items():
            while not self.wait_ge(self._sync, peer, count, min(0.1, max(0.0, deadline - time.monotonic()))):
                how = self.lost_peers().get(peer)
                if how is not None and self.read(self._sync, peer) < count:
                    raise ExchangeError(
                        f"rank {self.rank}: barrier: rank {peer} stopped without a word: {how}"
                    )
                if time.monotonic() >= deadline:
                    raise ExchangeError(
                        f"rank {self.rank}: barrier of ranks {list(team)}: rank {peer} did not come for "
                        f"{timeout_seconds:g} s"
                    )

    def lost_peers(self) -> dict[int, str]:
        """Return the ranks of this host whose processes have ended."""
        return self._deaths.found()

    def close(self) -> None:
        """Free all buffers, if every rank comes within 5 s; else they stay until this process ends."""
        with self._lock:
            if not self._buffers:
                return
            buffers, self._buffers = self._buffers, []
        try:
            self.barrier(range(self.num_ranks), _CLOSE_SECONDS)
            for buffer in buffers:
                self.extension.release(buffer.address)
        except ExchangeError:
            pass
        self._deaths.close()

    def _alloc(self, num_bytes: int, meet: Callable[[], None]) -> NvshmemBuffer:
        meet()
        with self._lock, torch.cuda.device(self.device):
            address = self.extension.allocate(max(num_bytes, WORD_BYTES))
            buffer = NvshmemBuffer(address, num_bytes, self.device)
            self._buffers.append(buffer)
        with torch.cuda.stream(self._looks):
            buffer.words.zero_()
            buffer.local.zero_()
        self._looks.synchronize()
        meet()
        return buffer

    def _follow_caller(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self.device))

    def _stage(self, num_bytes: int) -> Tensor:
        """Return room in the staging buffer, valid until `quiet`."""
        if num_bytes > _STAGING_BYTES:
            raise ExchangeError(
                f"tensors of the host may have {_STAGING_BYTES} bytes, got {num_bytes}; those of the GPU any"
            )
        if self._staged + num_bytes > _STAGING_BYTES:
            self.quiet()
        room = self._staging.local[self._staged : self._staged + num_bytes]
        self._staged += -(-num_bytes // WORD_BYTES) * WORD_BYTES
        return room

    def _fetch(self, operation: Any, buffer: SymmetricBuffer, word: int, value: int, pe: int) -> int:
        check_pe(self, pe)
        check_word(buffer, word)
        with self._lock, torch.cuda.device(self.device):
            self.extension.fetch(
                operation=operation,
                word=_mine(buffer).address + WORD_BYTES * word,
                value=value & _WORD_MASK,
                rank=pe,
                result=self._fetched.data_ptr(),
                stream=self._fetches.cuda_stream,
            )
            self._fetches.synchronize()
            return int(self._fetched.item()) & _WORD_MASK


class NvshmemKind:
    """GPUs that NVSHMEM reaches, as the registry holds them."""

    def connect(self, bootstrap: ExchangeBackend, *, timeout_seconds: float) -> SymmetricMemory:
        """Return this rank's memory on the current device; NVSHMEM takes one rank a process."""
        return NvshmemMemory(load(), bootstrap, timeout_seconds)

    def run(self, num_ranks: int, fn: Callable[[SymmetricMemory], R], *, timeout_seconds: float) -> list[R]:
        """Run P ranks as processes."""

        def body(meeting: ExchangeBackend) -> R:
            memory = self.connect(meeting, timeout_seconds=timeout_seconds)
            result = fn(memory)
            memory.close()
            return result

        return self.run_ranks(num_ranks, body, timeout_seconds=timeout_seconds)

    def run_ranks(
        self, num_ranks: int, body: Callable[[ExchangeBackend], R], *, timeout_seconds: float
    ) -> list[R]:
        """Run P ranks as processes, several on one GPU where there are fewer.

        Then MPS must run, with CUDA_MPS_ACTIVE_THREAD_PERCENTAGE at most the share of each rank: kernels that
        wait for a peer which finds no multiprocessor free wait for ever.
        """

        def prepared(meeting: ExchangeBackend) -> R:
            torch.cuda.set_device(meeting.rank % torch.cuda.device_count())
            return body(meeting)

        return run_rank_forks(num_ranks, prepared, timeout_seconds=timeout_seconds)

    def why_unavailable(self) -> str | None:
        """Say what this machine or install lacks."""
        try:
            load()
        except (ImportError, OSError) as error:
            return str(error)
        if torch.cuda.device_count() == 0:
            return "there is no CUDA device"
        return None


_JOINED: list[tuple[int, int]] = []
"""(rank, ranks) of the job that this process is in; a process has one, for its whole life."""


def _join(extension: ModuleType, meeting: ExchangeBackend) -> None:
    """Join the job with all ranks, or stay in it where all are in it already."""
    me = (meeting.rank, meeting.num_ranks)
    states = meeting.share("in none" if not _JOINED else "in this" if [me] == _JOINED else f"in {_JOINED[0]}")
    if len(set(states)) > 1 or states[0] not in ("in none", "in this"):
        told = ", ".join(f"rank {rank} {state}" for rank, state in enumerate(states))
        raise UnsupportedError(
            "backend 'nvshmem'", [f"a process has one job (rank, ranks) for its whole life: {told}"]
        )
    if not _JOINED:
        job_id = meeting.share(extension.make_job_id() if meeting.rank == 0 else b"")[0]
        extension.join_job(rank=meeting.rank, num_ranks=meeting.num_ranks, id=job_id)
        _JOINED.append(me)


def _mine(buffer: Any) -> NvshmemBuffer:
    if not isinstance(buffer, NvshmemBuffer):
        raise ExchangeError(f"a buffer of this memory is needed, got {type(buffer).__name__}")
    return buffer
