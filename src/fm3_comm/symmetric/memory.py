"""Symmetric memory: every rank holds a buffer of one size, and reads and writes the others' one-sidedly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Protocol, TypeVar

from torch import Tensor

from fm3_comm.backend import ExchangeBackend
from fm3_core import ExchangeError, Registry

R = TypeVar("R")

WORD_BYTES = 8
"""A word is an unsigned 64-bit integer at a multiple of 8 bytes."""


class SignalOp(Enum):
    """What a signal does to its word."""

    SET = "set"
    ADD = "add"


class SymmetricBuffer(Protocol):
    """One allocation: the same number of bytes on every rank, zero at first."""

    @property
    def num_bytes(self) -> int:
        """Bytes on each rank."""

    @property
    def local(self) -> Tensor:
        """This rank's bytes, uint8 [num_bytes], for plain reads and writes."""


class SymmetricMemory(Protocol):
    """One rank's view of all ranks' memory.

    **Order.** `get` and `put_signal` return before they are done, take effect in any order, and are done when
    `quiet` returns. The data of one `put_signal` are in place before its signal is; a rank that reads the
    word in `wait_ge` or `read` then sees the data, and whatever the sender wrote to its own buffer before.
    `fetch_or` and `fetch_add` take effect at once, possibly before operations that were started earlier: put
    a `quiet` between. A word is either signalled or changed by fetches, never both.

    Every method may be called from any thread; `quiet` covers what the calling thread started before.
    """

    @property
    def rank(self) -> int:
        """This rank."""

    @property
    def num_ranks(self) -> int:
        """Ranks in all."""

    def alloc(self, num_bytes: int) -> SymmetricBuffer:
        """Return a zeroed buffer; all ranks must call it, in the same order, with the same size."""

    def free(self, buffer: SymmetricBuffer) -> None:
        """Give a buffer back; all ranks must call it, and nobody may use the buffer any more."""

    def peer_ptr(self, buffer: SymmetricBuffer, pe: int) -> int | None:
        """Return the address at which this process sees rank `pe`'s bytes, None where it does not."""

    def get(self, into: Tensor, buffer: SymmetricBuffer, start: int, pe: int) -> None:
        """Start copying bytes [start, start + len(into)) of rank `pe` to `into`, uint8 and contiguous."""

    def put_signal(
        self,
        data: Tensor | None,
        buffer: SymmetricBuffer,
        start: int,
        *,
        word: int,
        value: int,
        op: SignalOp,
        pe: int,
    ) -> None:
        """Start copying `data`, uint8 and contiguous, to byte `start` at rank `pe`, then signal `word` there.

        `data` must not change before `quiet`; None sends the signal alone. `word` counts words, not bytes.
        """

    def read(self, buffer: SymmetricBuffer, word: int) -> int:
        """Return a word of this rank."""

    def wait_ge(self, buffer: SymmetricBuffer, word: int, value: int, timeout_seconds: float) -> bool:
        """Wait until a word of this rank is at least `value`, as unsigned integers; False on a timeout."""

    def fetch_or(self, buffer: SymmetricBuffer, word: int, value: int, pe: int) -> int:
        """Set bits of a word of rank `pe` atomically; return what it was."""

    def fetch_add(self, buffer: SymmetricBuffer, word: int, value: int, pe: int) -> int:
        """Add to a word of rank `pe` atomically, modulo 2^64; return what it was."""

    def quiet(self) -> None:
        """Return when everything that this thread has started is done."""

    def barrier(self, team: Sequence[int], timeout_seconds: float) -> None:
        """Return when every rank of `team`, this one included, has come here; it is a `quiet`, too.

        Raises:
            ExchangeError: a rank did not come in time; it is named.
        """

    def lost_peers(self) -> dict[int, str]:
        """Return ranks whose processes have ended and how that is known, as far as this memory can tell."""

    def close(self) -> None:
        """Give everything back; peers may go on reading and writing this rank's buffers. Repeatable."""


class MemoryKind(Protocol):
    """What the registry of memories holds."""

    def connect(self, bootstrap: ExchangeBackend, *, timeout_seconds: float) -> SymmetricMemory:
        """Return this rank's memory among the ranks of `bootstrap`, which is used to meet, not afterwards."""

    def run(self, num_ranks: int, fn: Callable[[SymmetricMemory], R], *, timeout_seconds: float) -> list[R]:
        """Run `fn(memory)` for P ranks as `run_ranks` does; return the results by rank."""

    def run_ranks(
        self, num_ranks: int, body: Callable[[ExchangeBackend], R], *, timeout_seconds: float
    ) -> list[R]:
        """Run `body(meeting)` for P ranks of this machine that can connect; return the results by rank.

        The ranks are threads of this process, or forks of it where this kind takes one rank a process.
        """

    def why_unavailable(self) -> str | None:
        """Say in a sentence why this machine cannot run this kind, or return None."""


memories: Registry[MemoryKind] = Registry("symmetric memory", "fm3.memories")
"""Kinds of symmetric memory by name; each makes an exchange backend through `SymmetricKind`."""


def check_bytes(name: str, tensor: Tensor) -> None:
    """Raise ExchangeError unless the tensor is contiguous bytes."""
    if str(tensor.dtype) != "torch.uint8" or not tensor.is_contiguous() or tensor.dim() != 1:
        raise ExchangeError(
            f"{name} must be contiguous uint8 [bytes], got {tensor.dtype} {list(tensor.shape)} with strides "
            f"{list(tensor.stride())}"
        )


def check_span(buffer: SymmetricBuffer, start: int, num_bytes: int) -> None:
    """Raise ExchangeError unless bytes [start, start + num_bytes) are inside the buffer."""
    if not 0 <= start <= start + num_bytes <= buffer.num_bytes:
        raise ExchangeError(
            f"bytes [{start}, {start + num_bytes}) are outside of the buffer's {buffer.num_bytes}"
        )


def check_word(buffer: SymmetricBuffer, word: int) -> None:
    """Raise ExchangeError unless the word is inside the buffer."""
    if not 0 <= word < buffer.num_bytes // WORD_BYTES:
        raise ExchangeError(f"word {word} is outside of the buffer's {buffer.num_bytes // WORD_BYTES}")


def check_pe(memory: Any, pe: int) -> None:
    """Raise ExchangeError unless `pe` is a rank of the memory."""
    if not 0 <= pe < memory.num_ranks:
        raise ExchangeError(f"pe must be a rank in 0..{memory.num_ranks - 1}, got {pe}")
