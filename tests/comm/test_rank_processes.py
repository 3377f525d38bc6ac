"""torch_dist among real processes: default group, a subgroup, and a rank that is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import fm3_comm

NUM_RANKS = 3


def _run_ranks(tmp_path, scenario):
    """Return (exit code, output) of each rank, and the seconds that all took."""
    source = str(Path(fm3_comm.__file__).parents[1])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": source}
    script = str(Path(__file__).with_name("rank_process.py"))
    start = time.monotonic()
    processes = [
        subprocess.Popen(
            [sys.executable, script, str(rank), str(NUM_RANKS), str(tmp_path / "store"), scenario],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(NUM_RANKS)
    ]
    try:
        output = [process.communicate(timeout=60) for process in processes]
    finally:
        for process in processes:
            process.kill()
    codes = [process.returncode for process in processes]
    return codes, output, time.monotonic() - start


def test_ranks_that_are_processes_exchange_and_end_well(tmp_path):
    codes, output, _ = _run_ranks(tmp_path, "well")
    assert (codes, [text for text, _ in output]) == ([0, 0, 0], ["finished\n"] * 3), output


def test_when_a_rank_is_killed_the_others_stop_with_its_rank_and_no_process_stays(tmp_path):
    codes, output, seconds = _run_ranks(tmp_path, "killed")
    assert codes == [3, 3, -9], output
    for rank in (0, 1):
        assert output[rank][0].startswith(f"rank {rank} of 3: gather (operation "), output
        assert "rank 2 stopped without a word: its connection closed" in output[rank][0], output
    assert seconds < 60
