"""torch_dist over NCCL: one GPU a rank; nothing goes through host memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

NUM_GPUS = torch.cuda.device_count()
pytestmark = [
    pytest.mark.multigpu,
    pytest.mark.skipif(NUM_GPUS < 2, reason=f"needs two CUDA devices, this machine has {NUM_GPUS}"),
]


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_keys_and_gradients_travel_by_nccl_in_the_order_of_their_operations(tmp_path, num_ranks):
    if num_ranks > NUM_GPUS:
        pytest.skip(f"needs {num_ranks} CUDA devices, this machine has {NUM_GPUS}")
    script = str(Path(__file__).with_name("nccl_process.py"))
    processes = [
        subprocess.Popen(
            [sys.executable, script, str(rank), str(num_ranks), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(num_ranks)
    ]
    try:
        output = [process.communicate(timeout=240) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * num_ranks, output
    assert [text for text, _ in output] == ["finished\n"] * num_ranks
