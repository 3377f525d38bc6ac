"""The watch that turns a hang into a failure."""

from __future__ import annotations

import pathlib
import subprocess
import sys

from hang_watch import EXIT_CODE, HangWatch

HANGS = """
import time

pytest_plugins = ["hang_watch"]

def test_that_hangs(hang_watch):
    hang_watch.seconds = 0.2
    with hang_watch.over("the input of seed 17"):
        time.sleep(60)
"""


def test_a_block_that_ends_in_time_is_let_alone() -> None:
    with HangWatch(seconds=30).over("nothing"):
        pass


def test_a_hang_ends_the_session_and_names_the_input(tmp_path: pathlib.Path) -> None:
    test = tmp_path / "test_hangs.py"
    test.write_text(HANGS)
    here = pathlib.Path(__file__).parent
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(test)]
    options = {"cwd": tmp_path, "env": {"PYTHONPATH": str(here)}, "timeout": 50}
    ended = subprocess.run(command, check=False, capture_output=True, text=True, **options)
    assert ended.returncode == EXIT_CODE, ended.stdout + ended.stderr
    assert "no end after 0.2 seconds of: the input of seed 17" in ended.stderr
