"""The verbs for planning: pictures, instances, saved plans, calibration, advice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fm3_core import patterns
from fm3_planner import plan_from_json

LENGTHS = ["--lengths", "2538,1742,3912"]
INSTANCES = str(Path(__file__).parents[2] / "benchmarks" / "planbench" / "instances.json")
FAST = ["--planner", "lpt", "--planner", "hcc_ipo", "--planner", "contiguous"]


@pytest.mark.parametrize("option", ["--save-loads", "--save-tradeoff", "--save-times"])
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_compare_draws_pictures(fm3, tmp_path, option, suffix):
    picture = tmp_path / f"picture.{suffix}"
    done = fm3("compare", *LENGTHS, "--ranks", "4", "--ranks-per-node", "2", *FAST, option, str(picture))
    assert done.returncode == 0, done.stderr
    assert picture.stat().st_size > 4000
    assert "drawn into" in done.stdout


def test_compare_takes_a_frozen_instance(fm3_json):
    name = json.loads(Path(INSTANCES).read_text())["instances"][0]["name"]
    found = fm3_json("compare", "--instances", INSTANCES, "--instance", name, *FAST)
    assert list(found["plans"]) == ["lpt", "hcc_ipo", "contiguous"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--instances", INSTANCES, "--instance", "none"], "unknown instance 'none' in"),
        (["--instance", "none"], "--instances and --instance go together"),
        (["--instances", "/no/such/file", "--instance", "x"], "/no/such/file"),
        (["--save-loads", "loads.bmp"], "must end in .png or .svg, got 'loads.bmp'"),
    ],
)
def test_compare_refuses_what_does_not_fit(fm3, arguments, text):
    done = fm3("compare", *([] if "--instance" in arguments else LENGTHS), *FAST, *arguments)
    assert done.returncode == 2
    assert text in " ".join(done.stderr.split())


def test_a_saved_plan_can_be_read(fm3, tmp_path):
    saved = tmp_path / "plan.json"
    assert fm3("plan", *LENGTHS, "--ranks", "2", "--save", str(saved)).returncode == 0
    result = plan_from_json(saved.read_text())
    assert result.was_made_for(patterns.causal_document([2538, 1742, 3912]))


def test_a_plan_that_cannot_be_saved_is_one_sentence(fm3, tmp_path):
    done = fm3("plan", *LENGTHS, "--ranks", "2", "--save", str(tmp_path / "no" / "plan.json"))
    assert done.returncode == 2
    assert "cannot be written: No such file or directory" in " ".join(done.stderr.split())


@pytest.fixture
def kernel_results(tmp_path: Path) -> Path:
    """Times that follow the weights 3, 5 and 1 microseconds a block exactly, and twice that backward."""
    cells = [
        {
            "direction": direction,
            "full_blocks": full,
            "partial_blocks": partial,
            "row_blocks": rows,
            "block_rows": 128,
            "block_keys": 128,
            "seconds": times * (20e-6 + 3e-6 * full + 5e-6 * partial + 1e-6 * rows),
        }
        for direction, times in (("forward", 1), ("backward", 2))
        for full, partial, rows in (
            (10, 5, 8),
            (100, 3, 16),
            (7, 90, 32),
            (400, 60, 64),
            (33, 44, 128),
            (5, 9, 2),
        )
    ]
    path = tmp_path / "kernel.json"
    path.write_text(json.dumps({"cells": cells}))
    return path


def test_calibrate_finds_the_weights_that_made_the_times(fm3, fm3_json, kernel_results):
    cost = fm3_json("calibrate", str(kernel_results))["cost"]
    assert cost["partial_forward"] / cost["full_forward"] == pytest.approx(5 / 3, rel=1e-3)
    assert cost["full_backward"] / cost["full_forward"] == pytest.approx(2, rel=1e-3)
    printed = fm3("calibrate", str(kernel_results))
    assert "partial block" in printed.stdout
    assert "0.0%" in printed.stdout


def test_calibrate_refuses_a_file_without_cells(fm3, tmp_path):
    (tmp_path / "empty.json").write_text("{}")
    empty = fm3("calibrate", str(tmp_path / "empty.json"))
    assert 'must have a list "cells" with at least one cell' in " ".join(empty.stderr.split())
    assert "is not a file" in " ".join(fm3("calibrate", str(tmp_path / "none.json")).stderr.split())


def test_advise_chooses_a_size_on_the_frontier_and_says_why(fm3, fm3_json):
    found = fm3_json("advise", *LENGTHS, "--ranks", "4", "--ranks-per-node", "2")
    chosen = [option for option in found["options"] if option["chunk_size"] == found["chunk_size"]]
    assert chosen[0]["is_on_frontier"]
    assert f"chunks of {found['chunk_size']} tokens" in found["reason"]
    assert "predicted" in fm3("advise", *LENGTHS, "--ranks", "4").stdout
