"""Jobs run in the order of their numbers, whatever the order in which they come."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from fm3_comm.turns import Turns

SEEDS = range(20)


@pytest.fixture
def executor():
    """Give two threads."""
    with ThreadPoolExecutor(max_workers=2) as threads:
        yield threads


@pytest.mark.parametrize("seed", SEEDS)
def test_jobs_run_by_number_past_skipped_turns(executor, seed):
    draws, turns, order = random.Random(seed), Turns(), []
    numbers = list(range(30))
    skipped = set(draws.sample(numbers, 10))
    draws.shuffle(numbers)
    futures = []
    for number in numbers:
        if number in skipped:
            turns.skip(number, executor)
        else:
            futures.append(turns.run(number, lambda number=number: order.append(number), executor))
    for future in futures:
        future.result(timeout=10)
    assert order == [number for number in range(30) if number not in skipped]


def test_a_missing_number_holds_up_the_later_ones_only(executor):
    turns = Turns()
    first, third = (turns.run(number, lambda number=number: number, executor) for number in (0, 2))
    assert first.result(timeout=10) == 0
    with pytest.raises(TimeoutError):
        third.result(timeout=0.05)
    turns.skip(1, executor)
    assert third.result(timeout=10) == 2


def test_one_job_runs_at_a_time(executor):
    turns, inside, most = Turns(), [], []
    pause = threading.Event()

    def job():
        inside.append(1)
        most.append(len(inside))
        pause.wait(0.002)
        inside.pop()

    for future in [turns.run(number, job, executor) for number in range(20)]:
        future.result(timeout=10)
    assert max(most) == 1


def test_after_a_failure_later_jobs_run_without_those_that_are_missing(executor):
    turns = Turns()

    def fails():
        raise LookupError("gone")

    late = turns.run(7, lambda: "told", executor)
    failed = turns.run(0, fails, executor)
    with pytest.raises(LookupError, match="gone"):
        failed.result(timeout=10)
    assert late.result(timeout=10) == "told"
    turns.skip(3, executor)
    assert turns.run(9, lambda: "told, too", executor).result(timeout=10) == "told, too"


def test_a_stop_lets_go_of_jobs_whose_turn_never_comes(executor):
    turns = Turns()
    waiting = turns.run(1, lambda: "told", executor)
    turns.stop()
    assert waiting.result(timeout=10) == "told"
