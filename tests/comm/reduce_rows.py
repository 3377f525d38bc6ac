"""Tables of the put and reduction kernels, for an all-to-one reduction."""

from __future__ import annotations

import numpy as np


def row(dtype: np.dtype, **values: int) -> np.ndarray:
    """Return a table of one row."""
    table = np.zeros(1, dtype=dtype)
    for name, value in values.items():
        table[name] = value
    return table
