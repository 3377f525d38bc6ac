"""Multi-Process Service for tests with several ranks on one GPU: started when needed, gone at the end."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

NVSHMEM_SETTINGS = {
    "CUDA_MODULE_LOADING": "EAGER",
    "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME": "lo",
    "NVSHMEM_DISABLE_NVLS": "1",
    "NVSHMEM_REMOTE_TRANSPORT": "none",
    "NVSHMEM_SYMMETRIC_SIZE": "256M",
}
"""Ranks of one host, several on one GPU."""


@contextmanager
def mps_daemon() -> Iterator[None]:
    """Run the daemon for processes that are started inside, and what NVSHMEM must know of one host."""
    control = shutil.which("nvidia-cuda-mps-control")
    with tempfile.TemporaryDirectory(prefix="fm3-mps-") as folder:
        places = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        for place in places.values():
            os.mkdir(place)
        settings = {name: os.environ.get(name, value) for name, value in NVSHMEM_SETTINGS.items()}
        with mock.patch.dict(os.environ, {**settings, **(places if control else {})}):
            if control:
                subprocess.run([control, "-d"], check=True)
            try:
                yield
            finally:
                if control:
                    subprocess.run([control], input="quit\n", text=True, timeout=60, check=False)
