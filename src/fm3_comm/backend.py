"""What a backend is: one rank's handle that moves keys, values and their gradients as an exchange says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from fm3_comm.traffic import Traffic
from fm3_core import Exchange, Registry

R = TypeVar("R")
Text = TypeVar("Text", str, bytes)


class Pending(Protocol):
    """A gather or a reduction under way."""

    def wait(self) -> tuple[Tensor, Tensor]:
        """Block until the result is complete and return it; again, the same tensors.

        The tensors are fresh: nothing else writes to them, ever.

        Raises:
            ExchangeError: a peer stopped, did not answer in time or sent something else; it names the peer.
        """


@runtime_checkable
class ExchangeBackend(Protocol):
    """One rank's handle.

    **Order**: operations are matched between ranks by the order in which each rank starts them. All ranks
    must start the same operations (gathers, reductions, shares, barriers) in the same order; they may wait
    for them in any order, from any thread, and any number of operations may be under way.
    """

    @property
    def rank(self) -> int:
        """This rank."""

    @property
    def num_ranks(self) -> int:
        """Ranks in all."""

    @property
    def traffic(self) -> Traffic:
        """Payload bytes that this rank has sent in gathers and reductions."""

    def start_gather(self, exchange: Exchange, k: Tensor, v: Tensor) -> Pending:
        """Start a pruned all-gather: `wait()` returns the keys and values of `exchange.gathered[rank]`.

        Args:
            exchange: what moves; every rank passes an equal one.
            k: [batch, own tokens, heads, dim], float16, bfloat16, float32 or float64, any device and strides.
                It is copied before this returns.
            v: [batch, own tokens, heads, dim], of the dtype and device of k; its head dim may differ.

        Returns:
            Pending: k and v of the gathered keys, [batch, gathered tokens, heads, dim], ascending in global
                order.

        Raises:
            ExchangeError: shapes, dtypes or devices do not fit; it names the rank, what was expected and got.
        """

    def start_reduce(
        self, exchange: Exchange, dk: Tensor, dv: Tensor, *, wire_dtype: torch.dtype | None = None
    ) -> Pending:
        """Start a pruned reduce-scatter, the way back of `start_gather`.

        Owners add the partials in ascending order of the rank that sent them, so that the result is bitwise
        repeatable; tokens that nobody gathered get zeros.

        Args:
            exchange: what the gather used.
            dk: this rank's partial over the gathered keys, [batch, gathered tokens, heads, dim], float32 or
                float64. It is copied before this returns.
            dv: likewise for values.
            wire_dtype: torch.bfloat16 sends partials rounded, at half or a quarter of the bytes; the sum
                keeps the dtype of dk. None sends them as they are.

        Returns:
            Pending: the sums for this rank's own tokens, [batch, own tokens, heads, dim], dtype of dk.

        Raises:
            ExchangeError: shapes, dtypes or devices do not fit; it names the rank, what was expected and got.
        """

    def share(self, text: Text) -> list[Text]:
        """Return every rank's `text`, by rank: any length, str on every rank or bytes on every rank."""

    def barrier(self) -> None:
        """Return when every rank has come here."""

    def abort(self, reason: str) -> None:
        """Tell the other ranks that this one stops and why; their operations raise ExchangeError with both.

        This rank's later operations raise, too. Never blocks for long and never raises.
        """

    def close(self) -> None:
        """Let operations that have started finish, give back threads; later starts raise. Repeatable."""


@runtime_checkable
class ChunkedPending(Pending, Protocol):
    """A gather whose chunks may be taken as they arrive."""

    def first_ready(self, groups: Sequence[Sequence[int]]) -> int:
        """Block until all chunks of one of the groups are here; return the index of the first such group.

        Args:
            groups: gathered chunks, at least one group.

        Raises:
            ExchangeError: as in `wait`.
        """

    def take(self, chunks: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Block until these gathered chunks are here; return their keys and values, in the order given."""


class SegmentedPending(Pending, Protocol):
    """A reduction whose partials leave segment by segment."""

    @property
    def segments(self) -> tuple[tuple[int, int], ...]:
        """Each segment's gathered keys [first, end)."""

    def work_done(self, segment: int) -> None:
        """Say that a segment's partials are final; they are copied before this returns, and leave."""


@runtime_checkable
class ChunkedBackend(ExchangeBackend, Protocol):
    """A backend that overlaps: it tells which chunks are here, and takes gradients segment by segment."""

    @property
    def backward_segments(self) -> int:
        """Segments of a reduction, the same on every rank."""

    def start_gather(self, exchange: Exchange, k: Tensor, v: Tensor) -> ChunkedPending:
        """Start a pruned all-gather; see `ExchangeBackend.start_gather`."""

    def open_reduce(
        self, exchange: Exchange, dk: Tensor, dv: Tensor, *, wire_dtype: torch.dtype | None = None
    ) -> SegmentedPending:
        """Start a reduction of partials that the caller is still computing, into dk and dv.

        Segments are those of `cut_segments` over the gathered chunks; they may get done in any order.
        """


class BackendKind(Protocol):
    """What the registry holds: how to get handles of one kind."""

    def connect(self, group: Any = None, *, timeout_seconds: float | None = None) -> ExchangeBackend:
        """Return this rank's handle in `group`.

        Args:
            group: what this kind calls a group of ranks; None for its default.
            timeout_seconds: longest wait for a peer in one operation; None for the kind's or group's default.

        Raises:
            ExchangeError, UnsupportedError: the group is not one of this kind.
        """

    def run(
        self, num_ranks: int, fn: Callable[[ExchangeBackend], R], *, timeout_seconds: float = 300.0
    ) -> list[R]:
        """Run `fn(handle)` on ranks of this machine; return the results by rank, for tests and notebooks."""

    def why_unavailable(self) -> str | None:
        """Say in a sentence why this machine cannot run this kind, or return None."""


backends: Registry[BackendKind] = Registry("backend", "fm3.backends")
"""Backend kinds by name; a package adds its own through the entry point group `fm3.backends`."""
