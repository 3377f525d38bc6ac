"""The example of a backend of one's own runs, and keeps the contract as the documentation says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "custom_backend.py"


def _run(*command, **environment):
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_the_example_computes_attention_through_its_backend():
    done = _run(EXAMPLE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("4 ranks, ")
    assert "bytes through files, worst difference" in done.stdout


def test_the_contract_suite_runs_on_the_example_when_pytest_loads_it():
    suite = [ROOT / "tests" / "comm" / "contract" / f"test_backend_{noun}.py" for noun in ("relays", "stop")]
    options = ["-p", "custom_backend", "-k", "folder", "-q", "-p", "no:cacheprovider"]
    done = _run("-m", "pytest", *options, *suite, PYTHONPATH=str(EXAMPLE.parent))
    assert done.returncode == 0, done.stdout
