"""NVSHMEM's libraries: the extension linked with the one, and the other, of which a process has one only."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
from functools import cache
from pathlib import Path
from types import ModuleType

HOST_LIBRARY = "libnvshmem_host.so.3"
WHEEL = "nvidia-nvshmem-cu13"


@cache
def load() -> ModuleType:
    """Return `fm3_comm._C`, with the host library that this process has, or else the wheel's.

    Raises:
        ImportError: one of them is missing, or their versions differ; it says how to get what is missing.
    """
    if importlib.util.find_spec("fm3_comm._C") is None:
        raise ImportError(
            f"fm3_comm._C was not built; install fm3 from source with nvcc 12.8 or newer and {WHEEL} "
            "(pip install --no-build-isolation)"
        )
    _load_host_library()
    extension = importlib.import_module("fm3_comm._C")
    require_same_version(extension.build_info()["nvshmem"], extension.host_library_version())
    return extension


def require_same_version(device: list[int], host: list[int]) -> None:
    """Raise ImportError unless device and host library have one version, [major, minor, patch]."""
    if list(device) != list(host):
        has, loaded = (".".join(map(str, version)) for version in (device, host))
        raise ImportError(
            f"fm3_comm._C was linked with NVSHMEM {has} for the device, this process has loaded {loaded} for "
            f"the host ({HOST_LIBRARY}); they must be equal: install {WHEEL}=={loaded} and fm3 anew"
        )


def _load_host_library() -> None:
    try:
        # Torch may have loaded it: a second one, of another path, would be another NVSHMEM.
        ctypes.CDLL(HOST_LIBRARY, mode=ctypes.RTLD_GLOBAL | os.RTLD_NOLOAD)
    except OSError:
        ctypes.CDLL(str(_wheel_library()), mode=ctypes.RTLD_GLOBAL)


def _wheel_library() -> Path:
    spec = importlib.util.find_spec("nvidia.nvshmem") if importlib.util.find_spec("nvidia") else None
    for folder in () if spec is None else spec.submodule_search_locations or ():
        library = Path(folder) / "lib" / HOST_LIBRARY
        if library.exists():
            return library
    raise ImportError(f"{HOST_LIBRARY} was not found; pip install {WHEEL}")
