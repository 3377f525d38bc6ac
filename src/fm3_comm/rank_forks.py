"""P ranks as processes that fork from this one, for transports that take one rank a process."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.synchronize import Event
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from fm3_comm.backend import ExchangeBackend
from fm3_comm.rank_threads import describe
from fm3_comm.torch_dist import TorchDist
from fm3_core import ExchangeError

R = TypeVar("R")

_END_SECONDS = 10.0


def run_rank_forks(
    num_ranks: int, body: Callable[[ExchangeBackend], R], *, timeout_seconds: float
) -> list[R]:
    """Run `body(meeting)` in one process a rank and return the pickled results by rank.

    The processes are forks, so that `body` may be any function. Where there is a GPU, this process must have
    neither used CUDA nor run a backward pass of torch, which starts threads for every device, even for
    tensors of the CPU: both are lost in a fork. All of them have ended when this returns or raises; after a
    failure those that go on have 10 s.

    Args:
        num_ranks: processes.
        body: one rank's work; its argument is a gloo handle where the ranks can meet.
        timeout_seconds: longest wait for a rank.

    Raises:
        BaseException: what the first rank that failed raised, with notes: its traceback, and the rank.
        ExchangeError: a rank ended without a result.
    """
    context = multiprocessing.get_context("fork")
    all_are_done = context.Event()
    with tempfile.TemporaryDirectory(prefix="fm3-ranks-") as folder:
        processes, pipes = [], []
        try:
            for rank in range(num_ranks):
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(
                    target=_rank_main,
                    args=(rank, num_ranks, f"{folder}/store", sender, all_are_done, body, timeout_seconds),
                    daemon=True,
                )
                process.start()
                sender.close()
                processes.append(process)
                pipes.append(receiver)
            return _collect(pipes)
        finally:
            all_are_done.set()
            deadline = time.monotonic() + _END_SECONDS
            for process in processes:
                process.join(max(0.0, deadline - time.monotonic()))
                if process.is_alive():
                    process.kill()
                    process.join()


def _collect(pipes: list[Connection]) -> list[Any]:
    """Return every rank's result, or raise the first failure in time."""
    results: dict[int, Any] = {}
    failures: list[tuple[float, int, BaseException]] = []
    deadline: float | None = None
    while len(results) < len(pipes):
        left = {pipe: rank for rank, pipe in enumerate(pipes) if rank not in results}
        arrived = wait(list(left), None if deadline is None else max(0.0, deadline - time.monotonic()))
        if not arrived:
            break
        for rank in sorted(left[pipe] for pipe in arrived if isinstance(pipe, Connection)):
            when, results[rank], error = _received(pipes[rank], rank)
            if error is not None:
                failures.append((when, rank, error))
                deadline = deadline or time.monotonic() + _END_SECONDS
    if failures:
        _, rank, error = min(failures, key=lambda failure: failure[0])
        error.add_note(f"raised in rank {rank} of {len(pipes)}")
        raise error
    return [results[rank] for rank in range(len(pipes))]


def _received(pipe: Connection, rank: int) -> tuple[float, Any, BaseException | None]:
    """Return when a rank ended, its result and its failure."""
    try:
        message: tuple[float, Any, BaseException | None] = pickle.loads(pipe.recv_bytes())
    except EOFError:
        return time.monotonic(), None, ExchangeError(f"rank {rank} ended without a result")
    return message


def _rank_main(
    rank: int,
    num_ranks: int,
    store: str,
    sender: Connection,
    all_are_done: Event,
    body: Callable[[ExchangeBackend], Any],
    timeout_seconds: float,
) -> None:
    result: Any = None
    failure: BaseException | None = None
    when = 0.0
    # A fork has one thread, whatever pool of threads this process had: work given to the others would wait.
    torch.set_num_threads(1)
    try:
        meeting = dist.FileStore(store, num_ranks)  # type: ignore[attr-defined]  # torch exports it so
        group = dist.ProcessGroupGloo(meeting, rank, num_ranks, timedelta(seconds=timeout_seconds))
        result = body(TorchDist(group, timeout_seconds=timeout_seconds))
    except BaseException as error:
        when, failure = time.monotonic(), error
        error.add_note("".join(traceback.format_exception(error)).rstrip())
    try:
        message = pickle.dumps((when, result, failure))
    except Exception as error:
        message = pickle.dumps((when, None, ExchangeError(f"no pickle: {describe(failure or error)}")))
    sender.send_bytes(message)
    # A rank that ended now could close a connection on which a slower one still reads.
    all_are_done.wait(timeout_seconds)
    # Not the interpreter's own end: it would wait for transports whose peers may be gone.
    os._exit(0)
