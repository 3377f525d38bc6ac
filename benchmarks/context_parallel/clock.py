"""`JobClock`: times of calls that all ranks make together, in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

from context_parallel.job import Job

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class JobClock:
    """How calls are timed; unlike `kernel.clock.Clock` every rank makes equally many.

    Args:
        job: the ranks.
        rounds: turns of each call; the median counts.
        calls: calls of a turn, one after the other without waiting for the device.
        pause_seconds: idle before each turn.
    """

    job: Job
    rounds: int = 5
    calls: int = 4
    pause_seconds: float = 0.02

    def seconds(self, calls: dict[Key, Callable[[], object]]) -> dict[Key, float]:
        """Return the time of each call: of each turn that of the slowest rank, of the turns the median."""
        turns: dict[Key, list[float]] = {key: [] for key in calls}
        for call in calls.values():
            call()
        for _ in range(self.rounds):
            for key, call in calls.items():
                self.job.together()
                time.sleep(self.pause_seconds)
                self.job.together()
                start = time.perf_counter()
                for _ in range(self.calls):
                    call()
                self.job.finish()
                turns[key].append((time.perf_counter() - start) / self.calls)
        by_rank = self.job.all(list(turns.values()))
        slowest = [[max(turn) for turn in zip(*ranks, strict=True)] for ranks in zip(*by_rank, strict=True)]
        return {key: statistics.median(found) for key, found in zip(turns, slowest, strict=True)}
