"""The symmetric backend as the registry holds it, one kind for each symmetric memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from fm3_comm import loopback
from fm3_comm.backend import ExchangeBackend
from fm3_comm.rank_threads import describe
from fm3_comm.symmetric.backend import SymmetricBackend, SymmetricOptions
from fm3_comm.symmetric.device_backend import DeviceBackend
from fm3_comm.symmetric.memory import MemoryKind, memories
from fm3_comm.symmetric.nvshmem import NvshmemMemory
from fm3_comm.torch_dist import TorchDist
from fm3_core import UnsupportedError

R = TypeVar("R")

DEFAULT_TIMEOUT_SECONDS = 300.0


class SymmetricKind:
    """Exchange backends over one kind of symmetric memory.

    Args:
        memory: a name in `memories`.
        options: how the backend works.
    """

    def __init__(self, memory: str, options: SymmetricOptions = SymmetricOptions()) -> None:  # noqa: B008
        """Keep the name."""
        self.memory = memory
        self.options = options

    def connect(self, group: Any = None, *, timeout_seconds: float | None = None) -> ExchangeBackend:
        """Return this rank's handle.

        Args:
            group: any backend's handle or a torch.distributed group, where the ranks meet; None for the
                default group, or a world of one rank where none is initialised. A symmetric handle is
                returned as it is.
            timeout_seconds: longest wait for a peer; None for 300 s.

        Raises:
            UnsupportedError: the memory is not available here, or the group has no gloo.
        """
        if isinstance(group, SymmetricBackend):
            return group
        kind = self._available()
        timeout = DEFAULT_TIMEOUT_SECONDS if timeout_seconds is None else timeout_seconds
        if isinstance(group, ExchangeBackend):
            return self._open(kind, group, timeout)
        if group is None and not (dist.is_available() and dist.is_initialized()):
            return self._open(kind, loopback.solo(), timeout)
        meeting = TorchDist(group, timeout_seconds=timeout)
        try:
            return self._open(kind, meeting, timeout)
        finally:
            meeting.close()

    def run(
        self,
        num_ranks: int,
        fn: Callable[[ExchangeBackend], R],
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> list[R]:
        """Run P ranks as the memory's kind does; see `BackendKind.run`."""
        kind = self._available()

        def body(meeting: ExchangeBackend) -> R:
            handle = self._open(kind, meeting, timeout_seconds)
            try:
                result = fn(handle)
            except BaseException as error:
                handle.abort(describe(error))
                handle.close()
                raise
            handle.close()
            return result

        return kind.run_ranks(num_ranks, body, timeout_seconds=timeout_seconds)

    def why_unavailable(self) -> str | None:
        """Say why the memory is not available."""
        return memories.get(self.memory).why_unavailable()

    def _available(self) -> MemoryKind:
        reason = self.why_unavailable()
        if reason is not None:
            raise UnsupportedError(f"backend {self.memory!r}", [reason])
        return memories.get(self.memory)

    def _open(self, kind: MemoryKind, meeting: ExchangeBackend, timeout_seconds: float) -> SymmetricBackend:
        memory = kind.connect(meeting, timeout_seconds=timeout_seconds)
        if isinstance(memory, NvshmemMemory):
            return DeviceBackend(memory, timeout_seconds=timeout_seconds, options=self.options)
        return SymmetricBackend(memory, timeout_seconds=timeout_seconds, options=self.options)
