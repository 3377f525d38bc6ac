"""The backends that come with this package, and the choice among them."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from fm3_comm.backend import ExchangeBackend, backends
from fm3_comm.loopback import LoopbackKind, solo
from fm3_comm.symmetric import SymmetricKind, memories
from fm3_comm.torch_dist import TorchDistKind

backends.register("loopback", LoopbackKind())
backends.register("torch_dist", TorchDistKind())
for memory in memories.names():
    backends.register(memory, SymmetricKind(memory))


def connect(
    group: Any = None, *, backend: str = "auto", timeout_seconds: float | None = None
) -> ExchangeBackend:
    """Return this rank's handle.

    Args:
        group: a handle, which is returned as it is; a torch.distributed process group; or None.
        backend: a name in `backends`. "auto": a handle is its own backend; a process group, and None where
            torch.distributed is initialised, mean "torch_dist"; None elsewhere is a world of one rank.
        timeout_seconds: longest wait for a peer in one operation; None for the backend's or group's default.

    Raises:
        UnknownNameError: `backend` is not registered.
        ExchangeError, UnsupportedError: the group is not one of the backend's.
    """
    if backend != "auto":
        return backends.get(backend).connect(group, timeout_seconds=timeout_seconds)
    if isinstance(group, ExchangeBackend):
        return group
    if group is None and not (dist.is_available() and dist.is_initialized()):
        return solo()
    return backends.get("torch_dist").connect(group, timeout_seconds=timeout_seconds)
