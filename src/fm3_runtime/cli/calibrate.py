"""`fm3 calibrate`: cost weights from the times of a kernel benchmark."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fm3_core import PlanError
from fm3_planner import DirectionFit, fit_cost_weights, read_cells
from fm3_runtime.cli.options import AsJson
from fm3_runtime.cli.output import console, format_seconds, new_table, print_json


def calibrate(
    results: Annotated[Path, typer.Argument(help="JSON of a kernel benchmark, with its cells.")],
    as_json: AsJson = False,
) -> None:
    """Fit what FULL and PARTIAL blocks cost, forward and backward, to measured times.

    The weights that it prints are the arguments of `fm3_planner.CostWeights`.

    [bold]Example[/]

    fm3 calibrate benchmarks/results/kernel.json
    """
    if not results.is_file():
        raise PlanError(f"{results} is not a file")
    calibration = fit_cost_weights(read_cells(results), source=results.name)
    if as_json:
        print_json(
            {
                "cost": asdict(calibration.cost),
                "seconds_per_unit": calibration.seconds_per_unit,
                "forward": asdict(calibration.forward),
                "backward": None if calibration.backward is None else asdict(calibration.backward),
            }
        )
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
        f"blocks of {cost.block_rows} x {cost.block_keys}, "
        f"a unit is {format_seconds(calibration.seconds_per_unit)}"
    )
    console.print()
    console.print(table)


def _errors(fit: DirectionFit) -> tuple[str, str, str]:
    return f"{fit.mean_error:.1%}", f"{fit.worst_error:.1%}", str(fit.cells)
