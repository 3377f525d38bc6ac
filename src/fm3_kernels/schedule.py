"""Which keys a row block visits: runs of adjacent visible key blocks, and the cuts inside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fm3_kernels.extrema import EMPTY_BLOCK, LOWER_CUTS, UPPER_CUTS, BlockExtrema


@dataclass(frozen=True)
class Cut:
    """Keys [start, end) of which some rows of the row block are hidden, and by which spans."""

    start: int
    end: int
    lower: bool
    upper: bool


@dataclass(frozen=True)
class Run:
    """Adjacent keys [start, end) that one matrix product covers; all visible but for the cuts."""

    start: int
    end: int
    cuts: tuple[Cut, ...]


def visible_runs(
    extrema: BlockExtrema,
    batch: int,
    head: int,
    row_start: int,
    row_end: int,
    *,
    num_keys: int,
    max_keys: int,
) -> Iterator[Run]:
    """Yield the runs that the rows [row_start, row_end) visit, in ascending order; EMPTY blocks are in none.

    Args:
        extrema: of the mask.
        batch: mask batch entry.
        head: mask head.
        row_start: first row of the block.
        row_end: row behind it, clamped to the mask's rows.
        num_keys: keys of the mask; the last block ends there.
        max_keys: longest run, a multiple of the extrema's block.
    """
    codes = extrema.classify(batch, head, row_start, row_end)
    run_start, run_end = 0, 0
    cuts: list[Cut] = []
    for code, first, last in _stretches(codes):
        if code == EMPTY_BLOCK:
            continue
        start, stretch_end = first * extrema.block_keys, min(last * extrema.block_keys, num_keys)
        while start < stretch_end:
            if run_end > run_start and (start > run_end or run_end == run_start + max_keys):
                yield Run(run_start, run_end, tuple(cuts))
                run_start, run_end, cuts = start, start, []
            if run_end == run_start:
                run_start = start
            run_end = min(stretch_end, run_start + max_keys)
            if code:
                cuts.append(Cut(start, run_end, bool(code & LOWER_CUTS), bool(code & UPPER_CUTS)))
            start = run_end
    if run_end > run_start:
        yield Run(run_start, run_end, tuple(cuts))


def _stretches(codes: NDArray[np.uint8]) -> Iterator[tuple[int, int, int]]:
    """Yield (code, first block, block behind the last) for each stretch of equal codes."""
    if len(codes) == 0:
        return
    edges = [0, *(np.flatnonzero(codes[1:] != codes[:-1]) + 1).tolist(), len(codes)]
    for first, last in pairwise(edges):
        yield int(codes[first]), first, last
