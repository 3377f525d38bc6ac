"""`fm3 calibrate`: cost weights from the times of a kernel benchmark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fm3_core import PlanError
from fm3_planner import CostWeights, DirectionFit, calibration_to_json, fit_cost_weights, read_cells
from fm3_runtime.cli.options import AsJson
from fm3_runtime.cli.output import console, new_table, print_json, write_text


def calibrate(
    results: Annotated[Path, typer.Argument(help="JSON of a kernel benchmark, with its cells.")],
    save: Annotated[
        Path | None, typer.Option(help="Also write the calibration as JSON, for --cost of other verbs.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fit what FULL and PARTIAL blocks cost, forward and backward, to measured times.

    The weights that it prints are the arguments of `fm3_planner.CostWeights`; `fm3_planner.cells_to_json`
    writes what it reads.

    [bold]Example[/]

    fm3 calibrate kernel.json --save calibration.json
    """
    if not results.is_file():
        raise PlanError(f"{results} is not a file")
    calibration = fit_cost_weights(read_cells(results), source=results.name)
    if save is not None:
        write_text(save, calibration_to_json(calibration))
    if as_json:
        print_json(json.loads(calibration_to_json(calibration)))
        return
    cost = calibration.cost
    table = new_table("direction", "full block", "partial block", "row block", "mean error", "worst", "cells")
    for name, fit, weights in (
        ("forward", calibration.forward, (cost.full_forward, cost.partial_forward, cost.row_block_forward)),
        (
            "backward",
            calibration.backward,
            (cost.full_backward, cost.partial_backward, cost.row_block_backward),
        ),
    ):
        if fit is not None:
            table.add_row(name, *(f"{weight:,}" for weight in weights), *_errors(fit))
    console.print(f"[bold]{cost.provenance}[/]")
    console.print(
        f"blocks of {cost.block_rows} x {cost.block_keys}{_backward_blocks(cost)}, "
        f"a unit is {1e12 * calibration.seconds_per_unit:.3g} ps"
    )
    console.print()
    console.print(table)
    if save is not None:
        console.print(f"written into {save}", markup=False)


def _backward_blocks(cost: CostWeights) -> str:
    sizes = cost.by_block_size()
    return "" if len(sizes) == 1 else f" forward and {sizes[1][0]} x {sizes[1][1]} backward"


def _errors(fit: DirectionFit) -> tuple[str, str, str]:
    return f"{fit.mean_error:.1%}", f"{fit.worst_error:.1%}", str(fit.cells)
