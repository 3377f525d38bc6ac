"""What kinds of backends and memories run their ranks as."""

from __future__ import annotations

import os
from unittest import mock

import torch


def ranks_are_threads(name: str) -> bool:
    """Say whether ranks of a backend or memory are threads of this process, which share what a test holds."""
    return name != "nvshmem"


def runner(kind, name: str, timeout_seconds: float):
    """Return `run(num_ranks, fn)` of a kind; ranks that share GPUs under MPS get a share of each."""

    def run(num_ranks, fn):
        return kind.run(num_ranks, fn, timeout_seconds=timeout_seconds)

    def run_processes(num_ranks, fn):
        ranks_per_gpu = -(-num_ranks // torch.cuda.device_count())
        share = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(100 // ranks_per_gpu)}
        with mock.patch.dict(os.environ, share):
            return run(num_ranks, fn)

    return run if ranks_are_threads(name) else run_processes
