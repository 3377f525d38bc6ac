"""Reductions that GPUs carry out by themselves: partials leave as the backward kernel calls them final."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fm3_comm.layout import exchange_digest
from fm3_comm.symmetric.device_gather import DeviceGather, num_words_named, on_device
from fm3_comm.symmetric.device_room import DeviceRoom
from fm3_comm.symmetric.footprint import aligned, mask_words
from fm3_comm.symmetric.memory import WORD_BYTES
from fm3_comm.symmetric.reduce_tables import ReduceTables
from fm3_core import Exchange

if TYPE_CHECKING:
    from fm3_comm.symmetric.nvshmem import NvshmemMemory

_TABLES_KEPT = 16
_WIRES = {torch.float32: "FLOAT32", torch.bfloat16: "BFLOAT16"}


@dataclass(frozen=True)
class _Tables:
    """An exchange's tables on this rank's device."""

    exchange: Exchange
    host: ReduceTables
    num_puts: int
    num_sums: int
    puts: Tensor
    sums: Tensor
    expected: Tensor
    opens: Tensor
    own_rows: Tensor
    own_places: Tensor


@dataclass(frozen=True, kw_only=True)
class PartialShape:
    """What partials are.

    Args:
        batch: B.
        heads: kv heads.
        key_dim: head dim of dK.
        value_dim: head dim of dV.
        wire_dtype: float32, or bfloat16 for half the bytes and one rounding a hop.
    """

    batch: int
    heads: int
    key_dim: int
    value_dim: int
    wire_dtype: torch.dtype

    @property
    def wire_token_bytes(self) -> int:
        """Bytes of one token's dK and dV on the wire, over the batch."""
        elements = self.batch * self.heads * (self.key_dim + self.value_dim)
        return elements * self.wire_dtype.itemsize


@dataclass(frozen=True, eq=False, kw_only=True)
class DeviceReduction:
    """A reduction whose partials a kernel is about to compute; nothing here waits on the host.

    Attributes:
        final: int32 [slots]; a slot's partials leave once its entry has come to `epoch`, modulo 2^32.
        epoch: of this reduction.
    """

    final: Tensor
    epoch: int
    _tables: _Tables
    _shape: PartialShape
    _reduce: DeviceReduce

    def sums_of(self, dk: Tensor, dv: Tensor, *, overlap: bool) -> tuple[Tensor, Tensor]:
        """Return the sums of all ranks' partials for this rank's tokens, once the stream comes there.

        Args:
            dk: float32 [B, slots * chunk size, G, D], contiguous, which a kernel of the current stream fills
                and calls final; it is overwritten.
            dv: likewise.
            overlap: partials leave while others are computed; else once the current stream has come here.

        Returns:
            float32 [B, S, G, D] of dk and dv, S tokens of this rank, ascending.
        """
        return self._reduce.sums_of(self, dk, dv, overlap=overlap)


class DeviceReduce:
    """One rank's reductions on its GPU.

    Partials of other ranks lie in one buffer, grown to the largest need; a rank lets others fill it for the
    next reduction once it has added those of the last.

    Args:
        memory: this rank's.
        gather: this rank's gathers: partials lie in its slots, and its limit holds here.
        share: returns every rank's text by rank.
        num_ctas: of the kernels that put and that add, together.
    """

    def __init__(
        self, memory: NvshmemMemory, gather: DeviceGather, share: Callable[[str], list[str]], num_ctas: int
    ) -> None:
        """Start with no buffer."""
        self._memory = memory
        self._gather = gather
        self._room = DeviceRoom(memory, share, "reduction")
        self._kernels: Any = memory.extension
        self._device = memory.device
        self._puts_stream = torch.cuda.Stream(self._device, priority=-1)
        self._sums_stream = torch.cuda.Stream(self._device, priority=-1)
        self._ctas_of_puts = max(1, num_ctas // 2)
        self._ctas_of_sums = max(1, num_ctas - self._ctas_of_puts)
        self._epoch = 0
        self._tables: list[_Tables] = []
        self._flags = torch.zeros(0, dtype=torch.int32, device=self._device)
        self._finished = torch.zeros(0, dtype=torch.int32, device=self._device)
        self._lock = threading.Lock()

    def open(self, exchange: Exchange, shape: PartialShape) -> DeviceReduction:
        """Make ready for a reduction; all ranks must come, in the same order."""
        self._gather.require_in_time()
        with self._lock:
            tables = self._tables_of(exchange, shape)
            self._epoch += 1
            return DeviceReduction(
                final=self._flags[: tables.host.num_flags // 2],
                epoch=self._epoch,
                _tables=tables,
                _shape=shape,
                _reduce=self,
            )

    def sums_of(
        self, reduction: DeviceReduction, dk: Tensor, dv: Tensor, *, overlap: bool
    ) -> tuple[Tensor, Tensor]:
        """Launch the kernels that put and add; see `DeviceReduction.sums_of`."""
        tables, caller = reduction._tables, torch.cuda.current_stream(self._device)
        with self._lock:
            for stream in (self._puts_stream, self._sums_stream):
                if not overlap:
                    stream.wait_stream(caller)
                dk.record_stream(stream)
                dv.record_stream(stream)
            self._launch(reduction, dk, dv)
            caller.wait_stream(self._puts_stream)
            caller.wait_stream(self._sums_stream)
        tokens = tables.exchange.partition.num_tokens_of(self._memory.rank)
        own = (x.new_zeros(x.shape[0], tokens, *x.shape[2:]) for x in (dk, dv))
        own_dk, own_dv = (
            mine.index_copy_(1, tables.own_rows, x.index_select(1, tables.own_places))
            for mine, x in zip(own, (dk, dv), strict=True)
        )
        return own_dk, own_dv

    def _launch(self, reduction: DeviceReduction, dk: Tensor, dv: Tensor) -> None:
        tables, shape, kernels = reduction._tables, reduction._shape, self._kernels
        chunk = tables.exchange.partition.chunk_size
        contribution_bytes = aligned(chunk * shape.wire_token_bytes)
        shared = {
            "dk": dk.data_ptr(),
            "dv": dv.data_ptr(),
            "final": self._flags.data_ptr(),
            "words": self._room.words.address,
            "buffer": self._room.buffer.address,
            "layout": kernels.SlotLayout(
                k_start=0,
                v_start=0,
                k_token_bytes=4 * shape.heads * shape.key_dim,
                v_token_bytes=4 * shape.heads * shape.value_dim,
                batch=shape.batch,
                num_slots=dk.shape[1] // chunk,
                chunk_tokens=chunk,
            ),
            "limit": self._gather.limit,
            "epoch": reduction.epoch,
            "contributions_start": 0,
            "contribution_bytes": contribution_bytes,
            "wire": getattr(kernels.Wire, _WIRES[shape.wire_dtype]),
            "rank": self._memory.rank,
        }
        kernels.signal(
            signals=tables.opens.data_ptr(),
            num_signals=num_words_named(tables.opens),
            words=self._room.words.address,
            value=reduction.epoch,
            stream=self._sums_stream.cuda_stream,
        )
        kernels.put(
            chunks=tables.puts.data_ptr(),
            num_chunks=tables.num_puts,
            finished_ctas=self._finished.data_ptr(),
            staging_start=tables.host.num_contributions * contribution_bytes,
            num_ctas=self._ctas_of_puts,
            stream=self._puts_stream.cuda_stream,
            **shared,
        )
        kernels.reduce(
            chunks=tables.sums.data_ptr(),
            num_chunks=tables.num_sums,
            expected=tables.expected.data_ptr(),
            finished_ctas=self._finished.data_ptr() + 4 * tables.num_puts,
            words_per_mask=mask_words(self._memory.num_ranks),
            num_ctas=self._ctas_of_sums,
            stream=self._sums_stream.cuda_stream,
            **shared,
        )

    def _tables_of(self, exchange: Exchange, shape: PartialShape) -> _Tables:
        """Return the tables of an exchange, in a buffer that is large enough for them."""
        known = next((tables for tables in self._tables if tables.exchange is exchange), None)
        host = ReduceTables(exchange, self._memory.rank) if known is None else known.host
        contribution_bytes = aligned(exchange.partition.chunk_size * shape.wire_token_bytes)
        num_bytes = (host.num_contributions + host.num_puts) * contribution_bytes
        digest = f"{exchange_digest(exchange)} {shape}"
        if self._room.grow(digest, num_bytes, WORD_BYTES * host.num_words):
            known = None
            self._tables.clear()
        if known is None:
            known = self._upload(exchange, host)
            self._tables = [known, *self._tables[: _TABLES_KEPT - 1]]
        if len(self._flags) < host.num_flags or len(self._finished) < known.num_puts + known.num_sums:
            # Kernels of the last reduction may still use the old ones.
            torch.cuda.synchronize(self._device)
            self._flags = self._flags.new_zeros(max(len(self._flags), host.num_flags))
            self._finished = self._finished.new_zeros(
                max(len(self._finished), known.num_puts + known.num_sums)
            )
        return known

    def _upload(self, exchange: Exchange, host: ReduceTables) -> _Tables:
        targets = [
            self._memory.peer_ptr(self._room.buffer, peer) or 0 for peer in range(self._memory.num_ranks)
        ]
        puts, sums = host.puts(targets), host.sums()
        own_rows, own_places = host.own_places()
        return _Tables(
            exchange=exchange,
            host=host,
            num_puts=len(puts),
            num_sums=len(sums),
            puts=on_device(puts, self._device),
            sums=on_device(sums, self._device),
            expected=on_device(host.expected(), self._device),
            opens=on_device(host.opens(), self._device),
            own_rows=on_device(own_rows, self._device),
            own_places=on_device(own_places, self._device),
        )


def why_not(k: Tensor, v: Tensor, wire_dtype: torch.dtype) -> str | None:
    """Say why GPUs cannot reduce partials of such keys and values by themselves, or return None."""
    if wire_dtype not in _WIRES:
        return f"partials travel in float32 or bfloat16, not in {wire_dtype}"
    for name, x in (("k", k), ("v", v)):
        if x.shape[2] * x.shape[3] % 4:
            return f"heads * dim of {name} are no multiple of 4: {list(x.shape)}"
    return None
