"""`Results`: a JSON file that measurements are merged into, and means over it."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from pathlib import Path
from typing import Any

from kernel.peers import Rates

_KEY = ("cell", "tokens", "engine", "heads", "kv_heads", "dim", "dtype", "ranks")
_EMPTY = ("runs", "results", "cells")


@dataclass
class Results:
    """Results by cell, engine and shape.

    The file has three lists. "runs": GPU, versions and date of each run that added something. "results": one
    for each cell, engine and shape, with TFLOP/s by pass, the number of the run that each pass is of, what
    is missing and why, or what is wrong. "cells", as `fm3 calibrate` reads them: one for each pass of this
    project's kernels, with counts of blocks and seconds.
    """

    path: Path
    content: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {name: [] for name in _EMPTY})
    run: int = -1

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read a file, or start an empty one."""
        if not path.exists():
            return cls(path)
        return cls(path, json.loads(path.read_text(encoding="utf-8")))

    @classmethod
    def joined(cls, paths: Sequence[Path]) -> Results:
        """Return what several files have, to be read; a run keeps its own number."""
        joined = cls(Path("nowhere"))
        for path in paths:
            content, before = cls.read(path).content, len(joined.content["runs"])
            joined.content["runs"] += content["runs"]
            joined.content["cells"] += content["cells"]
            joined.content["results"] += [
                {**other, "run": {which: before + run for which, run in other["run"].items()}}
                for other in content["results"]
            ]
        return joined

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Start a run: what is kept from now on is of it."""
        self.content["runs"].append(dict(facts))
        self.run = len(self.content["runs"]) - 1

    def keep(
        self,
        key: Mapping[str, Any],
        *,
        tflops: Mapping[str, float] | None = None,
        missing: Mapping[str, str] | None = None,
        wrong: str | None = None,
        cells: Sequence[Mapping[str, Any]] = (),
        **facts: Any,
    ) -> None:
        """Merge a result into the file: passes that were timed now take the place of older ones.

        Args:
            key: cell, tokens, engine and shape.
            tflops: by pass.
            missing: why a pass has no time.
            wrong: why no pass has one.
            cells: counted blocks and seconds, of the passes timed now.
            facts: anything else about the cell.
        """
        tflops, missing = tflops or {}, missing or {}
        old = self.find(key) or {}
        record: dict[str, Any] = {**key, **facts}
        if wrong is not None:
            record |= {"wrong": wrong, "run": {"wrong": self.run}}
        else:
            still = {which: why for which, why in old.get("missing", {}).items() if which not in tflops}
            record |= {name: old[name] for name in old if name not in record and name not in ("wrong", "run")}
            record["tflops"] = {**old.get("tflops", {}), **tflops}
            record["missing"] = {**still, **missing}
            record["run"] = {
                **{which: run for which, run in old.get("run", {}).items() if which in record["tflops"]},
                **dict.fromkeys(tflops, self.run),
            }
        results = [other for other in self.content["results"] if not _same(other, key)]
        self.content["results"] = [*results, record]
        self._keep_cells(key, tflops, cells, forget=wrong is not None)
        self.write()

    def _keep_cells(
        self,
        key: Mapping[str, Any],
        timed: Mapping[str, float],
        cells: Sequence[Mapping[str, Any]],
        *,
        forget: bool,
    ) -> None:
        kept = [
            other
            for other in self.content["cells"]
            if not (_same(other, key) and (forget or other["direction"] in timed))
        ]
        self.content["cells"] = kept + [{**key, **cell} for cell in cells]

    def write(self) -> None:
        """Write the file whole or not at all: a run may be ended at any moment."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".partial")
        beside.write_text(json.dumps(self.content, indent=1) + "\n", encoding="utf-8")
        os.replace(beside, self.path)

    def find(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what the file has of a cell, engine and shape."""
        return next((other for other in self.content["results"] if _same(other, key)), None)

    def lacks(self, key: Mapping[str, Any], passes: Sequence[str]) -> list[str]:
        """Return the passes that the file neither has nor says why not."""
        found = self.find(key)
        if found is None:
            return list(passes)
        if "wrong" in found:
            return []
        return [which for which in passes if which not in {**found["tflops"], **found["missing"]}]

    def of_shape(self, engine: str, shape: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return an engine's results of a shape."""
        return [
            other
            for other in self.content["results"]
            if other["engine"] == engine and shape.items() <= other.items()
        ]

    def rates(self, engine: str, which: str, shape: Mapping[str, Any]) -> Rates:
        """Return TFLOP/s by (mask, tokens)."""
        return {
            (other["cell"], other["tokens"]): other["tflops"][which]
            for other in self.of_shape(engine, shape)
            if which in other.get("tflops", {})
        }

    def engines(self, shape: Mapping[str, Any]) -> list[str]:
        """Return the engines that have results of a shape, in the order in which they came."""
        return list(
            dict.fromkeys(
                other["engine"] for other in self.content["results"] if shape.items() <= other.items()
            )
        )

    def runs_of(self, engine: str, which: str, shape: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the runs that an engine's figures are of."""
        numbers = {
            other["run"][which] for other in self.of_shape(engine, shape) if which in other.get("tflops", {})
        }
        return [self.content["runs"][number] for number in sorted(numbers)]


def _same(record: Mapping[str, Any], key: Mapping[str, Any]) -> bool:
    return all(record.get(name) == key.get(name) for name in _KEY)


def geometric_mean(ratios: Sequence[float]) -> float | None:
    """Return the geometric mean, None of nothing."""
    return exp(statistics.fmean(map(log, ratios))) if ratios else None


def ratios(mine: Rates, theirs: Rates) -> Rates:
    """Return mine over theirs, where both have a figure."""
    return {cell: rate / theirs[cell] for cell, rate in mine.items() if cell in theirs}
