"""Rules about files as such: their length and their names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

MAX_LINES = 500
FOLDERS = ("src", "csrc", "cmake", "tests", "benchmarks", "examples")
SUFFIXES = (".py", ".pyi", ".cu", ".cuh", ".h", ".cpp", ".cmake")
DRAWERS = frozenset({"common", "helper", "helpers", "manager", "misc", "util", "utils"})


def long_files(root: Path) -> list[str]:
    """Return files of more than 500 lines."""
    counts = ((path, len((root / path).read_bytes().splitlines())) for path in _files(root))
    return [f"{path}: {lines} lines" for path, lines in counts if lines > MAX_LINES]


def drawers(root: Path) -> list[str]:
    """Return files and folders named for holding anything, not for what they hold."""
    return [str(path) for path in _files(root) if DRAWERS & {Path(part).stem for part in path.parts}]


def _files(root: Path) -> Iterator[Path]:
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix in SUFFIXES:
                yield file.relative_to(root)
