"""In which dtype attention is accumulated."""

from __future__ import annotations

import torch

BITS = {torch.float32: torch.int32, torch.float64: torch.int64}
"""The integer dtype of the same width as each accumulation dtype."""


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which inputs of `dtype` are accumulated: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32
