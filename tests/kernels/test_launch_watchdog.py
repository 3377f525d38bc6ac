"""A test that hangs ends, with its name and its input."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from launch_watchdog import EXIT_CODE

HANGS = """
import time
from launch_watchdog import note_input, watchdog
with watchdog("test_x[7]", 0.2):
    note_input("q [1, 2, 3, 4]")
    time.sleep(SECONDS)
print("came to its end")
"""


def run(seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HANGS.replace("SECONDS", str(seconds))],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_hanging_test_ends_with_its_name_and_its_input():
    done = run(30)
    assert done.returncode == EXIT_CODE
    assert done.stderr == "\ntest_x[7] did not end within 0.2 s; last input: q [1, 2, 3, 4]\n"


def test_one_that_ends_in_time_is_left_alone():
    done = run(0)
    assert (done.returncode, done.stdout) == (0, "came to its end\n")


WITHIN_PYTEST = """
import time
import pytest
from launch_watchdog import note_input, watchdog

@pytest.fixture
def watched(pytestconfig):
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with watchdog("test_x", 0.5, reveal=lambda: capture.suspend_global_capture(in_=True)):
        yield

def test_x(watched):
    for seed in range(5):  # longer than the limit, but not between two inputs
        note_input(f"seed {seed}")
        time.sleep(0.2)
    time.sleep(30)
"""


def test_the_message_is_not_lost_in_what_pytest_captures(tmp_path):
    test = tmp_path / "test_hangs.py"
    test.write_text(WITHIN_PYTEST)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(test)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == EXIT_CODE, done.stdout + done.stderr
    assert "test_x did not end within 0.5 s; last input: seed 4" in done.stderr
