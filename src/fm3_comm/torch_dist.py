"""Ranks of a torch.distributed group: gloo for the host, NCCL, where it is, for GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from fm3_comm.backend import ExchangeBackend
from fm3_comm.device_wire import DeviceWire
from fm3_comm.gloo_wire import GlooWire, Operation
from fm3_comm.message import Head, Message
from fm3_comm.point_to_point import PointToPointBackend
from fm3_comm.rank_threads import describe, run_rank_threads
from fm3_core import ExchangeError, UnsupportedError
from fm3_core.check import require_int

R = TypeVar("R")


class TorchDist(PointToPointBackend):
    """One rank of a torch.distributed group that has gloo for CPU tensors.

    One message a peer and operation; arrivals are taken by a thread of this handle, so that data moves while
    the caller computes. Handles over one group share its order of operations. `abort`, a peer that ends and a
    peer that is late close the group's connections: it is of no use afterwards.

    Tensors of a GPU travel by NCCL where the group has it for them, as "cpu:gloo,cuda:nccl" has, without
    waiting for the GPU; else through host memory. With NCCL, call `torch.cuda.set_device` first and make
    handles on all ranks, and leave the group's own point-to-point calls to the handle. Whether a peer has
    started the same operation is found by gloo beforehand; a peer that dies after that is noticed by NCCL's
    watchdog and its timeout.

    Args:
        group: a torch.distributed process group; None for the default one.
        timeout_seconds: longest wait for one message; None for the group's own timeout.

    Raises:
        UnsupportedError: torch.distributed is not there or not initialised, or the group has no gloo.
    """

    def __init__(self, group: Any = None, *, timeout_seconds: float | None = None) -> None:
        """Join; without NCCL no message is exchanged."""
        host_group, device_group = _groups(group)
        super().__init__(host_group.rank(), host_group.size())
        self._wire = GlooWire(host_group, timeout_seconds)
        self._device_wire = None if device_group is None else DeviceWire(device_group)
        self._on_the_way: set[Future[Any]] = set()
        # A thread each: a message that nobody has taken yet must not keep this rank from taking its own, nor
        # may one that is late keep bodies from moving in their turn: its sender may be waiting for them.
        self._taker = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"fm3-gloo-{self.rank}")
        self._sender = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"fm3-gloo-send-{self.rank}")
        self._mover = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"fm3-move-{self.rank}")

    def abort(self, reason: str) -> None:
        """Tell every peer why this rank stops, and close the group's connections."""
        if not self._closed:
            self._wire.stop(f"rank {self.rank} stopped: {reason}")

    def close(self) -> None:
        """Wait until everything that was started has left and arrived; give back threads and the group."""
        if not self._closed:
            super().close()
            wait(self._on_the_way)
            self._taker.shutdown(wait=True)
            self._mover.shutdown(wait=True)
            self._sender.shutdown(wait=True)
            self._wire.release()

    def _start(
        self, operation: int, outgoing: Mapping[int, Message], expected: Mapping[int, Head]
    ) -> Callable[[], Mapping[int, Message]]:
        heads = [*(message.head for message in outgoing.values()), *expected.values()]
        wire = self._device_wire
        if wire is not None and any(head.device.type == wire.device_type for head in heads if head.exchange):
            return self._start_on_device(wire, operation, outgoing, expected)
        self._wire.turns.skip(operation, self._mover)
        started = self._wire.start(
            operation,
            {peer: Message(message.head, message.body.cpu()) for peer, message in outgoing.items()},
            expected,
        )
        return self._taken(started, self._taker.submit(started.collect)).result

    def _start_on_device(
        self,
        wire: DeviceWire,
        operation: int,
        outgoing: Mapping[int, Message],
        expected: Mapping[int, Head],
    ) -> Callable[[], Mapping[int, Message]]:
        """Let heads meet by gloo, then move bodies in the operation's turn."""
        started = self._wire.start(operation, outgoing, expected, with_bodies=False)
        move = wire.prepare(outgoing, expected)

        def in_turn() -> Callable[[], dict[int, Message]]:
            started.collect_heads()
            return move()

        arrived = self._taken(started, self._wire.turns.run(operation, in_turn, self._mover))
        self._on_the_way.add(arrived)
        arrived.add_done_callback(self._on_the_way.discard)
        return lambda: arrived.result()()

    def _taken(self, started: Operation, arrived: Future[R]) -> Future[R]:
        # After it: of two waits that run into the timeout the one that takes knows more of what is missing.
        arrived.add_done_callback(lambda _: self._sender.submit(_drain, started))
        return arrived

    def _take_numbers(self, count: int) -> int:
        return self._wire.take_numbers(count)


def run(num_ranks: int, fn: Callable[[ExchangeBackend], R], *, timeout_seconds: float = 300.0) -> list[R]:
    """Run `fn(handle)` for P ranks as threads of this process that talk through gloo; results by rank.

    Args:
        num_ranks: P >= 1.
        fn: one rank's work; its argument is the rank's `TorchDist`.
        timeout_seconds: longest wait for a message.

    Raises:
        BaseException: the first exception that any rank raised, with a note that names the rank.
        ExchangeError: `num_ranks` is not a positive integer.
        UnsupportedError: this torch has no gloo.
    """
    num_ranks = require_int("num_ranks", num_ranks, minimum=1, error=ExchangeError)
    _require_gloo()
    store = dist.HashStore()  # type: ignore[attr-defined]  # torch exports it without saying so
    handles: dict[int, TorchDist] = {}

    def body(rank: int) -> R:
        group = dist.ProcessGroupGloo(store, rank, num_ranks, timedelta(seconds=timeout_seconds))
        handles[rank] = TorchDist(group, timeout_seconds=timeout_seconds)
        result = fn(handles[rank])
        handles[rank].close()
        return result

    def stop(rank: int, error: BaseException) -> None:
        if rank in handles:
            handles[rank].abort(describe(error))
            handles[rank].close()

    return run_rank_threads(num_ranks, body, stop)


class TorchDistKind:
    """torch.distributed as the registry holds it."""

    def connect(self, group: Any = None, *, timeout_seconds: float | None = None) -> ExchangeBackend:
        """Return this process's handle in a torch.distributed group; see `TorchDist`."""
        return TorchDist(group, timeout_seconds=timeout_seconds)

    def run(
        self, num_ranks: int, fn: Callable[[ExchangeBackend], R], *, timeout_seconds: float = 300.0
    ) -> list[R]:
        """Run P ranks as threads that talk through gloo; see `run`."""
        return run(num_ranks, fn, timeout_seconds=timeout_seconds)

    def why_unavailable(self) -> str | None:
        """Say what this torch lacks."""
        if not dist.is_available():
            return "this torch was built without torch.distributed"
        if not dist.is_gloo_available():
            return "this torch was built without gloo"
        return None


def _drain(operation: Operation) -> None:
    # A failure has stopped the wire: it is raised by whatever is started next.
    with suppress(ExchangeError):
        operation.drain()


def _require_gloo() -> None:
    reason = TorchDistKind().why_unavailable()
    if reason is not None:
        raise UnsupportedError("backend 'torch_dist'", [reason])


def _groups(group: Any) -> tuple[Any, Any]:
    """Return the group that moves CPU tensors, and the one that moves those of GPUs or None."""
    _require_gloo()
    if isinstance(group, dist.ProcessGroupGloo):
        return group, None
    if group is not None and not isinstance(group, dist.ProcessGroup):
        raise UnsupportedError(
            "backend 'torch_dist'", [f"group must be a torch.distributed process group, got {group!r}"]
        )
    if not dist.is_initialized():
        raise UnsupportedError(
            "backend 'torch_dist'",
            ["torch.distributed is not initialised; call torch.distributed.init_process_group first"],
        )
    group = dist.group.WORLD if group is None else group
    config = dist.get_backend_config(group)
    if "cpu:gloo" not in config:
        raise UnsupportedError(
            "backend 'torch_dist'",
            [
                f"it needs gloo for CPU tensors, this group has {config!r}; "
                "make one with torch.distributed.new_group(backend='cpu:gloo,cuda:nccl'), or 'gloo' alone"
            ],
        )
    has_nccl = "cuda:nccl" in config and torch.cuda.is_available()
    return group, group if has_nccl else None
