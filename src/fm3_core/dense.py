"""The definition of a column mask, written as the dense mask it stands for. The oracle of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fm3_core.mask import ColumnMask


def visible(mask: ColumnMask) -> NDArray[np.bool_]:
    """Return bool [batch, heads, rows, keys]: row i sees key k iff i is in neither hidden span of k.

    Memory is O(rows * keys): for tests, small masks and pictures.
    """
    row = np.arange(mask.num_rows, dtype=np.int64)[:, None]
    lts, lte, uts, ute = (vector[:, :, None, :] for vector in mask.vectors)
    in_lower = (lts <= row) & (row < lte)
    in_upper = (uts <= row) & (row < ute)
    seen: NDArray[np.bool_] = ~(in_lower | in_upper)
    return seen
