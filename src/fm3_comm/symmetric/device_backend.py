"""The symmetric backend of GPUs: they gather by themselves, and reduce what kernels with flags compute."""

from __future__ import annotations

import torch
from torch import Tensor

from fm3_comm.backend import Pending
from fm3_comm.symmetric.backend import SymmetricBackend, SymmetricOptions
from fm3_comm.symmetric.device_gather import DeviceGather, DeviceOptions, DevicePending
from fm3_comm.symmetric.device_reduce import DeviceReduce, DeviceReduction, PartialShape, why_not
from fm3_comm.symmetric.nvshmem import NvshmemMemory
from fm3_comm.traffic import gather_bytes, reduce_bytes
from fm3_core import Exchange, UnsupportedError


class DeviceBackend(SymmetricBackend):
    """One rank's handle on its GPU.

    Tensors of that GPU are gathered by its kernels, others as `SymmetricBackend` does; every rank must pass
    tensors of one kind. Partials that a kernel computes in the slots of such a gather are reduced by kernels,
    others by the host. A gather or reduction of the GPU counts the bytes that it will move.

    Args:
        memory: this rank's; closed with the handle.
        timeout_seconds: longest wait for a peer.
        options: how reductions work; the same on every rank.
        device: how gathers work; the same on every rank.
    """

    def __init__(
        self,
        memory: NvshmemMemory,
        *,
        timeout_seconds: float,
        options: SymmetricOptions = SymmetricOptions(),  # noqa: B008  frozen
        device: DeviceOptions | None = None,
    ) -> None:
        """Allocate the board; all ranks must come here."""
        super().__init__(memory, timeout_seconds=timeout_seconds, options=options)
        chosen = DeviceOptions(timeout_seconds=timeout_seconds) if device is None else device
        self._gather = DeviceGather(memory, chosen, self.share)
        self._reduce = DeviceReduce(memory, self._gather, self.share, chosen.pull_ctas)

    def start_gather(self, exchange: Exchange, k: Tensor, v: Tensor) -> Pending:  # type: ignore[override]
        """Start a pruned all-gather; see `ExchangeBackend.start_gather`.

        Returns:
            Pending: of a GPU's tensors a `DevicePending`, which kernels may read while it is under way.
        """
        self._require_ranks(exchange)
        self._require_keys(k, v, exchange.partition.num_tokens_of(self.rank))
        if not k.is_cuda or self._gather.why_not(k, v) is not None:
            return super().start_gather(exchange, k, v)
        self._require_working()
        token_bytes = k.shape[0] * k.shape[2] * (k.shape[3] + v.shape[3]) * k.element_size()
        for hop, num_bytes in gather_bytes(exchange, token_bytes).items():
            if hop.source == self.rank:
                self._count(hop, num_bytes)
        return self._gather.start(exchange, k.detach(), v.detach())

    def open_device_reduce(
        self, exchange: Exchange, gathered: DevicePending, *, wire_dtype: torch.dtype | None = None
    ) -> DeviceReduction:
        """Make ready for partials of a gather's slots, which a kernel will compute and call final.

        Args:
            exchange: what the gather used.
            gathered: the gather.
            wire_dtype: what partials travel in, float32 (None) or bfloat16; sums are in float32.

        Raises:
            UnsupportedError: the kernels cannot move such partials.
        """
        self._require_ranks(exchange)
        self._require_working()
        k, v = gathered.k, gathered.v
        wire = torch.float32 if wire_dtype is None else wire_dtype
        reason = why_not(k, v, wire)
        if reason is not None:
            raise UnsupportedError("open_device_reduce", [reason])
        shape = PartialShape(
            batch=k.shape[0], heads=k.shape[2], key_dim=k.shape[3], value_dim=v.shape[3], wire_dtype=wire
        )
        for hop, num_bytes in reduce_bytes(exchange, shape.wire_token_bytes).items():
            if hop.source == self.rank:
                self._count(hop, num_bytes)
        return self._reduce.open(exchange, shape)

    def close(self) -> None:
        """Let what was started finish; give back the thread and the memory."""
        if not self._closed:
            torch.cuda.synchronize()
        super().close()
