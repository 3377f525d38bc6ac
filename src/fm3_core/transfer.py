"""What moves between ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fm3_core.check import require_int, require_ints
from fm3_core.cluster import Cluster
from fm3_core.errors import ExchangeError
from fm3_core.partition import Partition, token_ranges


@dataclass(frozen=True, order=True)
class Transfer:
    """One key chunk on its way from its owner to a rank that needs it; its gradient returns the same way.

    Args:
        chunk: the chunk that moves.
        source: the rank that owns it.
        destination: the rank that needs it.
        route: ranks that relay it, in order; empty when it goes directly.
    """

    chunk: int
    source: int
    destination: int
    route: tuple[int, ...] = ()


@dataclass(frozen=True)
class Exchange:
    """Everything that one gather of keys moves: a value, the same on every rank.

    Args:
        partition: who owns what.
        cluster: where the ranks live.
        gathered: for each rank the chunks whose keys its rows see, ascending, its own ones included.
        transfers: each gathered chunk that the rank does not own, in any order; stored sorted.

    Raises:
        ExchangeError: sizes of partition, cluster and gathered differ, a chunk list is not ascending, or a
            chunk or rank does not exist. That the transfers move exactly what is gathered is for the maker of
            the exchange to check.
    """

    partition: Partition
    cluster: Cluster
    gathered: tuple[tuple[int, ...], ...]
    transfers: tuple[Transfer, ...]
    _by_source: tuple[tuple[Transfer, ...], ...] = field(init=False, repr=False, compare=False)
    _by_destination: tuple[tuple[Transfer, ...], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Validate, freeze, and index the transfers by rank."""
        ranks = self.partition.num_ranks
        if self.cluster.num_ranks != ranks or len(self.gathered) != ranks:
            raise ExchangeError(
                f"partition has {ranks} ranks, cluster {self.cluster.num_ranks}, gathered "
                f"{len(self.gathered)}; they must be equal"
            )
        gathered = tuple(self._checked_chunks(rank, chunks) for rank, chunks in enumerate(self.gathered))
        transfers = tuple(sorted(self.transfers))
        by_source: list[list[Transfer]] = [[] for _ in range(ranks)]
        by_destination: list[list[Transfer]] = [[] for _ in range(ranks)]
        for transfer in transfers:
            self._check_transfer(transfer)
            by_source[transfer.source].append(transfer)
            by_destination[transfer.destination].append(transfer)
        object.__setattr__(self, "gathered", gathered)
        object.__setattr__(self, "transfers", transfers)
        object.__setattr__(self, "_by_source", tuple(map(tuple, by_source)))
        object.__setattr__(self, "_by_destination", tuple(map(tuple, by_destination)))

    def sends(self, rank: int) -> tuple[Transfer, ...]:
        """Return the transfers that leave `rank`, by chunk and destination."""
        return self._by_source[self._rank(rank)]

    def receives(self, rank: int) -> tuple[Transfer, ...]:
        """Return the transfers that end at `rank`, by chunk."""
        return self._by_destination[self._rank(rank)]

    def gathered_lengths(self, rank: int) -> NDArray[np.int64]:
        """Return the number of tokens of each chunk in `gathered[rank]`, int64."""
        starts = self._gathered_starts(rank)
        return np.minimum(self.partition.chunk_size, self.partition.num_tokens - starts)

    def key_index(self, rank: int) -> NDArray[np.int64]:
        """Return the global token of each gathered key of `rank`, int64, ascending."""
        return token_ranges(self._gathered_starts(rank), self.gathered_lengths(rank))

    def _checked_chunks(self, rank: int, chunks: Iterable[int]) -> tuple[int, ...]:
        checked = require_ints(
            f"gathered[{rank}]", chunks, maximum=self.partition.num_chunks - 1, error=ExchangeError
        ).tolist()
        for before, chunk in pairwise(checked):
            if chunk <= before:
                raise ExchangeError(
                    f"gathered[{rank}]: chunk {chunk} follows chunk {before}; chunks must ascend"
                )
        return tuple(checked)

    def _check_transfer(self, transfer: Transfer) -> None:
        ranks, chunks = self.partition.num_ranks, self.partition.num_chunks
        if not all(0 <= rank < ranks for rank in (transfer.source, transfer.destination, *transfer.route)):
            raise ExchangeError(f"{transfer}: source, destination and route must be ranks in 0..{ranks - 1}")
        if not 0 <= transfer.chunk < chunks:
            raise ExchangeError(f"{transfer}: chunk must be in 0..{chunks - 1}")

    def _gathered_starts(self, rank: int) -> NDArray[np.int64]:
        return np.array(self.gathered[self._rank(rank)], dtype=np.int64) * self.partition.chunk_size

    def _rank(self, rank: int) -> int:
        return require_int("rank", rank, maximum=self.partition.num_ranks - 1, error=ExchangeError)
