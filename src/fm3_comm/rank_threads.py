"""P ranks as threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import torch

R = TypeVar("R")


def run_rank_threads(
    num_ranks: int, body: Callable[[int], R], stop: Callable[[int, BaseException], None]
) -> list[R]:
    """Run `body(rank)` in one thread a rank and return the results by rank.

    The threads have the caller's gradient mode. All of them have ended when this returns or raises.

    Args:
        num_ranks: threads.
        body: one rank's work.
        stop: called with the rank and its exception as soon as a rank raises; it must make the others stop.

    Raises:
        BaseException: the first exception that any rank raised, with a note that names the rank.
    """
    results: dict[int, R] = {}
    failures: list[tuple[int, BaseException]] = []
    lock = threading.Lock()
    grad_enabled = torch.is_grad_enabled()

    def work(rank: int) -> None:
        try:
            with torch.set_grad_enabled(grad_enabled):
                results[rank] = body(rank)
        except BaseException as error:
            with lock:
                failures.append((rank, error))
            stop(rank, error)

    threads = [
        threading.Thread(target=work, args=(rank,), name=f"fm3-rank-{rank}") for rank in range(num_ranks)
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException as interrupt:
        stop(0, interrupt)
        for thread in threads:
            thread.join()
        raise
    if failures:
        rank, error = failures[0]
        error.add_note(f"raised in rank {rank} of {num_ranks}")
        raise error
    return [results[rank] for rank in range(num_ranks)]


def describe(error: BaseException) -> str:
    """Write an exception as one line: its class and text."""
    return f"{type(error).__name__}: {error}"
