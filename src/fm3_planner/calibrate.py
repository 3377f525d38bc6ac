"""Cost weights fitted to the times of a kernel, with the error of the fit.

A kernel benchmark's JSON has "cells". Each has a direction ("forward" or "backward"), the blocks that the
kernel visits over all batch entries and query heads ("full_blocks", "partial_blocks"), blocks of rows
("row_blocks"), a block's size ("block_rows", "block_keys") and the time ("seconds"); other keys are ignored.
"""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fm3_core.check import require_int
from fm3_core.errors import PlanError
from fm3_core.mask import ColumnMask
from fm3_core.workload import block_counts
from fm3_planner.weights import CostWeights, row_bounds

DIRECTIONS = ("forward", "backward")
UNITS = 10_000
"""Integer units of the dearest block; others are rounded to a ten-thousandth of it."""
_TERMS = ("full_blocks", "partial_blocks", "row_blocks")


@dataclass(frozen=True, kw_only=True)
class TimedCell:
    """One measured call of the kernel.

    Attributes:
        direction: "forward" or "backward".
        full_blocks: wholly visible blocks visited, over batch entries and query heads.
        partial_blocks: blocks visited that the mask cuts.
        row_blocks: blocks of rows, over batch entries and query heads.
        block_rows: query rows of a block.
        block_keys: keys of a block.
        seconds: time of the call.

    Raises:
        PlanError: a field breaks its rule.
    """

    direction: str
    full_blocks: int
    partial_blocks: int
    row_blocks: int
    block_rows: int
    block_keys: int
    seconds: float

    def __post_init__(self) -> None:
        """Validate every field."""
        if self.direction not in DIRECTIONS:
            raise PlanError(f"direction must be one of {', '.join(DIRECTIONS)}, got {self.direction!r}")
        for name in _TERMS:
            require_int(name, getattr(self, name), error=PlanError)
        for name in ("block_rows", "block_keys"):
            require_int(name, getattr(self, name), minimum=1, error=PlanError)
        seconds = self.seconds
        is_number = isinstance(seconds, numbers.Real) and not isinstance(seconds, bool)
        if not is_number or not math.isfinite(seconds) or seconds <= 0:
            raise PlanError(f"seconds must be a finite number > 0, got {seconds!r}")

    @classmethod
    def of_call(
        cls,
        mask: ColumnMask,
        *,
        direction: str,
        seconds: float,
        batch: int,
        query_heads: int,
        block_rows: int,
        block_keys: int,
    ) -> TimedCell:
        """Make the cell of one call of a kernel: what it visits is counted from the mask.

        Args:
            mask: the call's mask.
            direction: "forward" or "backward".
            seconds: time of the call.
            batch: entries of q, a multiple of the mask's.
            query_heads: heads of q, a multiple of the mask's.
            block_rows: query rows of the kernel's block.
            block_keys: keys of it.

        Raises:
            PlanError: an argument breaks its rule.
        """
        calls = 1
        for name, value, of_mask in (
            ("batch", batch, mask.batch),
            ("query_heads", query_heads, mask.heads),
        ):
            require_int(name, value, minimum=1, error=PlanError)
            if not of_mask or value % of_mask:
                raise PlanError(f"{name}={value} must be a multiple of the mask's {of_mask}")
            calls *= value // of_mask
        for name, value in (("block_rows", block_rows), ("block_keys", block_keys)):
            require_int(name, value, minimum=1, error=PlanError)
        bounds, _ = row_bounds(mask.num_rows, max(mask.num_rows, 1), block_rows)
        full, partial = block_counts(mask, bounds, block_keys)
        return cls(
            direction=direction,
            full_blocks=calls * int(full.sum()),
            partial_blocks=calls * int(partial.sum()),
            row_blocks=batch * query_heads * (len(bounds) - 1),
            block_rows=block_rows,
            block_keys=block_keys,
            seconds=seconds,
        )


@dataclass(frozen=True, kw_only=True)
class DirectionFit:
    """How well block counts explain the times of one direction.

    Attributes:
        cells: how many were fitted.
        call_seconds: time of a call that visits nothing; it weighs on all ranks alike and is in no weight.
        full_seconds: time of a wholly visible block.
        partial_seconds: time of a block that the mask cuts.
        row_block_seconds: time of a block of rows beside the blocks it visits.
        mean_error: mean of |predicted - measured| / measured.
        worst_error: the largest of them.
    """

    cells: int
    call_seconds: float
    full_seconds: float
    partial_seconds: float
    row_block_seconds: float
    mean_error: float
    worst_error: float


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Fitted weights and the fits they come from.

    Attributes:
        cost: integer weights; the dearest block has `UNITS`.
        seconds_per_unit: time of one unit of cost, where the whole device works on it.
        forward: fit of the forward times.
        backward: fit of the backward times, None where none were measured; backward weights are 0 then.
    """

    cost: CostWeights
    seconds_per_unit: float
    forward: DirectionFit
    backward: DirectionFit | None

    @property
    def unit_femtoseconds(self) -> int:
        """`seconds_per_unit` for `StepSpeeds`, an integer >= 1."""
        return max(1, round(self.seconds_per_unit * 1e15))


def cells_to_json(cells: Iterable[TimedCell], **about: Any) -> str:
    """Return what `read_cells` reads; `about` says what was measured and where, as JSON values."""
    return json.dumps({**about, "cells": [asdict(cell) for cell in cells]}, indent=1)


def read_cells(path: Path) -> list[TimedCell]:
    """Return the cells of a kernel benchmark's JSON file.

    Raises:
        PlanError: the file has no cells, or a cell lacks a field or breaks a rule; names the cell.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as failure:
        raise PlanError(f"{path} cannot be read: {failure.strerror}") from failure
    except ValueError as failure:
        raise PlanError(f"{path} is no JSON: {failure}") from failure
    cells = content.get("cells") if isinstance(content, Mapping) else None
    if not isinstance(cells, list) or not cells:
        found = ", ".join(map(repr, content)) if isinstance(content, Mapping) else type(content).__name__
        raise PlanError(
            f'{path} must have a list "cells" with at least one cell, as cells_to_json writes; it has '
            f"{found or 'nothing'}"
        )
    return [_cell(f"{path}: cells[{index}]", cell) for index, cell in enumerate(cells)]


def fit_cost_weights(cells: Iterable[TimedCell], *, source: str) -> Calibration:
    """Fit cost weights to measured times: least squares of the relative error, no weight below 0.

    Args:
        cells: measured calls, forward ones among them; blocks of a direction have one size.
        source: what was measured and where; becomes part of the weights' provenance.

    Raises:
        PlanError: there are no forward cells, fewer cells of a direction than weights to fit, or blocks of
            several sizes in a direction.
    """
    measured = list(cells)
    by_direction = {
        direction: [cell for cell in measured if cell.direction == direction] for direction in DIRECTIONS
    }
    if not by_direction["forward"]:
        raise PlanError("cells must have forward times, got none")
    block_rows, block_keys = _block_size("forward", by_direction["forward"])
    backward_size: tuple[int | None, int | None] = (None, None)
    if by_direction["backward"]:
        found = _block_size("backward", by_direction["backward"])
        backward_size = (None, None) if found == (block_rows, block_keys) else found
    forward = _fit("forward", by_direction["forward"])
    backward = _fit("backward", by_direction["backward"]) if by_direction["backward"] else None
    fits = [fit for fit in (forward, backward) if fit is not None]
    dearest = max(max(fit.full_seconds, fit.partial_seconds) for fit in fits)
    if dearest == 0:
        raise PlanError("the times do not grow with the blocks visited; nothing can be fitted")
    unit = dearest / UNITS

    def units(fit: DirectionFit | None, name: str) -> int:
        return 0 if fit is None else round(getattr(fit, name) / unit)

    errors = ", ".join(
        f"{direction} {fit.mean_error:.1%} mean and {fit.worst_error:.1%} worst over {fit.cells} cells"
        for direction, fit in zip(DIRECTIONS, (forward, backward), strict=True)
        if fit is not None
    )
    cost = CostWeights(
        full_forward=units(forward, "full_seconds"),
        partial_forward=units(forward, "partial_seconds"),
        full_backward=units(backward, "full_seconds"),
        partial_backward=units(backward, "partial_seconds"),
        row_block_forward=units(forward, "row_block_seconds"),
        row_block_backward=units(backward, "row_block_seconds"),
        block_rows=block_rows,
        block_keys=block_keys,
        backward_block_rows=backward_size[0],
        backward_block_keys=backward_size[1],
        provenance=f"fitted to {source}; error {errors}",
    )
    return Calibration(cost=cost, seconds_per_unit=unit, forward=forward, backward=backward)


def _block_size(direction: str, cells: Sequence[TimedCell]) -> tuple[int, int]:
    """Return the rows and keys that the blocks of all cells of a direction have, or raise."""
    sizes = sorted({(cell.block_rows, cell.block_keys) for cell in cells})
    if len(sizes) > 1:
        found = " and ".join(f"{rows}x{keys}" for rows, keys in sizes)
        raise PlanError(f"{direction} cells must have blocks of one size, got {found}")
    return sizes[0]


def _fit(direction: str, cells: Sequence[TimedCell]) -> DirectionFit:
    """Fit seconds = call + full * full blocks + partial * partial blocks + row * row blocks."""
    columns = len(_TERMS) + 1
    if len(cells) < columns:
        raise PlanError(f"{columns} weights need at least {columns} {direction} cells, got {len(cells)}")
    counts = np.array([[1, *(getattr(cell, name) for name in _TERMS)] for cell in cells], dtype=np.float64)
    seconds = np.array([cell.seconds for cell in cells], dtype=np.float64)
    weights = _least_squares_above_zero(counts / seconds[:, None], np.ones(len(cells)))
    error = np.abs(counts @ weights - seconds) / seconds
    call, full, partial, row_block = (float(weight) for weight in weights)
    return DirectionFit(
        cells=len(cells),
        call_seconds=call,
        full_seconds=full,
        partial_seconds=partial,
        row_block_seconds=row_block,
        mean_error=float(error.mean()),
        worst_error=float(error.max()),
    )


def _least_squares_above_zero(
    matrix: NDArray[np.float64], target: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the x >= 0 with the least squares of matrix @ x - target, by trying which entries are 0."""
    scale = np.where(matrix.any(axis=0), np.abs(matrix).max(axis=0), 1.0)
    best, least = np.zeros(matrix.shape[1]), float(target @ target)
    for size in range(1, matrix.shape[1] + 1):
        for chosen in combinations(range(matrix.shape[1]), size):
            part = matrix[:, chosen] / scale[list(chosen)]
            solution = np.linalg.lstsq(part, target, rcond=None)[0]
            error = part @ solution - target
            squares = float(error @ error)
            if (solution >= 0).all() and squares < least * (1 - 1e-9):
                best = np.zeros(matrix.shape[1])
                best[list(chosen)] = solution / scale[list(chosen)]
                least = squares
    return best


def _cell(name: str, cell: Any) -> TimedCell:
    if not isinstance(cell, Mapping):
        raise PlanError(f"{name} must be an object, got {type(cell).__name__}")
    fields = TimedCell.__dataclass_fields__
    missing = sorted(set(fields) - set(cell))
    if missing:
        raise PlanError(f"{name} lacks {', '.join(missing)}")
    try:
        return TimedCell(**{field: cell[field] for field in fields})
    except PlanError as wrong:
        raise PlanError(f"{name}: {wrong}") from wrong
