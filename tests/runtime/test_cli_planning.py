"""The verbs for planning: pictures, instances, saved plans, calibration, advice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fm3_core import patterns
from fm3_planner import PlanProblem, calibration_from_json, plan, plan_from_json

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


def test_a_saved_calibration_is_what_other_verbs_plan_with(fm3, fm3_json, kernel_results, tmp_path):
    saved = tmp_path / "calibration.json"
    assert fm3("calibrate", str(kernel_results), "--save", str(saved)).returncode == 0
    fitted = calibration_from_json(saved.read_text())
    mask = patterns.causal_document([2538, 1742, 3912])
    problem = PlanProblem.from_mask(mask, chunk_size=512, num_ranks=4, cost=fitted.cost)
    options = [*LENGTHS, "--ranks", "4", "--chunk-size", "512", "--cost", str(saved)]
    assert fm3_json("plan", *options)["compute"] == plan(problem).cost.compute
    found = fm3_json("compare", *options, "--planner", "lpt")
    assert found["plans"]["lpt"]["compute"] == plan(problem, "lpt").cost.compute
    advice = fm3_json("advise", *LENGTHS, "--ranks", "4", "--cost", str(saved))
    slowest = max(option["predicted_seconds"] for option in advice["options"])
    assert slowest > fitted.seconds_per_unit * problem.weights.sum() / 4


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "cannot be read: No such file or directory"),
        ("{", "is no JSON"),
        ('{"format": "fm3.plan", "version": 1}', '"format": "fm3.calibration"'),
        ('{"format": "fm3.calibration", "version": 9}', "version 9 cannot be read"),
        ('{"format": "fm3.calibration", "version": 1}', "is missing"),
    ],
)
@pytest.mark.parametrize("verb", ["plan", "compare", "advise"])
def test_a_file_that_is_no_calibration_is_refused_by_its_name(fm3, tmp_path, verb, content, text):
    path = tmp_path / "c.json"
    if content is not None:
        path.write_text(content)
    done = fm3(verb, *LENGTHS, "--ranks", "2", "--cost", str(path))
    assert done.returncode == 2
    assert text in " ".join(done.stderr.split())
    assert "c.json" in "".join(done.stderr.split())


def test_a_planner_takes_options_on_the_command_line(fm3_json):
    tight, loose = "hcc_ipo(epsilon=0)", "hcc_ipo( epsilon = 0.5, engine=python )"
    arguments = ["--ranks", "4", "--ranks-per-node", "2", "--chunk-size", "512"]
    found = fm3_json("compare", *LENGTHS, *arguments, "--planner", tight, "--planner", loose)["plans"]
    assert found[tight]["compute"] < found[loose]["compute"]
    assert found[tight]["node_traffic"] > found[loose]["node_traffic"]


@pytest.mark.parametrize(
    ("planner", "text"),
    [
        ("lpt(a=3)", "planner 'lpt' has no option 'a'; it has none"),
        ("hcc_ipo(eps=1)", "has no option 'eps'; it has epsilon, compute_moves, traffic_moves, runs, engine"),
        ("hcc_ipo(epsilon)", "an option is name=value, got 'epsilon'"),
        ("hcc_ipo(epsilon=-1)", "HccIpo.epsilon must be in 0..1000, got -1"),
        ("hcc_ipo(epsilon=nan)", "HccIpo.epsilon must be a finite number >= 0, got 'nan'"),
        ("cp_sat(start=lpt)", "CpSat.start must be an object with assign(problem), got 'lpt'"),
        ("none(a=1)", "unknown planner 'none'; known: "),
        ("hcc_ipo(", "unknown planner 'hcc_ipo('; known: "),
    ],
)
@pytest.mark.parametrize("verb", ["plan", "compare"])
def test_a_planner_that_is_none_is_refused(fm3, verb, planner, text):
    done = fm3(verb, *LENGTHS, "--ranks", "2", "--planner", planner)
    assert done.returncode == 2
    assert text in " ".join(done.stderr.split())


def test_plans_are_compared_with_the_best_bound_that_any_planner_proved(fm3, fm3_json):
    arguments = [*LENGTHS, "--ranks", "4", "--chunk-size", "512", "--planner", "ipo", "--planner", "cp_sat"]
    found = fm3_json("compare", *arguments)
    assert found["plans"]["ipo"]["compute_bound"]["value"] < found["compute_bound"]["value"]
    assert found["compute_bound"]["value"] == found["plans"]["ipo"]["compute"]
    rows = [line.split() for line in fm3("compare", *arguments).stdout.splitlines()]
    assert [row[2] for row in rows if row[:1] in (["ipo"], ["cp_sat"])] == ["0.00%", "0.00%"]


@pytest.fixture
def broken_plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package whose planner and backend cannot be imported."""
    info = tmp_path / "fm3_broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fm3-broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[fm3.planners]\ngone = fm3_no_such_module:Gone\n[fm3.backends]\ngone = fm3_no_such_module:Gone\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_broken_plug_in_is_left_out_where_nobody_asked_for_it(fm3, fm3_json, broken_plug_in):
    found = fm3_json("compare", *LENGTHS, "--ranks", "2", "--chunk-size", "1024")
    assert "No module named 'fm3_no_such_module'" in found["refused"]["gone"]
    assert "lpt" in found["plans"]
    asked = fm3("compare", *LENGTHS, "--ranks", "2", "--planner", "lpt", "--planner", "gone")
    assert asked.returncode == 2
    assert "planner 'gone' cannot be loaded from its entry point" in " ".join(asked.stderr.split())


def test_doctor_says_why_a_broken_plug_in_does_not_run(fm3_json, broken_plug_in):
    found = fm3_json("doctor")
    assert "No module named 'fm3_no_such_module'" in found["planners"]["gone"][0]
    assert found["planners"]["lpt"] == []


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
