"""Starts P ranks as processes of this machine, joined by torch.distributed over gloo."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from fm3_core import Fm3Error
from fm3_core.check import require_int

EXCHANGE_TIMEOUT_SECONDS = 600.0
"""Longest wait of a rank for another one inside an exchange; the launcher notices a death at once."""


class RankError(Fm3Error):
    """A rank failed; the others were stopped.

    Attributes:
        rank: the rank that failed first.
        user_error: whether it was refused for what the user asked (an Fm3Error) and did not crash.
    """

    def __init__(self, rank: int, message: str, user_error: bool) -> None:
        """Name the rank and what it said."""
        self.rank = rank
        self.user_error = user_error
        super().__init__(f"rank {rank}: {message}")


@dataclass(frozen=True)
class _Failure:
    message: str
    user_error: bool


@dataclass(frozen=True)
class _Result:
    """A rank's value, pickled whole: torch's own way for pipes shares memory that ends with the rank."""

    pickled: bytes


def run_ranks(
    num_ranks: int,
    function: Callable[..., Any],
    *arguments: Any,
    on_event: Callable[[Any], None] | None = None,
) -> list[Any]:
    """Run `function(emit, *arguments)` on each rank and return what the ranks return, by rank.

    Each rank is a process with an initialised torch.distributed gloo group and its share of the machine's
    cores. When one fails or dies the others are stopped, whatever they wait for; when this process dies they
    end, too.

    Args:
        num_ranks: processes to start, at least 1.
        function: a module's function; `emit(event)` sends an event to this process.
        arguments: pickled to every rank.
        on_event: called here with each event that a rank emits.

    Raises:
        RankError: the first rank that failed, with its error.
    """
    require_int("num_ranks", num_ranks, minimum=1, error=Fm3Error)
    context = multiprocessing.get_context("spawn")
    threads = max(1, torch.get_num_threads() // num_ranks)
    with tempfile.TemporaryDirectory(prefix="fm3-ranks-") as folder:
        processes: list[BaseProcess] = []
        pipes: list[Connection] = []
        try:
            for rank in range(num_ranks):
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(
                    target=_rank_main,
                    args=(rank, num_ranks, threads, f"{folder}/rendezvous", sender, function, arguments),
                    name=f"fm3 rank {rank}",
                    daemon=True,
                )
                process.start()
                sender.close()
                processes.append(process)
                pipes.append(receiver)
            return _collect(processes, pipes, on_event or (lambda event: None))
        finally:
            _stop(processes)


def _collect(
    processes: list[BaseProcess], pipes: list[Connection], on_event: Callable[[Any], None]
) -> list[Any]:
    results: dict[int, Any] = {}
    open_pipes = dict(enumerate(pipes))
    while open_pipes:
        for pipe in wait(list(open_pipes.values())):
            rank = next(rank for rank, candidate in open_pipes.items() if candidate is pipe)
            try:
                message = open_pipes[rank].recv()
            except EOFError:
                del open_pipes[rank]
                if rank not in results:
                    processes[rank].join(5)
                    raise RankError(rank, _how_it_died(processes[rank].exitcode), user_error=False) from None
                continue
            if isinstance(message, _Failure):
                raise RankError(rank, message.message, message.user_error)
            if isinstance(message, _Result):
                results[rank] = pickle.loads(message.pickled)
            else:
                on_event(message)
    return [results[rank] for rank in range(len(processes))]


def _how_it_died(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"its process was killed by signal {-exit_code}"
    return f"its process ended with exit code {exit_code} and no result"


def _stop(processes: list[BaseProcess]) -> None:
    for process in processes:
        if process.is_alive():
            process.terminate()
    deadline = time.monotonic() + 5
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


def _rank_main(
    rank: int,
    num_ranks: int,
    threads: int,
    rendezvous: str,
    sender: Connection,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    _end_with_parent()
    torch.set_num_threads(threads)
    try:
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{rendezvous}",
            rank=rank,
            world_size=num_ranks,
            timeout=timedelta(seconds=EXCHANGE_TIMEOUT_SECONDS),
        )
        value = function(sender.send, *arguments)
    except Fm3Error as error:
        sender.send(_Failure(str(error), user_error=True))
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        sender.send(_Failure(f"{type(error).__name__} at {place}: {error}", user_error=False))
    else:
        torch.distributed.barrier()
        sender.send(_Result(pickle.dumps(value)))
        torch.distributed.destroy_process_group()
    finally:
        sender.close()


def _end_with_parent() -> None:
    """End this process as soon as the one that started it is gone, however that ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()
