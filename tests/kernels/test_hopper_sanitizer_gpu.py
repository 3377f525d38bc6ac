"""Hopper launches, forward and backward, under compute-sanitizer, where the machine has it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hopper_compare import needs_hopper

SANITIZER = shutil.which("compute-sanitizer") or shutil.which(
    "compute-sanitizer", path="/usr/local/cuda/bin:/opt/cuda/bin"
)

pytestmark = [
    *needs_hopper,
    pytest.mark.slow,
    pytest.mark.skipif(SANITIZER is None, reason="compute-sanitizer is not here"),
]

LAUNCHES = """
import torch
from fm3_kernels import attention_backward
from hopper_compare import problem, run
from pattern_masks import PATTERNS, pattern
for name, dtype, dim in zip(PATTERNS, 6 * [torch.bfloat16, torch.float16], 3 * [64, 64, 128, 128]):
    x = problem(pattern(name, 257, 200), heads=2, kv_heads=1, dim=dim, dtype=dtype)
    for options in ({"num_ctas": 2}, {"out_dtype": torch.float32}):
        run(x, **options)
    out, lse = run(x)
    for deterministic in (False, True):
        attention_backward(
            out, x.q, x.k, x.v, out, lse, x.mask,
            softmax_scale=x.scale, deterministic=deterministic, engine="hopper",
        )
torch.cuda.synchronize()
print("launched")
"""


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck", "initcheck"])
def test_the_sanitizer_finds_nothing(tool):
    assert SANITIZER is not None
    done = subprocess.run(
        [SANITIZER, "--tool", tool, "--error-exitcode", "9", sys.executable, "-c", LAUNCHES],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    if "not supported" in done.stdout or "Unable to" in done.stdout:
        pytest.skip(f"compute-sanitizer cannot run here: {done.stdout[-300:]}")
    assert "launched" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0, done.stdout[-3000:]
