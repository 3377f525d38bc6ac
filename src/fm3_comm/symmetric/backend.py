"""The exchange backend over any symmetric memory.

Legend: B batch, S own tokens, T gathered keys, G key-value heads, D head dim.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fm3_comm.backend import Pending
from fm3_comm.hops import RankHops, hops_by_rank
from fm3_comm.layout import exchange_digest, require_complete
from fm3_comm.message import Head, pack, split
from fm3_comm.rank_backend import RankBackend, empty_pair, pair_head
from fm3_comm.segments import DEFAULT_SEGMENTS, cut_segments
from fm3_comm.symmetric.engine import Engine, Runner
from fm3_comm.symmetric.footprint import Slots, aligned
from fm3_comm.symmetric.gather import GatherWork, gather
from fm3_comm.symmetric.memory import SymmetricMemory
from fm3_comm.symmetric.pending import GatherPending, SegmentedReduce
from fm3_comm.symmetric.reduce import ReduceWork, reduce
from fm3_comm.symmetric.share import share
from fm3_comm.symmetric.site import Site
from fm3_core import Exchange, ExchangeError, Transfer
from fm3_core.check import require_int

Pair = tuple[Tensor, Tensor]

_PLACES_KEPT = 16


@dataclass(frozen=True, kw_only=True)
class SymmetricOptions:
    """How the symmetric backend works.

    Args:
        backward_segments: parts in which a reduction's gathered keys may be finished and leave.
    """

    backward_segments: int = DEFAULT_SEGMENTS

    def __post_init__(self) -> None:
        """Validate."""
        require_int("backward_segments", self.backward_segments, minimum=1, error=ExchangeError)


@dataclass(frozen=True)
class _Place:
    """One exchange as this rank sees it: trees, digest, and where each chunk's tokens start."""

    exchange: Exchange
    trees: tuple[RankHops, ...]
    digest: int
    own: Mapping[int, int]
    gathered: Mapping[int, int]
    lengths: Mapping[int, int]


class SymmetricBackend(RankBackend):
    """One rank's handle over a symmetric memory.

    Starting an operation copies its tensors and returns; a thread of this handle carries operations out one
    after the other, and other ranks read and write this rank's buffer meanwhile. The buffer, one for all
    layers, forward and backward, grows to the largest operation seen.

    Args:
        memory: this rank's; closed with the handle.
        timeout_seconds: longest wait for a peer.
        options: how it works; the same on every rank.
        engine: makes what runs the programs; None for a thread.
    """

    def __init__(
        self,
        memory: SymmetricMemory,
        *,
        timeout_seconds: float,
        options: SymmetricOptions = SymmetricOptions(),
        engine: Callable[[Site], Runner] | None = None,
    ) -> None:
        """Allocate the board; all ranks must come here."""
        super().__init__(memory.rank, memory.num_ranks)
        self._memory = memory
        self._options = options
        self._site = Site(memory)
        self._engine = Engine(self._site, timeout_seconds) if engine is None else engine(self._site)
        self._places: list[_Place] = []
        self._lock = threading.Lock()

    @property
    def backward_segments(self) -> int:
        """Parts of a reduction, unless `open_reduce` is told otherwise."""
        return self._options.backward_segments

    def start_gather(self, exchange: Exchange, k: Tensor, v: Tensor) -> GatherPending:
        """Start a pruned all-gather; see `ExchangeBackend.start_gather`.

        Returns:
            GatherPending: tells besides which chunks are here already.
        """
        place = self._place(exchange)
        self._require_keys(k, v, sum(place.lengths[chunk] for chunk in place.own))
        self._require_working()
        k, v = k.detach(), v.detach()
        head = pair_head("gather", k, v, k.dtype, place.digest)
        bodies = {
            chunk: _body(head, k, v, start, place.lengths[chunk])
            for chunk, start in place.own.items()
            if chunk in place.gathered or chunk in place.trees[self.rank].children
        }
        pending = GatherPending(self._site, place.trees[self.rank], tuple(place.gathered))
        work = GatherWork(
            head=head,
            slots=Slots(trees=place.trees, stride=_stride(exchange, head)),
            chunk_bytes=_sizes(place, head),
            bodies={chunk: body.view(torch.uint8) for chunk, body in bodies.items()},
            cluster=exchange.cluster,
            started=pending.attach,
            arrived=pending.arrive,
            count=self._count,
        )
        future = self._engine.start("gather", partial(gather, self._site, work))

        def assemble(received: Mapping[int, Tensor], chunks: Sequence[int]) -> Pair:
            result = empty_pair(head, sum(place.lengths[c] for c in chunks), torch.device("cpu"))
            for chunk, start in _starts(chunks, place.lengths).items():
                body = bodies[chunk] if chunk in bodies else received[chunk].view(head.dtype)
                _copy(result, body, head, start, place.lengths[chunk])
            return result[0].to(k.device), result[1].to(k.device)

        pending.follow(future, assemble)
        return pending

    def start_reduce(
        self, exchange: Exchange, dk: Tensor, dv: Tensor, *, wire_dtype: torch.dtype | None = None
    ) -> Pending:
        """Start a pruned reduce-scatter; see `ExchangeBackend.start_reduce`."""
        reduction = self.open_reduce(exchange, dk, dv, wire_dtype=wire_dtype)
        for segment in range(len(reduction.segments)):
            reduction.work_done(segment)
        return reduction

    def open_reduce(
        self,
        exchange: Exchange,
        dk: Tensor,
        dv: Tensor,
        *,
        wire_dtype: torch.dtype | None = None,
        segments: int | None = None,
    ) -> SegmentedReduce:
        """Start a reduction whose partials are still being computed.

        Args:
            exchange: what the gather used.
            dk: [B, T, G, D] float32 or float64, to be filled by the caller segment by segment.
            dv: likewise for values.
            wire_dtype: as in `start_reduce`.
            segments: parts, the same on every rank; None for the options'.

        Returns:
            SegmentedReduce: `work_done(i)` sends the keys of segment i; `wait()` as in `start_reduce`.
        """
        count = self._options.backward_segments if segments is None else segments
        count = require_int("segments", count, minimum=1, error=ExchangeError)
        place = self._place(exchange)
        wire = self._require_partials(
            dk, dv, sum(place.lengths[chunk] for chunk in place.gathered), wire_dtype
        )
        self._require_working()
        dk, dv = dk.detach(), dv.detach()
        head = pair_head("reduce", dk, dv, dk.dtype, place.digest)
        wire_head = pair_head("reduce", dk, dv, wire, place.digest)
        cut = cut_segments(list(place.gathered), [place.lengths[c] for c in place.gathered], count)
        partials: dict[int, Tensor] = {}

        def snapshot(segment: int) -> None:
            for chunk in cut[segment]:
                partials[chunk] = _body(head, dk, dv, place.gathered[chunk], place.lengths[chunk])

        def assemble(sums: Mapping[int, Tensor]) -> Pair:
            result = empty_pair(head, sum(place.lengths[c] for c in place.own), torch.device("cpu"))
            for tensor in result:
                tensor.zero_()
            for chunk, start in place.own.items():
                body = sums.get(chunk, partials.get(chunk))
                if body is not None:
                    _copy(result, body, head, start, place.lengths[chunk])
            return result[0].to(dk.device), result[1].to(dk.device)

        reduction = SegmentedReduce(
            segments=_token_ranges(cut, place.gathered, place.lengths),
            snapshot=snapshot,
            assemble=assemble,
        )
        work = ReduceWork(
            head=wire_head,
            slots=Slots(trees=place.trees, stride=_stride(exchange, wire_head)),
            wire_bytes=_sizes(place, wire_head),
            segments=cut,
            partials=partials,
            sum_dtype=dk.dtype,
            started=lambda epoch: reduction.attach(partial(self._set_work_done, epoch)),
            count=self._count,
        )
        reduction.follow(self._engine.start("reduce", partial(reduce, self._site, work)))
        return reduction

    def abort(self, reason: str) -> None:
        """Tell every rank why this one stops."""
        if not self._closed:
            self._engine.stop(f"rank {self.rank} stopped: {reason}")

    def close(self) -> None:
        """Let what was started finish; give back the thread and the memory."""
        if not self._closed:
            super().close()
            self._engine.close()
            self._memory.close()

    def _share(self, operation: str, raw: bytes) -> list[bytes]:
        self._require_working()
        return self._engine.start(operation, partial(share, self._site, operation, raw)).result()

    def _set_work_done(self, epoch: int, segment: int) -> None:
        self._site.flag(self._site.room.work_done(segment), epoch, self.rank)

    def _require_working(self) -> None:
        self._require_open()
        if self._engine.stopped is not None:
            raise ExchangeError(f"{self._who}: {self._engine.stopped}")

    def _count(self, hop: Transfer, num_bytes: int) -> None:
        self._traffic.add(hop, num_bytes)

    def _place(self, exchange: Exchange) -> _Place:
        self._require_ranks(exchange)
        with self._lock:
            for place in self._places:
                if place.exchange is exchange:
                    return place
        require_complete(exchange, self.rank)
        partition = exchange.partition
        trees = hops_by_rank(exchange)
        own, gathered = partition.chunks_of(self.rank), exchange.gathered[self.rank]
        lengths = {
            chunk: partition.chunk_length(chunk) for chunk in {*own, *gathered, *trees[self.rank].received}
        }
        place = _Place(
            exchange,
            trees,
            exchange_digest(exchange),
            _starts(own, lengths),
            _starts(gathered, lengths),
            lengths,
        )
        with self._lock:
            self._places = [place, *self._places[: _PLACES_KEPT - 1]]
        return place


def _starts(chunks: Iterable[int], lengths: Mapping[int, int]) -> dict[int, int]:
    starts, start = {}, 0
    for chunk in chunks:
        starts[chunk] = start
        start += lengths[chunk]
    return starts


def _stride(exchange: Exchange, head: Head) -> int:
    return aligned(head.sized(exchange.partition.chunk_size).num_elements * head.dtype.itemsize)


def _sizes(place: _Place, head: Head) -> dict[int, int]:
    return {
        chunk: head.sized(length).num_elements * head.dtype.itemsize
        for chunk, length in place.lengths.items()
    }


def _body(head: Head, k: Tensor, v: Tensor, start: int, length: int) -> Tensor:
    """Copy a chunk's keys and values into a flat tensor of the CPU."""
    return pack(head.sized(length), k, v, ((start, length),)).body.cpu()


def _copy(result: Pair, body: Tensor, head: Head, start: int, length: int) -> None:
    for tensor, part in zip(result, split(head.sized(length), body), strict=True):
        tensor[:, start : start + length].copy_(part)


def _token_ranges(
    cut: Sequence[Sequence[int]], starts: Mapping[int, int], lengths: Mapping[int, int]
) -> tuple[tuple[int, int], ...]:
    ranges, end = [], 0
    for chunks in cut:
        first = end
        end = starts[chunks[-1]] + lengths[chunks[-1]] if chunks else first
        ranges.append((first, end))
    return tuple(ranges)
