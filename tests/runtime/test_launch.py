"""Ranks are processes: results come back by rank, one that fails stops the others, none is left over."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed

from fm3_core import Fm3Error, patterns
from fm3_runtime import ContextParallel, attention
from fm3_runtime.launch import RankError, run_ranks

PROMPT_SECONDS = 60


def _sum_of_ranks(emit: Callable[[Any], None], extra: int) -> tuple[int, torch.Tensor]:
    emit(("rank", torch.distributed.get_rank()))
    total = torch.tensor([torch.distributed.get_rank() + extra])
    torch.distributed.all_reduce(total)
    return torch.distributed.get_rank(), total


def _refused_on_rank_1(emit: Callable[[Any], None]) -> None:
    step = ContextParallel().plan(patterns.causal(16))
    if torch.distributed.get_rank() == 1:
        raise Fm3Error("this rank was asked for too much")
    x = torch.zeros(1, step.num_local_tokens, 1, 4)
    attention(x, x, x, step)


def _crashes_on_rank_0(emit: Callable[[Any], None]) -> None:
    if torch.distributed.get_rank() == 0:
        raise ZeroDivisionError("division by zero")
    torch.distributed.barrier()


def _killed_on_rank_1(emit: Callable[[Any], None]) -> None:
    step = ContextParallel().plan(patterns.causal(16))
    if torch.distributed.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    x = torch.zeros(1, step.num_local_tokens, 1, 4)
    attention(x, x, x, step)


def _no_children_left() -> bool:
    return not multiprocessing.active_children()


def test_results_and_events_come_back_by_rank():
    events: list[Any] = []
    results = run_ranks(2, _sum_of_ranks, 10, on_event=events.append)
    assert [(rank, total.tolist()) for rank, total in results] == [(0, [21]), (1, [21])]
    assert sorted(events) == [("rank", 0), ("rank", 1)]
    assert _no_children_left()


@pytest.mark.parametrize(
    ("function", "rank", "text", "user_error"),
    [
        (_refused_on_rank_1, 1, "^rank 1: this rank was asked for too much$", True),
        (
            _crashes_on_rank_0,
            0,
            r"^rank 0: ZeroDivisionError at test_launch.py:\d+: division by zero$",
            False,
        ),
        (_killed_on_rank_1, 1, "^rank 1: its process was killed by signal 9$", False),
    ],
)
def test_a_rank_that_fails_stops_the_others_with_its_error(function, rank, text, user_error):
    started = time.monotonic()
    with pytest.raises(RankError, match=text) as caught:
        run_ranks(2, function)
    assert (caught.value.rank, caught.value.user_error) == (rank, user_error)
    assert time.monotonic() - started < PROMPT_SECONDS
    assert _no_children_left()


def test_no_rank_survives_a_killed_launcher(tmp_path):
    script = tmp_path / "launcher.py"
    script.write_text(
        textwrap.dedent("""
        import os, time
        from fm3_runtime.launch import run_ranks

        def wait_for_ever(emit):
            emit(os.getpid())
            time.sleep(600)

        if __name__ == "__main__":
            run_ranks(2, wait_for_ever, on_event=lambda pid: print(pid, flush=True))
        """)
    )
    launcher = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    pids = [int(launcher.stdout.readline()) for _ in range(2)]
    launcher.kill()
    launcher.wait()
    deadline = time.monotonic() + PROMPT_SECONDS
    while time.monotonic() < deadline and any(map(_runs, pids)):
        time.sleep(0.05)
    assert not any(map(_runs, pids))


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
