"""Which rank owns which chunk of the tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fm3_core.check import require_int
from fm3_core.errors import PartitionError


@dataclass(frozen=True)
class Partition:
    """The tokens cut into chunks, each owned by one rank; a rank's chunks are in ascending order.

    Args:
        num_tokens: tokens in all.
        chunk_size: tokens of a chunk; the last chunk may be shorter.
        chunks_by_rank: chunk ids of each rank, ascending; every chunk of 0..num_chunks-1 exactly once.

    Raises:
        PartitionError: a chunk is missing, owned twice, out of range or not ascending; it names the chunk and
            ranks.
    """

    num_tokens: int
    chunk_size: int
    chunks_by_rank: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        """Validate and freeze."""
        tokens = require_int("num_tokens", self.num_tokens, error=PartitionError)
        size = require_int("chunk_size", self.chunk_size, minimum=1, error=PartitionError)
        object.__setattr__(self, "num_tokens", tokens)
        object.__setattr__(self, "chunk_size", size)
        object.__setattr__(self, "chunks_by_rank", _checked_chunks(self.chunks_by_rank, self.num_chunks))

    @property
    def num_chunks(self) -> int:
        """Chunks in all, a shorter last one counted."""
        return -(-self.num_tokens // self.chunk_size)

    @property
    def num_ranks(self) -> int:
        """Ranks in all, those without a chunk counted."""
        return len(self.chunks_by_rank)

    def chunk_start(self, chunk: int) -> int:
        """Return the first token of `chunk`."""
        return self._chunk(chunk) * self.chunk_size

    def chunk_length(self, chunk: int) -> int:
        """Return the number of tokens of `chunk`."""
        return min(self.chunk_size, self.num_tokens - self.chunk_start(chunk))

    @cached_property
    def owner(self) -> NDArray[np.int64]:
        """The rank that owns each chunk, int64 [num_chunks], read-only."""
        owner = np.empty(self.num_chunks, dtype=np.int64)
        for rank, chunks in enumerate(self.chunks_by_rank):
            owner[list(chunks)] = rank
        owner.flags.writeable = False
        return owner

    def chunks_of(self, rank: int) -> tuple[int, ...]:
        """Return the chunks of `rank`, ascending."""
        return self.chunks_by_rank[self._rank(rank)]

    def offsets(self, rank: int) -> NDArray[np.int64]:
        """Return the first global token of each chunk of `rank`, int64 [chunks], ascending."""
        return np.array(self.chunks_of(rank), dtype=np.int64) * min(self.chunk_size, self.num_tokens)

    def lengths(self, rank: int) -> NDArray[np.int64]:
        """Return the number of tokens of each chunk of `rank`, int64 [chunks]."""
        return np.minimum(min(self.chunk_size, self.num_tokens), self.num_tokens - self.offsets(rank))

    def num_tokens_of(self, rank: int) -> int:
        """Return the number of tokens that `rank` owns."""
        return int(self.lengths(rank).sum())

    def token_index(self, rank: int) -> NDArray[np.int64]:
        """Return the global token of each local one of `rank`, int64 [num_tokens_of(rank)], ascending."""
        return token_ranges(self.offsets(rank), self.lengths(rank))

    def inverse(self) -> NDArray[np.int64]:
        """Return int64 [num_tokens]: where each global token stands among the ranks' tokens side by side."""
        order = np.concatenate([self.token_index(rank) for rank in range(self.num_ranks)])
        inverse = np.empty(self.num_tokens, dtype=np.int64)
        inverse[order] = np.arange(self.num_tokens, dtype=np.int64)
        return inverse

    def __reduce__(self) -> tuple[type[Partition], tuple[object, ...]]:
        """Pickle the three fields; unpickling validates them again."""
        return Partition, (self.num_tokens, self.chunk_size, self.chunks_by_rank)

    def _rank(self, rank: int) -> int:
        return require_int("rank", rank, maximum=self.num_ranks - 1, error=PartitionError)

    def _chunk(self, chunk: int) -> int:
        return require_int("chunk", chunk, maximum=self.num_chunks - 1, error=PartitionError)


def token_ranges(offsets: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the tokens of ranges [offset, offset + length), one range after another, int64."""
    first_of_range = (
        np.repeat(offsets - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths) if len(offsets) else 0
    )
    return np.arange(int(lengths.sum()), dtype=np.int64) + first_of_range


def _checked_chunks(chunks_by_rank: Iterable[Iterable[int]], num_chunks: int) -> tuple[tuple[int, ...], ...]:
    owner: dict[int, int] = {}
    checked = []
    for rank, chunks in enumerate(_checked_iterable("chunks_by_rank", chunks_by_rank)):
        mine: list[int] = []
        name = f"rank {rank}: chunk"
        for chunk in _checked_iterable(f"chunks_by_rank[{rank}]", chunks):
            number = require_int(name, chunk, maximum=num_chunks - 1, error=PartitionError)
            if number in owner:
                raise PartitionError(
                    f"chunk {number} is owned by rank {owner[number]} and again by rank {rank}"
                )
            if mine and number < mine[-1]:
                raise PartitionError(
                    f"rank {rank}: chunk {number} follows chunk {mine[-1]}; chunks must ascend"
                )
            owner[number] = rank
            mine.append(number)
        checked.append(tuple(mine))
    if not checked:
        raise PartitionError("chunks_by_rank must name at least one rank, got none")
    if len(owner) < num_chunks:
        missing = next(chunk for chunk in range(num_chunks) if chunk not in owner)
        raise PartitionError(
            f"chunk {missing} is owned by no rank "
            f"({num_chunks - len(owner)} of {num_chunks} chunks are missing)"
        )
    return tuple(checked)


def _checked_iterable(name: str, values: object) -> Iterable[Any]:
    if not isinstance(values, Iterable) or isinstance(values, str):
        raise PartitionError(f"{name} must be a sequence, got {values!r} ({type(values).__name__})")
    return values
