"""Times of calls that take turns, so that clock frequency and heat are shared fairly."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

import torch

MOST_CALLS = 200
"""In one turn."""

CAPTURED = 50
"""Short calls in one graph."""

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Clock:
    """How calls are timed.

    Args:
        rounds: turns of each call; the median counts.
        budget_seconds: of each call over all turns.
        pause_seconds: idle before each turn, the same for all.
        warm_up_seconds: of calls that are not counted, before the first round: a GPU that was idle gives
            whoever comes first a low clock.
        device: "cuda" or "cpu".
    """

    rounds: int = 3
    budget_seconds: float = 0.1
    pause_seconds: float = 0.05
    warm_up_seconds: float = 0.3
    device: str = "cuda"

    def seconds(self, calls: dict[Key, Callable[[], object]]) -> dict[Key, float]:
        """Return the median time of each call."""
        turns: dict[Key, list[float]] = {key: [] for key in calls}
        self._warm_up(calls)
        for _ in range(self.rounds):
            for key, call in calls.items():
                self._wait()
                time.sleep(self.pause_seconds)
                turns[key].append(self._mean(call))
        return {key: statistics.median(found) for key, found in turns.items()}

    def seconds_on_device(self, call: Callable[[], object]) -> float:
        """Return the time that the device spends on a short call, without Python's.

        On a GPU many of them are captured as one graph; elsewhere it is the time of the call.
        """
        if self.device != "cuda":
            return self.seconds({"": call})[""]
        call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(CAPTURED):
                call()
        return self.seconds({"": graph.replay})[""] / CAPTURED

    def _warm_up(self, calls: dict[Key, Callable[[], object]]) -> None:
        spent = 0.0 if self.device == "cuda" and calls else float("inf")
        while spent < self.warm_up_seconds:
            spent += sum(self._span(call, 1) for call in calls.values())

    def _mean(self, call: Callable[[], object]) -> float:
        """Return the mean time of as many calls as fit a turn: events tick in steps of 0.1 ms and more."""
        self._span(call, 1)
        once = max(self._span(call, 1), 1e-6)
        count = int(min(MOST_CALLS, self.budget_seconds / self.rounds / once))
        return once if count < 2 else self._span(call, count) / count

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
