"""Published figures of other kernels, and what they come to on this machine in this run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "data" / "peer_figures.json"
PASSES = ("forward", "backward", "both")
YARDSTICK = "FlexAttention"
SCORED_LENGTHS = (8192, 32768, 131072)

Rates = dict[tuple[str, int], float]
"""TFLOP/s, or ratios, by (mask, tokens)."""


def shape_key(heads: int, kv_heads: int, dim: int, dtype: str = "bfloat16") -> dict[str, int | str]:
    """Return what tells results of one shape from those of another."""
    return {"heads": heads, "kv_heads": kv_heads, "dim": dim, "dtype": dtype}


USUAL = shape_key(32, 32, 128)
GROUPED = shape_key(32, 8, 128)
DIM_64 = shape_key(64, 64, 64)


def peer_figures(shape: Mapping[str, Any]) -> dict[tuple[str, int], dict[str, tuple[float, float]]]:
    """Return (forward, backward) of each engine, by (mask, tokens); empty for a shape without a table."""
    return {
        (mask, int(tokens)): {engine: (pair[0], pair[1]) for engine, pair in engines.items()}
        for table in json.loads(FILE.read_text(encoding="utf-8"))["tables"]
        if shape.items() <= table.items()
        for tokens, masks in table["tflops"].items()
        for mask, engines in masks.items()
    }


def together(forward: float, backward: float) -> float:
    """Return TFLOP/s of both passes, 4 and 10 operations, from those of each."""
    return 14 / (4 / forward + 10 / backward)


def of_pass(which: str, forward: float, backward: float) -> float:
    """Return the figure of a pass."""
    return {"forward": forward, "backward": backward, "both": together(forward, backward)}[which]


def peer_rates(shape: Mapping[str, Any], which: str, engine: str) -> Rates:
    """Return an engine's published figures."""
    return {
        cell: of_pass(which, *engines[engine])
        for cell, engines in peer_figures(shape).items()
        if engine in engines
    }


def best_rates(shape: Mapping[str, Any], which: str) -> Rates:
    """Return the best published figure of each cell; of both passes, from the best of each whoever's."""
    return {
        cell: of_pass(which, *(max(pair[i] for pair in engines.values()) for i in range(2)))
        for cell, engines in peer_figures(shape).items()
    }


def scaled(published: Rates, shape: Mapping[str, Any], which: str, yardstick: Rates) -> Rates:
    """Return published figures as they would be here: yardstick here x figure / published yardstick.

    Absolute figures drift with clock and heat, ratios within a run do not. Cells where the yardstick was not
    timed here, or is not published, keep the published figure.

    Args:
        published: figures of the table.
        shape: of the tensors.
        which: the pass.
        yardstick: FlexAttention's TFLOP/s in this run.
    """
    reference = peer_rates(shape, which, YARDSTICK)
    return {
        cell: rate * yardstick[cell] / reference[cell] if cell in yardstick and cell in reference else rate
        for cell, rate in published.items()
    }
