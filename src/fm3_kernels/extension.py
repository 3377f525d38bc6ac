"""The CUDA extension `fm3_kernels._C`, where it was built."""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType

WHY_ABSENT = (
    "fm3_kernels._C was not built here: the install found no nvcc to use; with CUDA's compiler installed, "
    "`pip install` builds it"
)


@cache
def load_extension() -> ModuleType | None:
    """Return the extension, or None where it was not built."""
    try:
        return importlib.import_module("fm3_kernels._C")
    except ModuleNotFoundError:
        return None
