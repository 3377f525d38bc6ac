"""`Results`: a JSON file that measurements are merged into, and geometric means over it."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field
from math import exp, log
from pathlib import Path
from typing import Any

PEERS = json.loads((Path(__file__).parents[1] / "data" / "kernel_peers.json").read_text(encoding="utf-8"))[
    "tflops"
]
"""TFLOP/s of published kernels: tokens, mask, engine, [forward, backward]; bf16, 32 heads of dim 128."""

PEER_SHAPE = {"heads": 32, "kv_heads": 32, "dim": 128, "dtype": "bfloat16"}
PASSES = ("forward", "backward", "both")
_KEY = ("cell", "tokens", "engine", "heads", "kv_heads", "dim", "dtype")


@dataclass
class Results:
    """Results by cell, engine and shape.

    The file has "results" (TFLOP/s of each pass), and "cells" as `fm3 calibrate` reads them: one for each
    pass of this project's kernels, with counts of blocks and seconds.
    """

    path: Path
    content: dict[str, Any] = field(default_factory=lambda: {"results": [], "cells": []})

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read a file, or start an empty one."""
        if not path.exists():
            return cls(path)
        return cls(path, json.loads(path.read_text(encoding="utf-8")))

    def keep(self, record: dict[str, Any], cells: list[dict[str, Any]] = ()) -> None:  # type: ignore[assignment]
        """Put a result in place of an older one of the same cell, engine and shape, and write the file."""
        for name, new in (("results", [record]), ("cells", list(cells))):
            old = [other for other in self.content[name] if _key(other) != _key(record)]
            self.content[name] = old + new
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.content, indent=1) + "\n", encoding="utf-8")

    def has(self, record: dict[str, Any], passes: list[str]) -> bool:
        """Say whether the file has these passes of such a result, or that it is wrong or not there."""
        found = [other for other in self.content["results"] if _key(other) == _key(record)]
        return bool(found) and ("reason" in found[0] or all(which in found[0] for which in passes))

    def rates(self, engine: str, which: str, shape: dict[str, Any]) -> dict[tuple[str, int], float]:
        """Return TFLOP/s by (mask, tokens)."""
        return {
            (other["cell"], other["tokens"]): other[which]
            for other in self.content["results"]
            if other["engine"] == engine and which in other and shape.items() <= other.items()
        }


def _key(record: dict[str, Any]) -> tuple[object, ...]:
    return tuple(record.get(name) for name in _KEY)


def geometric_mean(ratios: list[float]) -> float | None:
    """Return the geometric mean, None of nothing."""
    return exp(statistics.fmean(map(log, ratios))) if ratios else None


def best_peers(which: str) -> dict[tuple[str, int], float]:
    """Return the best published figure of each (mask, tokens); both passes together by their times."""
    best = {}
    for tokens, masks in PEERS.items():
        for name, engines in masks.items():
            forward, backward = (max(figures[i] for figures in engines.values()) for i in range(2))
            best[name, int(tokens)] = {
                "forward": forward,
                "backward": backward,
                "both": 14 / (4 / forward + 10 / backward),
            }[which]
    return best


def ratios(mine: dict[tuple[str, int], float], theirs: dict[tuple[str, int], float]) -> list[float]:
    """Return mine over theirs, where both have a figure."""
    return [rate / theirs[key] for key, rate in mine.items() if key in theirs]


def summary(results: Results, engines: list[str], passes: list[str], shape: dict[str, Any]) -> list[str]:
    """Return lines: each engine's geometric means over published figures and over other engines here."""
    lines = []
    for engine in engines:
        for which in passes:
            mine = results.rates(engine, which, shape)
            if not mine:
                continue
            against = {"the best peer's": best_peers(which)} if shape == PEER_SHAPE else {}
            against |= {
                f"{other}'s": results.rates(other, which, shape) for other in engines if other != engine
            }
            parts = [
                f"{mean:.3f} x {name}"
                for name, theirs in against.items()
                if (mean := geometric_mean(ratios(mine, theirs))) is not None
            ]
            lines.append(f"{engine}, {which}, {len(mine)} cells: " + ("; ".join(parts) or "alone"))
    return lines
