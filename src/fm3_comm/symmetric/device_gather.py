"""Gathers that GPUs carry out by themselves: kernels pull chunks as they land, flags tell which to read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fm3_comm.layout import exchange_digest
from fm3_comm.symmetric.device_room import DeviceRoom
from fm3_comm.symmetric.device_tables import WORD_OF_RANK, GatherTables
from fm3_comm.symmetric.footprint import aligned
from fm3_comm.symmetric.memory import WORD_BYTES
from fm3_core import Exchange, ExchangeError
from fm3_core.check import require_int

if TYPE_CHECKING:
    from fm3_comm.symmetric.nvshmem import NvshmemMemory

REPORT = np.dtype(
    [
        ("kind", "<u4"),
        ("peer", "<i4"),
        ("index", "<i4"),
        ("padding", "<u4"),
        ("expected", "<u8"),
        ("seen", "<u8"),
    ]
)
"""`WaitReport` in csrc/comm/device_wait.h."""

_TABLES_KEPT = 16
_WAITED_FOR = (
    "nothing",
    "a chunk from rank {peer} for slot {index}",
    "rank {peer} to open slot {index}",
    "rank {peer} to be done with what it read here (word {index})",
    "gradients of this rank (flag {index})",
    "partials of slot {index} (word {peer} of its bitmask)",
    "word {index} of rank {peer}",
)


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """How GPUs gather.

    Args:
        pull_ctas: CTAs that pull; as many multiprocessors are left free by the attention kernel.
        timeout_seconds: longest wait of a kernel for a peer.
    """

    pull_ctas: int = 16
    timeout_seconds: float = 60.0

    def __post_init__(self) -> None:
        """Validate."""
        require_int("pull_ctas", self.pull_ctas, minimum=1, error=ExchangeError)


@dataclass(frozen=True)
class _Tables:
    """An exchange's tables on this rank's device."""

    exchange: Exchange
    host: GatherTables
    pulled: Tensor
    readers: Tensor
    opened: Tensor
    closing: Tensor
    closed_by: Tensor
    own_tokens: Tensor
    gathered_places: Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class DevicePending:
    """A gather under way on the GPU; nothing here waits on the host.

    Attributes:
        tokens: int64 [slots, chunk size], the global token in each place, -1 for none; on the host.
        k: [B, slots * chunk size, G, D], a view of the exchange buffer: valid until the next gather starts on
            the caller's stream.
        v: likewise.
        epochs: int32 [slots]; a slot may be read when its entry has come to `epoch`, modulo 2^32.
        epoch: of this gather.
        chunk_size: tokens of a slot.
        num_ctas: CTAs that a kernel may start which waits for slots: the others pull.
    """

    tokens: NDArray[np.int64]
    k: Tensor
    v: Tensor
    epochs: Tensor
    epoch: int
    chunk_size: int
    num_ctas: int
    _gathered_places: Tensor
    _done: torch.cuda.Event
    _gather: DeviceGather

    def hold(self) -> None:
        """Hold up the current stream until everything is here."""
        torch.cuda.current_stream(self.k.device).wait_event(self._done)

    def wait(self) -> tuple[Tensor, Tensor]:
        """Return the gathered keys and values, ascending in global order, as tensors of their own."""
        self.hold()
        self._gather.require_in_time()
        return self.k.index_select(1, self._gathered_places), self.v.index_select(1, self._gathered_places)


class DeviceGather:
    """One rank's gathers on its GPU.

    One buffer of slots serves all of them, grown to the largest; a gather overwrites it when the readers of
    the last one have closed, and after what the caller's stream holds.

    Args:
        memory: this rank's.
        options: the same on every rank.
        share: returns every rank's text by rank.
    """

    def __init__(
        self, memory: NvshmemMemory, options: DeviceOptions, share: Callable[[str], list[str]]
    ) -> None:
        """Start with no buffer."""
        self._memory = memory
        self._room = DeviceRoom(memory, share, "gather")
        self._kernels: Any = memory.extension
        self._options = options
        self._device = memory.device
        self._stream = torch.cuda.Stream(self._device, priority=-1)
        self._report = torch.zeros(REPORT.itemsize, dtype=torch.uint8, pin_memory=True)
        self._limit = self._kernels.WaitLimit(
            nanoseconds=int(options.timeout_seconds * 1e9), report=self._report.data_ptr()
        )
        self._multiprocessors = torch.cuda.get_device_properties(self._device).multi_processor_count
        self._epoch = 0
        self._tables: list[_Tables] = []
        self._ready = torch.zeros(0, dtype=torch.int32, device=self._device)
        self._finished = torch.zeros_like(self._ready)
        self._last: tuple[Tensor, int] | None = None
        self._lock = threading.Lock()

    @property
    def limit(self) -> Any:
        """How long this rank's kernels wait, and where they say what did not come."""
        return self._limit

    def why_not(self, k: Tensor, v: Tensor) -> str | None:
        """Say why tensors cannot be gathered so, or return None."""
        if k.device != self._device:
            return f"k is on {k.device}, this rank's memory on {self._device}"
        for name, x in (("k", k), ("v", v)):
            if x.shape[2] * x.shape[3] * x.element_size() % 16:
                return f"heads * dim of {name} are no multiple of 16 bytes: {list(x.shape)}, {x.dtype}"
        return None

    def start(self, exchange: Exchange, k: Tensor, v: Tensor) -> DevicePending:
        """Start on a stream of its own; all ranks must come, in the same order."""
        self.require_in_time()
        with self._lock:
            sizes = [x.shape[2] * x.shape[3] * x.element_size() for x in (k, v)]
            tables = self._tables_of(exchange, k.shape[0], sum(sizes))
            self._epoch += 1
            chunk = exchange.partition.chunk_size
            v_start = aligned(k.shape[0] * tables.host.num_slots * chunk * sizes[0])
            layout = self._kernels.SlotLayout(
                k_start=0,
                v_start=v_start,
                k_token_bytes=sizes[0],
                v_token_bytes=sizes[1],
                batch=k.shape[0],
                num_slots=tables.host.num_slots,
                chunk_tokens=chunk,
            )
            slots = [self._slots(x, start, tables.host, chunk) for x, start in ((k, 0), (v, v_start))]
            done = self._launch(tables, layout, (k, v), slots)
        used = len(tables.host.slots)
        return DevicePending(
            tokens=tables.host.slot_tokens(),
            k=slots[0][:, : used * chunk],
            v=slots[1][:, : used * chunk],
            epochs=self._ready[:used],
            epoch=self._epoch,
            chunk_size=chunk,
            num_ctas=max(1, self._multiprocessors - self._options.pull_ctas),
            _gathered_places=tables.gathered_places,
            _done=done,
            _gather=self,
        )

    def require_in_time(self) -> None:
        """Raise ExchangeError if a kernel has given up waiting; it does not look whether one is about to."""
        report = np.frombuffer(self._report.numpy().tobytes(), dtype=REPORT)[0]
        if report["kind"]:
            what = _WAITED_FOR[int(report["kind"])].format(peer=report["peer"], index=report["index"])
            raise ExchangeError(
                f"rank {self._memory.rank} of {self._memory.num_ranks}: a kernel waited for {what} for "
                f"{self._options.timeout_seconds:g} s (expected {report['expected']}, seen {report['seen']})"
            )

    def _launch(
        self, tables: _Tables, layout: Any, pair: tuple[Tensor, Tensor], slots: list[Tensor]
    ) -> torch.cuda.Event:
        """Enqueue everything; the caller's stream goes on when this rank's own chunks are in their slots."""
        kernels, words, stream = self._kernels, self._room.words.address, self._stream.cuda_stream
        caller = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(caller)
        own = tables.host.num_own
        with torch.cuda.stream(self._stream):
            if self._last is not None:
                readers, epoch = self._last
                kernels.await_words(
                    awaited=readers.data_ptr(), num_awaited=num_words_named(readers), words=words,
                    limit=self._limit, kind=kernels.WaitKind.CLOSED, value=epoch, stream=stream,
                )  # fmt: skip
            for x, slot in zip(pair, slots, strict=True):
                slot[:, : len(tables.own_tokens)].copy_(x.index_select(1, tables.own_tokens))
                x.record_stream(self._stream)
            self._ready[:own].fill_(_as_int32(self._epoch))
            caller.wait_event(self._stream.record_event())
            kernels.signal(
                signals=tables.opened.data_ptr(), num_signals=num_words_named(tables.opened), words=words,
                value=self._epoch, stream=stream,
            )  # fmt: skip
            kernels.pull(
                chunks=tables.pulled.data_ptr(), num_chunks=len(tables.host.slots) - own,
                readers=tables.readers.data_ptr(), seen=0, buffer=self._room.buffer.address, landed=words,
                ready=self._ready.data_ptr(), finished_ctas=self._finished.data_ptr(), resident_ctas=0,
                layout=layout, limit=self._limit, epoch=self._epoch, num_ctas=self._options.pull_ctas,
                stream=stream,
            )  # fmt: skip
            kernels.signal(
                signals=tables.closing.data_ptr(), num_signals=num_words_named(tables.closing), words=words,
                value=self._epoch, stream=stream,
            )  # fmt: skip
            self._last = tables.closed_by, self._epoch
            done: torch.cuda.Event = self._stream.record_event()
            return done

    def _tables_of(self, exchange: Exchange, batch: int, token_bytes: int) -> _Tables:
        """Return the tables of an exchange, in a buffer that is large enough for them."""
        known = next((tables for tables in self._tables if tables.exchange is exchange), None)
        host = GatherTables(exchange, self._memory.rank) if known is None else known.host
        num_bytes = 256 + batch * host.num_slots * exchange.partition.chunk_size * token_bytes
        if self._room.grow(str(exchange_digest(exchange)), num_bytes, host.num_words * WORD_BYTES):
            self._last, known = None, None
            self._tables.clear()
        if known is None:
            known = self._upload(exchange, host)
            self._tables = [known, *self._tables[: _TABLES_KEPT - 1]]
        if len(self._ready) < host.num_slots:
            # Kernels of the last gather may still use the old ones.
            torch.cuda.synchronize(self._device)
            self._ready = torch.zeros(host.num_slots, dtype=torch.int32, device=self._device)
            self._finished = torch.zeros_like(self._ready)
        return known

    def _upload(self, exchange: Exchange, host: GatherTables) -> _Tables:
        rank, ranks = self._memory.rank, range(self._memory.num_ranks)
        tokens = host.slot_tokens()
        # Behind the end of a short chunk: its last token again, which the mask hides.
        own = np.maximum.accumulate(tokens[: host.num_own], axis=1).reshape(-1)
        places = {token: place for place, token in enumerate(tokens.reshape(-1).tolist()) if token >= 0}
        gathered = [places[token] for token in exchange.key_index(rank).tolist()]
        sources = [self._memory.peer_ptr(self._room.buffer, peer) or 0 for peer in ranks]
        return _Tables(
            exchange=exchange,
            host=host,
            pulled=on_device(host.pulled(sources), self._device),
            readers=on_device(host.readers(), self._device),
            opened=on_device(host.opened(), self._device),
            closing=on_device(host.closing(), self._device),
            closed_by=on_device(host.closed_by(), self._device),
            own_tokens=on_device(np.searchsorted(exchange.partition.token_index(rank), own), self._device),
            gathered_places=on_device(np.array(gathered, dtype=np.int64), self._device),
        )

    def _slots(self, like: Tensor, start: int, host: GatherTables, chunk: int) -> Tensor:
        """View the buffer as slots of keys or of values, [B, slots * chunk size, G, D]."""
        shape = (like.shape[0], host.num_slots * chunk, *like.shape[2:])
        num_bytes = int(np.prod(shape)) * like.element_size()
        return self._room.buffer.local[start : start + num_bytes].view(like.dtype).view(shape)


def on_device(rows: NDArray[Any], device: torch.device) -> Tensor:
    """Return rows of integers as int64, records as bytes."""
    plain = rows if rows.dtype == np.int64 else np.frombuffer(rows.tobytes(), dtype=np.uint8)
    return torch.from_numpy(plain.copy()).to(device)


def num_words_named(rows: Tensor) -> int:
    """Return how many ranks' words a table of bytes names."""
    return len(rows) // WORD_OF_RANK.itemsize


def _as_int32(epoch: int) -> int:
    """Return an epoch modulo 2^32 as the signed integer of the same bits."""
    return (epoch + 2**31) % 2**32 - 2**31
