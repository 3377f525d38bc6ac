"""Builders of partitions, needs and exchanges from plain integers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fm3_comm import make_exchange
from fm3_core import Cluster, Exchange, Partition


@dataclass(frozen=True, kw_only=True)
class Case:
    """An exchange, what it was made of, and keys and values of the whole sequence."""

    exchange: Exchange
    needs: np.ndarray
    k: torch.Tensor
    v: torch.Tensor

    @property
    def num_ranks(self) -> int:
        """Ranks in all."""
        return self.exchange.partition.num_ranks

    def own(self, rank: int) -> torch.Tensor:
        """Global tokens of a rank."""
        return torch.from_numpy(self.exchange.partition.token_index(rank))

    def gathered(self, rank: int) -> torch.Tensor:
        """Global tokens of the keys that a rank gathers."""
        return torch.from_numpy(self.exchange.key_index(rank))

    def local(self, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Own keys and values of a rank."""
        return self.k[:, self.own(rank)], self.v[:, self.own(rank)]

    def partials(self, rank: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
        """Random partial gradients of a rank, over the keys that it gathers."""
        generator = torch.Generator().manual_seed(rank + 1)
        tokens = len(self.gathered(rank))
        shapes = [(t.shape[0], tokens, *t.shape[2:]) for t in (self.k, self.v)]
        dk, dv = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
        return dk.to(dtype), dv.to(dtype)

    def sums(self, rank: int, wire_dtype: torch.dtype | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Add each rank's partial of each own token of `rank`, source after source, in float32.

        It is the order of direct routes; relays add what they pass on first.
        """
        sums = [torch.zeros_like(tensor, dtype=torch.float32) for tensor in (self.k, self.v)]
        for source in range(self.num_ranks):
            rounding = torch.float32 if wire_dtype is None or source == rank else wire_dtype
            for total, partial in zip(sums, self.partials(source), strict=True):
                total[:, self.gathered(source)] += partial.to(rounding).float()
        return sums[0][:, self.own(rank)], sums[1][:, self.own(rank)]


MakeCase = Callable[..., Case]


def _make_case(
    num_ranks: int,
    num_tokens: int,
    chunk_size: int,
    *,
    density: float = 0.4,
    seed: int = 0,
    ranks_with_chunks: int | None = None,
    needs: np.ndarray | None = None,
    batch: int = 2,
    heads: int = 2,
    key_dim: int = 4,
    value_dim: int = 4,
    dtype: torch.dtype = torch.float32,
    ranks_per_node: int | None = None,
    route: str = "flat",
) -> Case:
    rng = np.random.default_rng(seed)
    num_chunks = -(-num_tokens // chunk_size)
    owner = rng.integers(0, ranks_with_chunks or num_ranks, num_chunks)
    chunks_by_rank = tuple(tuple(np.flatnonzero(owner == rank).tolist()) for rank in range(num_ranks))
    partition = Partition(num_tokens, chunk_size, chunks_by_rank)
    needs = rng.random((num_chunks, num_chunks)) < density if needs is None else needs
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, num_tokens, heads)
    return Case(
        exchange=make_exchange(partition, needs, Cluster(num_ranks, ranks_per_node), route),
        needs=needs,
        k=torch.randn(*shape, key_dim, generator=generator, dtype=torch.float64).to(dtype),
        v=torch.randn(*shape, value_dim, generator=generator, dtype=torch.float64).to(dtype),
    )


@pytest.fixture(scope="session")
def make_case() -> MakeCase:
    """Return a builder: ranks, tokens, chunk size; owners and needs at random by seed."""
    return _make_case
