"""Tables of the put and reduction kernels, for an all-to-one reduction."""

from __future__ import annotations

import numpy as np

PUT = np.dtype(
    [("target", "<u8")]
    + [
        (name, "<i4")
        for name in (
            "target_rank",
            "contribution",
            "slot",
            "num_tokens",
            "final_flag",
            "opened",
            "bits",
            "padding",
        )
    ]
)
SUMMED = np.dtype(
    [
        (name, "<i4")
        for name in (
            "first_contribution",
            "num_contributions",
            "own_place",
            "slot",
            "num_tokens",
            "bits",
            "expected",
            "summed",
            "own_final",
            "padding",
        )
    ]
)


def row(dtype: np.dtype, **values: int) -> np.ndarray:
    """Return a table of one row."""
    table = np.zeros(1, dtype=dtype)
    for name, value in values.items():
        table[name] = value
    return table
