"""Cost weights are recovered from times, and the error of the fit is told."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fm3_core import BlockMap, ColumnMask, PlanError, patterns
from fm3_planner import (
    StepSpeeds,
    TimedCell,
    calibration_from_json,
    calibration_to_json,
    cells_to_json,
    fit_cost_weights,
    read_cells,
)

CALL, FULL, PARTIAL, ROW = 5e-6, 2e-8, 3e-8, 1e-8


def _cells(direction="forward", *, times=1.0, noise=0.0, num_cells=12, **changes):
    rng = np.random.default_rng(1)
    cells = []
    for full, partial, rows in rng.integers(100, 20_000, (num_cells, 3)).tolist():
        seconds = CALL + times * (FULL * full + PARTIAL * partial + ROW * rows)
        fields = {
            "direction": direction,
            "full_blocks": full,
            "partial_blocks": partial,
            "row_blocks": rows,
            "block_rows": 128,
            "block_keys": 64,
            "seconds": seconds * (1 + noise * float(rng.standard_normal())),
        }
        cells.append(TimedCell(**(fields | changes)))
    return cells


def test_weights_are_the_ratios_of_the_times():
    fit = fit_cost_weights([*_cells(), *_cells("backward", times=2.5)], source="a test")
    cost = fit.cost
    assert (cost.full_forward, cost.partial_forward, cost.row_block_forward) == (2667, 4000, 1333)
    assert (cost.full_backward, cost.partial_backward, cost.row_block_backward) == (6667, 10_000, 3333)
    assert (cost.block_rows, cost.block_keys) == (128, 64)
    assert fit.seconds_per_unit == pytest.approx(2.5 * PARTIAL / 10_000)
    assert fit.forward.call_seconds == pytest.approx(CALL)
    assert fit.forward.worst_error < 1e-9


def test_without_backward_times_backward_costs_nothing():
    fit = fit_cost_weights(_cells(), source="a test")
    assert (fit.backward, fit.cost.full_backward, fit.cost.partial_backward) == (None, 0, 0)
    assert fit.cost.partial_forward == 10_000


def test_the_provenance_names_source_and_error():
    fit = fit_cost_weights(_cells(noise=0.02), source="H200, 3 seeds")
    assert fit.cost.provenance.startswith("fitted to H200, 3 seeds; error forward ")
    assert f"{fit.forward.mean_error:.1%} mean" in fit.cost.provenance
    assert 0.001 < fit.forward.mean_error < 0.02 < fit.forward.worst_error * 4


def test_no_weight_is_below_zero_though_plain_least_squares_would_have_one():
    cells = _cells(noise=0.3)
    fit = fit_cost_weights(cells, source="noise").forward
    counts = np.array([[1, cell.full_blocks, cell.partial_blocks, cell.row_blocks] for cell in cells])
    seconds = np.array([cell.seconds for cell in cells])
    plain = np.linalg.lstsq(counts / seconds[:, None], np.ones(len(cells)), rcond=None)[0]
    assert plain.min() < 0
    assert min(fit.call_seconds, fit.full_seconds, fit.partial_seconds, fit.row_block_seconds) >= 0


def test_cells_are_read_from_the_json_of_a_kernel_benchmark(tmp_path):
    cells = _cells()
    fields = [vars(cell) | {"engine": "hopper"} for cell in cells]
    path = tmp_path / "kernel.json"
    path.write_text(json.dumps({"device": "H200", "cells": fields}), encoding="utf-8")
    assert read_cells(path) == cells


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no JSON"),
        ("[]", 'must have a list "cells" with at least one cell'),
        ('{"cells": []}', 'must have a list "cells" with at least one cell'),
        ('{"cells": [3]}', r"cells\[0\] must be an object, got int"),
        (
            '{"cells": [{"direction": "forward", "seconds": 1}]}',
            r"cells\[0\] lacks block_keys, block_rows, full",
        ),
    ],
)
def test_a_file_without_proper_cells_is_refused(tmp_path, content, message):
    path = tmp_path / "kernel.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(PlanError, match=message):
        read_cells(path)


def test_a_cell_that_breaks_a_rule_is_named(tmp_path):
    path = tmp_path / "kernel.json"
    fields = [vars(cell) for cell in _cells()]
    fields[3] = fields[3] | {"seconds": 0.0}
    path.write_text(json.dumps({"cells": fields}), encoding="utf-8")
    with pytest.raises(PlanError, match=r"cells\[3\]: seconds must be a finite number > 0, got 0.0"):
        read_cells(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"direction": "sideways"}, "direction must be one of forward, backward, got 'sideways'"),
        ({"full_blocks": -1}, "full_blocks must be >= 0, got -1"),
        ({"block_rows": 0}, "block_rows must be >= 1, got 0"),
        ({"seconds": float("nan")}, "seconds must be a finite number > 0, got nan"),
    ],
)
def test_a_timed_cell_is_checked(changes, message):
    with pytest.raises(PlanError, match=message):
        _cells(**changes)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (_cells("backward"), "cells must have forward times, got none"),
        (_cells(num_cells=3), "4 weights need at least 4 forward cells, got 3"),
        (
            [*_cells(), *_cells(block_keys=128)],
            "forward cells must have blocks of one size, got 128x64 and 128x128",
        ),
        (
            [*_cells(), *_cells("backward"), *_cells("backward", block_rows=64)],
            "backward cells must have blocks of one size, got 64x64 and 128x64",
        ),
        (_cells(full_blocks=0, partial_blocks=0), "the times do not grow with the blocks visited"),
    ],
)
def test_cells_that_cannot_be_fitted_are_refused(cells, message):
    with pytest.raises(PlanError, match=message):
        fit_cost_weights(cells, source="a test")


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_cell_of_a_call_counts_what_the_block_map_shows(direction):
    mask = patterns.causal_document([130, 70, 100])
    cell = TimedCell.of_call(
        mask, direction=direction, seconds=1e-3, batch=2, query_heads=6, block_rows=64, block_keys=32
    )
    blocks = BlockMap.from_mask(mask, 64, 32, method="extrema")
    assert (cell.full_blocks, cell.partial_blocks) == (12 * blocks.num_full, 12 * blocks.num_partial)
    assert cell.row_blocks == 12 * 5
    assert (cell.direction, cell.seconds, cell.block_rows, cell.block_keys) == (direction, 1e-3, 64, 32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 3}, "batch=3 must be a multiple of the mask's 2"),
        ({"query_heads": 0}, "query_heads must be >= 1"),
        ({"block_rows": 0}, "block_rows must be >= 1"),
        ({"seconds": float("nan")}, "seconds must be a finite number > 0, got nan"),
    ],
)
def test_a_call_that_does_not_fit_its_mask_is_refused(changes, message):
    vectors = (np.concatenate([one, one]) for one in patterns.causal(64).vectors)
    mask = ColumnMask(*vectors, num_rows=64)
    call = {"direction": "forward", "seconds": 1.0, "batch": 2, "query_heads": 2} | changes
    with pytest.raises(PlanError, match=message):
        TimedCell.of_call(mask, **({"block_rows": 16, "block_keys": 16} | call))


def test_cells_that_are_written_are_read_again(tmp_path):
    path = tmp_path / "kernel.json"
    path.write_text(cells_to_json(_cells(), device="H200"), encoding="utf-8")
    assert read_cells(path) == _cells()
    assert json.loads(path.read_text())["device"] == "H200"


def test_a_file_of_another_kind_is_told_by_what_it_has(tmp_path):
    path = tmp_path / "kernel.json"
    path.write_text(json.dumps({"gpu": "H200", "results": [{"cell": "full", "ms": 26.4}]}), encoding="utf-8")
    with pytest.raises(PlanError, match=r"as cells_to_json writes; it has 'gpu', 'results'"):
        read_cells(path)


@pytest.mark.parametrize("directions", [("forward",), ("forward", "backward")])
def test_a_calibration_comes_back_as_it_was(directions):
    cells = [cell for direction in directions for cell in _cells(direction, noise=0.02)]
    fit = fit_cost_weights(cells, source="a test")
    assert calibration_from_json(calibration_to_json(fit)) == fit


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "version 2 cannot be read, this FM3 reads version 1"),
        ({"format": "fm3.plan"}, 'must be an object with "format": "fm3.calibration", got \'fm3.plan\''),
        ({"seconds_per_unit": 0.0}, "seconds_per_unit must be a finite number > 0, got 0.0"),
        ({"seconds_per_unit": "1"}, "seconds_per_unit must be a finite number > 0, got '1'"),
        ({"cost": {"full_forward": -1}}, "CostWeights.full_forward must be >= 0, got -1"),
        ({"cost": {"speed": 1}}, "unexpected keyword argument 'speed'"),
        ({"forward": None}, "fm3.calibration: "),
    ],
)
def test_a_file_that_is_no_calibration_is_refused(changes, message):
    fields = json.loads(calibration_to_json(fit_cost_weights(_cells(), source="a test")))
    with pytest.raises(PlanError, match=message):
        calibration_from_json(json.dumps(fields | changes))


def test_a_unit_is_a_whole_number_of_femtoseconds():
    fit = fit_cost_weights(_cells(), source="a test")
    assert fit.unit_femtoseconds == round(PARTIAL / 10_000 * 1e15) == 3000
    assert StepSpeeds(unit_femtoseconds=fit.unit_femtoseconds).unit_femtoseconds == 3000


def test_backward_may_have_blocks_of_another_size():
    fit = fit_cost_weights([*_cells(), *_cells("backward", times=2.0, block_rows=64)], source="a test")
    alike = fit_cost_weights([*_cells(), *_cells("backward", times=2.0)], source="a test")
    assert (fit.cost.block_rows, fit.cost.block_keys) == (128, 64)
    assert (fit.cost.backward_block_rows, fit.cost.backward_block_keys) == (64, 64)
    assert (alike.cost.backward_block_rows, alike.cost.backward_block_keys) == (None, None)
    assert fit.cost.full_backward == alike.cost.full_backward
    assert calibration_from_json(calibration_to_json(fit)) == fit
