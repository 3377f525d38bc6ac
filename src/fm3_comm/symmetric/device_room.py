"""Symmetric memory of GPUs that grows: a buffer and words, allocated anew by all ranks together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from fm3_core import ExchangeError

if TYPE_CHECKING:
    from fm3_comm.symmetric.nvshmem import NvshmemBuffer, NvshmemMemory


class DeviceRoom:
    """A buffer and words, both as large as any operation has needed.

    Args:
        memory: this rank's.
        share: returns every rank's text by rank.
        what: the operation, as errors name it.
    """

    def __init__(self, memory: NvshmemMemory, share: Callable[[str], list[str]], what: str) -> None:
        """Start with nothing."""
        self._memory = memory
        self._share = share
        self._what = what
        self._buffer: NvshmemBuffer | None = None
        self._words: NvshmemBuffer | None = None

    @property
    def buffer(self) -> NvshmemBuffer:
        """The buffer; valid until `grow` returns True."""
        assert self._buffer is not None
        return self._buffer

    @property
    def words(self) -> NvshmemBuffer:
        """The words; valid until `grow` returns True. New ones are 0."""
        assert self._words is not None
        return self._words

    def grow(self, digest: str, num_bytes: int, word_bytes: int) -> bool:
        """Make room on all ranks, if there is too little; every rank finds the same.

        Args:
            digest: names what every rank must have come with.
            num_bytes: of the buffer.
            word_bytes: of the words.

        Returns:
            Whether both are new: then addresses of the old ones are no longer right.

        Raises:
            ExchangeError: ranks have come with something else.
        """
        if self._buffer is not None and self._words is not None:
            if self._buffer.num_bytes >= num_bytes and self._words.num_bytes >= word_bytes:
                return False
            num_bytes = max(num_bytes, self._buffer.num_bytes)
            word_bytes = max(word_bytes, self._words.num_bytes)
        self._agree(f"{digest} {num_bytes} {word_bytes}")
        for buffer in (self._buffer, self._words):
            if buffer is not None:
                self._memory.free(buffer)
        self._buffer, self._words = self._memory.alloc(num_bytes), self._memory.alloc(word_bytes)
        return True

    def _agree(self, text: str) -> None:
        """Wait until this rank's GPU is done, and until every rank has come with the same."""
        torch.cuda.synchronize(self._memory.device)
        for rank, other in enumerate(self._share(text)):
            if other != text:
                raise ExchangeError(
                    f"rank {self._memory.rank} of {self._memory.num_ranks}: {self._what}, rank {rank}: its "
                    "exchange or its tensors differ: the ranks hold different masks or plans"
                )
