"""One batch's plan as one rank sees it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from fm3_comm import DEFAULT_SEGMENTS, ExchangeBackend, arrival_order, cut_segments, make_exchange
from fm3_core import ColumnMask, Exchange, Partition, PartitionError, localize
from fm3_core.check import require_int
from fm3_kernels import DeviceMask
from fm3_planner import PlanResult
from fm3_runtime.token_gather import gather_tokens

Chunks: TypeAlias = tuple[int, ...]
"""A part: some chunks of the gathered keys."""

ARRIVING_PARTS = 4
"""Parts in which the forward pass takes keys of other ranks."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Step:
    """Who owns which tokens of one batch, what moves, and this rank's mask over its gathered keys.

    Made by `ContextParallel.plan`, used by every layer, forward and backward. Several steps may be alive at
    once; every rank must use them in the same order.

    Args:
        mask: the whole sequence's mask.
        result: the plan, with its figures.
        exchange: what a gather of keys and values moves.
        backend: this rank's handle.
        wire_dtype: what partial gradients travel as, None as they were accumulated.
        overlap: whether attention starts on keys that are here while others are on their way.
    """

    mask: ColumnMask
    result: PlanResult
    exchange: Exchange
    backend: ExchangeBackend
    wire_dtype: torch.dtype | None = None
    overlap: bool = True

    def __repr__(self) -> str:
        """Say the rank, its share and the plan, not every figure."""
        return (
            f"Step(rank={self.rank} of {self.num_ranks}, {self.num_local_tokens} of "
            f"{self.partition.num_tokens} "
            f"tokens in chunks of {self.partition.chunk_size}, planner={self.result.stats.planner!r}, "
            f"mask {self.fingerprint[:12]})"
        )

    @property
    def rank(self) -> int:
        """This rank."""
        return self.backend.rank

    @property
    def num_ranks(self) -> int:
        """Ranks that share the tokens."""
        return self.backend.num_ranks

    @property
    def partition(self) -> Partition:
        """Which rank owns which chunk."""
        return self.result.partition

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the whole sequence's mask."""
        return self.mask.fingerprint

    @property
    def num_local_tokens(self) -> int:
        """Tokens that this rank owns."""
        return self.partition.num_tokens_of(self.rank)

    @cached_property
    def local_mask(self) -> ColumnMask:
        """The mask of this rank's rows over its gathered keys, both in ascending global order."""
        return self._rows.take_keys(self.exchange.key_index(self.rank))

    @cached_property
    def own_mask(self) -> ColumnMask:
        """The mask of this rank's rows over its own keys; a call's tensors are checked against it first."""
        return self._rows.take_keys(self.partition.token_index(self.rank))

    def device_mask(self, device: torch.device, *, own: bool = False) -> DeviceMask:
        """Return `local_mask`, or `own_mask`, on `device`; moved once and then kept."""
        if (device, own) not in self._device_masks:
            self._device_masks[device, own] = DeviceMask.from_mask(
                self.own_mask if own else self.local_mask, device
            )
        return self._device_masks[device, own]

    @cached_property
    def own_chunks(self) -> Chunks:
        """Gathered chunks that this rank owns, ascending."""
        local = set(self.partition.chunks_of(self.rank))
        return tuple(chunk for chunk in self.exchange.gathered[self.rank] if chunk in local)

    @cached_property
    def arriving_parts(self) -> tuple[Chunks, ...]:
        """Gathered chunks of other ranks, in parts of about equal size, those first that arrive first."""
        chunks = arrival_order(self.exchange, self.rank)
        lengths = [self.partition.chunk_length(chunk) for chunk in chunks]
        return tuple(tuple(part) for part in cut_segments(chunks, lengths, ARRIVING_PARTS) if part)

    @cached_property
    def backward_parts(self) -> tuple[Chunks, ...]:
        """Gathered chunks by segment of the backward pass, ascending; a segment may be empty."""
        chunks = self.exchange.gathered[self.rank]
        lengths = [self.partition.chunk_length(chunk) for chunk in chunks]
        count = getattr(self.backend, "backward_segments", DEFAULT_SEGMENTS)
        return tuple(tuple(part) for part in cut_segments(chunks, lengths, count))

    def part_mask(self, chunks: Chunks, device: torch.device) -> DeviceMask:
        """Return the mask of this rank's rows over the keys of some chunks, on `device`; kept."""
        if (chunks, device) not in self._part_masks:
            columns = self._rows.take_keys(self._tokens_of(chunks))
            self._part_masks[chunks, device] = DeviceMask.from_mask(columns, device)
        return self._part_masks[chunks, device]

    def slot_mask(self, tokens: NDArray[np.int64], device: torch.device) -> DeviceMask:
        """Return the mask of this rank's rows over keys in another order, on `device`; kept.

        Args:
            tokens: int64 [slots, chunk size], the global token of each key, -1 for none: every row hides it.
            device: where it is wanted.
        """
        key = (tokens.tobytes(), device)
        if key not in self._slot_masks:
            order = tokens.reshape(-1)
            columns = self._rows.take_keys(np.maximum(order, 0))
            lts, lte, uts, ute = (vector.copy() for vector in columns.vectors)
            lts[..., order < 0], lte[..., order < 0] = 0, columns.num_rows
            uts[..., order < 0], ute[..., order < 0] = 0, 0
            hidden = ColumnMask(lts, lte, uts, ute, num_rows=columns.num_rows)
            self._slot_masks[key] = DeviceMask.from_mask(hidden, device)
        return self._slot_masks[key]

    def gathered_places(self, chunks: Chunks, device: torch.device) -> torch.Tensor:
        """Return where the keys of some chunks are among the gathered ones, int64 [their tokens]."""
        places = np.searchsorted(self.exchange.key_index(self.rank), self._tokens_of(chunks))
        return torch.from_numpy(places).to(device)

    def own_places(self, device: torch.device) -> torch.Tensor:
        """Return where the keys of `own_chunks` are among this rank's tokens, int64."""
        mine = self.partition.token_index(self.rank)
        return torch.from_numpy(np.searchsorted(mine, self._tokens_of(self.own_chunks))).to(device)

    def scatter(self, x: torch.Tensor, dim: int = 1) -> torch.Tensor:
        """Return this rank's tokens of an `x` that every rank holds.

        The gradient of the result is put in place, zeros elsewhere: a rank's gradient of x covers its own
        tokens only.

        Args:
            x: any shape and dtype, as many entries along `dim` as the sequence has tokens.
            dim: the token dimension.
        """
        self._check_tokens("scatter", x, dim, self.partition.num_tokens)
        return x.index_select(dim, self._token_index.to(x.device))

    def gather(self, x_local: torch.Tensor, dim: int = 1) -> torch.Tensor:
        """Return every rank's tokens in global order; all ranks must call it.

        The gradient is summed over the ranks: total loss = sum of the ranks' losses. A loss that every rank
        computes alike from the result is counted once for each rank, so divide it by num_ranks.

        Args:
            x_local: this rank's tokens along `dim`; every other dimension and the dtype equal on every rank.
            dim: the token dimension.
        """
        self._check_tokens("gather", x_local, dim, self.num_local_tokens)
        return gather_tokens(x_local, dim, self._everything, self.backend)

    def position_ids(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """Return the global position of each local token, int64 [num_local_tokens], ascending."""
        return self._token_index.to(device, copy=True)

    @cached_property
    def _rows(self) -> ColumnMask:
        return localize(self.mask, self.partition.offsets(self.rank), self.partition.lengths(self.rank))

    @cached_property
    def _slot_masks(self) -> dict[tuple[bytes, torch.device], DeviceMask]:
        return {}

    @cached_property
    def _part_masks(self) -> dict[tuple[Chunks, torch.device], DeviceMask]:
        return {}

    def _tokens_of(self, chunks: Chunks) -> NDArray[np.int64]:
        """Return the global tokens of chunks, in the order given."""
        starts = ((self.partition.chunk_start(chunk), self.partition.chunk_length(chunk)) for chunk in chunks)
        ranges = [np.arange(start, start + length) for start, length in starts]
        return np.concatenate([np.empty(0, dtype=np.int64), *ranges])

    @cached_property
    def _device_masks(self) -> dict[tuple[torch.device, bool], DeviceMask]:
        return {}

    @cached_property
    def _token_index(self) -> torch.Tensor:
        return torch.from_numpy(self.partition.token_index(self.rank))

    @cached_property
    def _everything(self) -> Exchange:
        """Every chunk to every rank."""
        chunks = self.partition.num_chunks
        needs = torch.ones(chunks, chunks, dtype=torch.bool).numpy()
        return make_exchange(self.partition, needs, self.exchange.cluster)

    def _check_tokens(self, operation: str, x: torch.Tensor, dim: int, expected: int) -> None:
        if not isinstance(x, torch.Tensor):
            raise PartitionError(f"{operation}: x must be a tensor, got {type(x).__name__}")
        require_int(f"{operation}: dim", dim, minimum=-x.ndim, maximum=x.ndim - 1, error=PartitionError)
        if x.shape[dim] != expected:
            raise PartitionError(
                f"{operation} on rank {self.rank} of {self.num_ranks}: x of shape {tuple(x.shape)} must have "
                f"{expected} tokens along dim {dim}, got {x.shape[dim]}"
            )
