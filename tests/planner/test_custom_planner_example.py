"""examples/custom_planner.py runs, prints what it promises, stays short and keeps the contract."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "custom_planner.py"
ROW = re.compile(r"(\w+) +load +(\d+) +[\d.]+% +between nodes +(\d+) KiB")


def _run(*arguments: str) -> str:
    path = os.pathsep.join([str(EXAMPLE.parent), *sys.path])
    environment = os.environ | {"PYTHONPATH": path}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def rows() -> dict[str, tuple[int, int]]:
    """Load and KiB between nodes by planner, as the example prints them."""
    return {name: (int(load), int(kib)) for name, load, kib in ROW.findall(_run(str(EXAMPLE)))}


def test_it_is_under_40_lines():
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < 40


def test_it_stands_beside_planners_that_ship(rows):
    assert list(rows) == ["contiguous", "zigzag", "lpt", "neighbourly", "hcc_ipo"]


def test_its_planner_moves_less_than_lpt_and_balances_better_than_fixed_layouts(rows):
    load, kib = rows["neighbourly"]
    assert load < min(rows["contiguous"][0], rows["zigzag"][0])
    assert kib < rows["lpt"][1]


def test_the_contract_suite_runs_on_a_planner_that_a_module_registers():
    contract = str(ROOT / "tests" / "planner" / "contract")
    options = ["-q", "-p", "custom_planner", "-p", "no:cacheprovider", "-k", "neighbourly"]
    assert re.search(r"\b\d+ passed", _run("-m", "pytest", *options, contract))
