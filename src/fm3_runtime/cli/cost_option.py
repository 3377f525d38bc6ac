"""Cost weights as a file: what `fm3 calibrate --save` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fm3_core import PlanError
from fm3_planner import Calibration, CostWeights, calibration_from_json

Cost = Annotated[
    Path | None,
    typer.Option(help="Calibration of `fm3 calibrate --save`. By default costs of blocks are assumed."),
]


def read_calibration(file: Path) -> Calibration:
    """Return a saved calibration, or raise PlanError with the file's name and the reason."""
    try:
        return calibration_from_json(file.read_text(encoding="utf-8"))
    except OSError as failure:
        raise PlanError(f"{file} cannot be read: {failure.strerror}") from failure
    except UnicodeDecodeError as failure:
        raise PlanError(f"{file} is no text") from failure
    except PlanError as wrong:
        raise PlanError(f"{file}: {wrong}") from wrong


def cost_weights(file: Path | None) -> CostWeights:
    """Return the weights of a file, or the assumed ones."""
    return CostWeights() if file is None else read_calibration(file).cost
