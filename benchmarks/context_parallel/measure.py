"""Times of one cell: whole passes, computing alone, moving alone, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from context_parallel.clock import JobClock
from context_parallel.job import Job
from context_parallel.method import PASSES, Method
from kernel.cell import Cell


def measure(
    job: Job, cell: Cell, methods: Mapping[str, Method], clock: JobClock
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the figures of each method by pass, the same on every rank; see `figures`."""
    sent = {(name, which): _sent(job, method, which) for name, method in methods.items() for which in PASSES}
    calls: dict[tuple[str, str, str], Callable[[], object]] = {}
    for name, method in methods.items():
        for which in PASSES:
            calls[name, which, "pass"] = partial(method.run, which)
            calls[name, which, "compute"] = partial(method.compute, which)
            calls[name, which, "communicate"] = partial(method.communicate, which)
    seconds = clock.seconds(calls)
    return {
        name: {
            which: figures(
                tflops=cell.tflops(which, seconds[name, which, "pass"]) / job.num_ranks,
                seconds=seconds[name, which, "pass"],
                compute_seconds=seconds[name, which, "compute"],
                communicate_seconds=seconds[name, which, "communicate"],
                sent_bytes=sent[name, which],
            )
            for which in PASSES
        }
        for name in methods
    }


def figures(
    *,
    tflops: float,
    seconds: float,
    compute_seconds: float,
    communicate_seconds: float,
    sent_bytes: list[int],
) -> dict[str, Any]:
    """Return one pass's figures.

    Exposed is what the pass takes beyond its computing alone: waiting, and what it costs to compute in
    parts. Overlap efficiency is 1 - exposed / communication alone: 1 where all of it is hidden, 0 where none
    is, less than 0 where overlap costs more than it hides; None where nothing moves.

    Args:
        tflops: on visible pairs, a rank's share.
        seconds: of the whole pass.
        compute_seconds: the same computing over keys that are there, in one call.
        communicate_seconds: the same moving, with nothing to compute.
        sent_bytes: by rank.
    """
    exposed = seconds - compute_seconds
    return {
        "tflops": tflops,
        "seconds": seconds,
        "compute_seconds": compute_seconds,
        "communicate_seconds": communicate_seconds,
        "exposed_seconds": exposed,
        "overlap_efficiency": 1 - exposed / communicate_seconds if sum(sent_bytes) else None,
        "sent_bytes": sum(sent_bytes),
        "most_sent_bytes": max(sent_bytes),
    }


def _sent(job: Job, method: Method, which: str) -> list[int]:
    """Return the bytes that each rank sends in a pass."""
    method.run(which)  # what a first call alone sends is not counted
    job.together()
    before = method.sent_bytes
    method.run(which)
    job.together()
    return job.all(method.sent_bytes - before)
