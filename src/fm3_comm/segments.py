"""Cutting a rank's gathered chunks into parts of about equal size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

DEFAULT_SEGMENTS = 4
"""Parts of the backward pass whose gradients leave on their own."""


def cut_segments(chunks: Sequence[int], lengths: Sequence[int], count: int) -> list[list[int]]:
    """Cut chunks into runs of about equally many tokens; there may be fewer chunks than runs.

    Args:
        chunks: ascending.
        lengths: tokens of each.
        count: runs.
    """
    ends = np.cumsum(np.asarray(lengths, dtype=np.int64))
    total = int(ends[-1]) if len(ends) else 0
    # A chunk belongs to the run that holds its middle.
    middles = 2 * ends - np.asarray(lengths, dtype=np.int64)
    run = np.minimum(middles * count // max(2 * total, 1), count - 1)
    return [[chunk for chunk, r in zip(chunks, run, strict=True) if r == i] for i in range(count)]
