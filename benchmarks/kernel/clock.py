"""Times of calls that take turns, so that clock frequency and heat are shared fairly."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

import torch

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Clock:
    """How calls are timed.

    Args:
        rounds: turns of each call; the median counts.
        budget_seconds: of each call over all turns.
        pause_seconds: idle before each turn, the same for all.
        device: "cuda" or "cpu".
    """

    rounds: int = 3
    budget_seconds: float = 0.1
    pause_seconds: float = 0.05
    device: str = "cuda"

    def seconds(self, calls: dict[Key, Callable[[], object]]) -> dict[Key, float]:
        """Return the median time of each call."""
        turns: dict[Key, list[float]] = {key: [] for key in calls}
        for _ in range(self.rounds):
            for key, call in calls.items():
                self._wait()
                time.sleep(self.pause_seconds)
                turns[key].append(self._mean(call))
        return {key: statistics.median(found) for key, found in turns.items()}

    def _mean(self, call: Callable[[], object]) -> float:
        """Return the mean time of as many calls as fit a turn: events tick in steps of 0.1 ms and more."""
        self._span(call, 1)
        once = max(self._span(call, 1), 1e-6)
        count = int(min(200, max(2, self.budget_seconds / self.rounds / once)))
        return self._span(call, count) / count

    def _span(self, call: Callable[[], object], times: int) -> float:
        if self.device != "cuda":
            start = time.perf_counter()
            for _ in range(times):
                call()
            return time.perf_counter() - start
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(times):
            call()
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last) / 1e3

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()
