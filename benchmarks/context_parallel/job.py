"""`Job`: the ranks of a benchmark that torchrun started, and what they agree on."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from fm3_comm import ExchangeBackend, backends, connect
from fm3_comm.symmetric import SymmetricKind
from fm3_comm.symmetric.backend import SymmetricOptions

T = TypeVar("T")

NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "NVSHMEM_DISABLE_NVLS": "1"}
"""NVLink multicast stays off, whatever the caller's environment says."""

ONE_HOST = {
    "CUDA_MODULE_LOADING": "EAGER",
    "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME": "lo",
    "NVSHMEM_REMOTE_TRANSPORT": "none",
    "NVSHMEM_SYMMETRIC_SIZE": "8G",
}
"""What NVSHMEM must know of ranks on one host, unless the caller's environment says otherwise."""


@dataclass(eq=False)
class Job:
    """One rank's view.

    Args:
        rank: this rank.
        num_ranks: ranks in all.
        device: what this rank computes on.
        data: the group of the baselines' own tensors; backends have theirs.
        control: a gloo group for what is agreed on.
    """

    rank: int
    num_ranks: int
    device: torch.device
    data: Any
    control: Any
    _handles: dict[tuple[str, int | None], ExchangeBackend] = field(default_factory=dict)

    @classmethod
    def join(cls, device: str, timeout_seconds: float) -> Job:
        """Join the ranks that torchrun started; on GPUs each takes the one of its local rank."""
        os.environ.update(NO_MULTICAST)
        for name, value in ONE_HOST.items():
            os.environ.setdefault(name, value)
        on_gpu = device == "cuda"
        here = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
        if on_gpu:
            torch.cuda.set_device(here)
        timeout = timedelta(seconds=timeout_seconds)
        dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "cpu:gloo", timeout=timeout)
        return cls(
            rank=dist.get_rank(),
            num_ranks=dist.get_world_size(),
            device=here,
            data=dist.new_group(backend="nccl" if on_gpu else "gloo", timeout=timeout),
            control=dist.new_group(backend="gloo", timeout=timeout),
        )

    def handle(self, backend: str, segments: int | None = None) -> ExchangeBackend:
        """Return the handle of a backend, opened when first asked for; all ranks must ask alike.

        Args:
            backend: a name in `fm3_comm.backends`.
            segments: of a reduction over symmetric memory; None for the backend's own number.
        """
        if (backend, segments) not in self._handles:
            if segments is None:
                opened = connect(backend=backend)
            else:
                options = SymmetricOptions(backward_segments=segments)
                opened = SymmetricKind(backend, options).connect()
            self._handles[backend, segments] = opened
        return self._handles[backend, segments]

    def agree(self, value: T) -> T:
        """Return rank 0's value on every rank."""
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.control)
        return box[0]

    def all(self, value: T) -> list[T]:
        """Return every rank's value, by rank."""
        values: list[T] = [value] * self.num_ranks
        dist.all_gather_object(values, value, group=self.control)
        return values

    def together(self) -> None:
        """Return when the work of every rank is done and all have come here."""
        self.finish()
        dist.all_reduce(torch.zeros(1), group=self.control)

    def finish(self) -> None:
        """Return when this rank's device has nothing left to do."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def say(self, text: str) -> None:
        """Print on rank 0."""
        if self.rank == 0:
            print(text, flush=True)

    def leave(self) -> None:
        """Give back the handles and the groups."""
        self.together()
        for handle in self._handles.values():
            handle.close()
        dist.destroy_process_group()


def why_absent(backend: str) -> str | None:
    """Say why this machine lacks a backend, or return None."""
    return backends.get(backend).why_unavailable()


def has_segments(backend: str) -> bool:
    """Say whether a backend's reductions leave in segments."""
    return isinstance(backends.get(backend), SymmetricKind)
