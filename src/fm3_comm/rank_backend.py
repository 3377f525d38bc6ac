"""What every backend of this package does alike: it knows its rank, checks tensors, and counts bytes.

Legend: B batch, S own tokens, T gathered keys, G key-value heads, D head dim.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from fm3_comm.message import FLOATS, Head
from fm3_comm.traffic import Traffic
from fm3_core import Exchange, ExchangeError

Text = TypeVar("Text", str, bytes)

_SUMS = (torch.float32, torch.float64)


class RankBackend(ABC):
    """One rank's handle without its transport.

    Args:
        rank: this rank.
        num_ranks: ranks in all.
    """

    def __init__(self, rank: int, num_ranks: int) -> None:
        """Start with nothing sent."""
        self._rank = rank
        self._num_ranks = num_ranks
        self._traffic = Traffic()
        self._closed = False

    @property
    def rank(self) -> int:
        """This rank."""
        return self._rank

    @property
    def num_ranks(self) -> int:
        """Ranks in all."""
        return self._num_ranks

    @property
    def traffic(self) -> Traffic:
        """Payload bytes that this rank has sent in gathers and reductions."""
        return self._traffic

    def __repr__(self) -> str:
        """Name the kind and the rank."""
        return f"<{type(self).__name__} rank {self.rank} of {self.num_ranks}>"

    def share(self, text: Text) -> list[Text]:
        """Return every rank's `text`, by rank; see `ExchangeBackend.share`."""
        if not isinstance(text, str | bytes):
            raise ExchangeError(f"{self._who}: share takes str or bytes, got {type(text).__name__}")
        if isinstance(text, str):
            return [shared.decode() for shared in self._share("share text", text.encode())]
        return self._share("share bytes", text)

    def barrier(self) -> None:
        """Return when every rank has come here."""
        self._share("barrier", b"")

    @abstractmethod
    def abort(self, reason: str) -> None:
        """Tell the other ranks that this one stops and why; see `ExchangeBackend.abort`."""

    def close(self) -> None:
        """Refuse later starts; a subclass gives back what it holds."""
        self._closed = True

    @abstractmethod
    def _share(self, operation: str, raw: bytes) -> list[bytes]:
        """Return every rank's bytes by rank; `operation` is "share text", "share bytes" or "barrier"."""

    @property
    def _who(self) -> str:
        return f"rank {self.rank} of {self.num_ranks}"

    def _require_open(self) -> None:
        if self._closed:
            raise ExchangeError(f"{self._who}: this backend is closed")

    def _require_ranks(self, exchange: Exchange) -> None:
        if exchange.partition.num_ranks != self.num_ranks:
            raise ExchangeError(
                f"{self._who}: the exchange must be for {self.num_ranks} ranks, "
                f"got one for {exchange.partition.num_ranks}"
            )

    def _require_keys(self, k: Tensor, v: Tensor, num_tokens: int) -> None:
        """Refuse keys and values that are not [B, num_tokens, G, D] and [B, num_tokens, G, D']."""
        self._require_pair("k", "v", k, v, num_tokens, FLOATS)

    def _require_partials(
        self, dk: Tensor, dv: Tensor, num_tokens: int, wire_dtype: torch.dtype | None
    ) -> torch.dtype:
        """Refuse partials as `_require_keys` does, and other wires; return the dtype that travels."""
        self._require_pair("dk", "dv", dk, dv, num_tokens, _SUMS)
        wire = dk.dtype if wire_dtype is None else wire_dtype
        if wire not in (torch.bfloat16, dk.dtype):
            raise ExchangeError(
                f"{self._who}: wire_dtype must be None, torch.bfloat16 or the {dk.dtype} of dk, got {wire}"
            )
        return wire

    def _require_pair(
        self, first: str, second: str, a: Tensor, b: Tensor, tokens: int, dtypes: tuple[torch.dtype, ...]
    ) -> None:
        """Refuse tensors that are not a pair [B, tokens, G, D], [B, tokens, G, D'] of one of `dtypes`."""
        wrong = []
        for name, tensor in ((first, a), (second, b)):
            if not isinstance(tensor, Tensor):
                raise ExchangeError(f"{self._who}: {name} must be a tensor, got {type(tensor).__name__}")
            if tensor.dim() != 4:
                wrong.append(f"{name} must be [batch, {tokens}, heads, dim], got {list(tensor.shape)}")
            elif tensor.shape[1] != tokens:
                wrong.append(f"{name} must have {tokens} tokens (dim 1), got {list(tensor.shape)}")
            if tensor.dtype not in dtypes:
                allowed = ", ".join(map(str, dtypes))
                wrong.append(f"{name} must have one of the dtypes {allowed}, got {tensor.dtype}")
        if not wrong and a.shape[:3] != b.shape[:3]:
            wrong.append(f"{second} must be {[*a.shape[:3]]} and any dim as {first} is, got {list(b.shape)}")
        for what in ("dtype", "device"):
            must, has = getattr(a, what), getattr(b, what)
            if must != has:
                wrong.append(f"{second} must have the {what} {must} of {first}, got {has}")
        if wrong:
            raise ExchangeError(f"{self._who}: " + "; ".join(wrong))


def text_head(operation: str, raw: bytes) -> Head:
    """Return the head of a shared text."""
    return Head(
        operation=operation,
        batch=1,
        num_tokens=len(raw),
        heads=1,
        key_dim=1,
        value_dim=0,
        dtype=torch.uint8,
        device=torch.device("cpu"),
        exchange=0,
    )


def text_body(raw: bytes) -> Tensor:
    """Return bytes as a tensor of its own, uint8 [bytes]."""
    return torch.from_numpy(np.frombuffer(raw, dtype=np.uint8).copy())


def pair_head(operation: str, k: Tensor, v: Tensor, dtype: torch.dtype, exchange: int) -> Head:
    """Return the head of a gather or a reduction of k and v, of no tokens."""
    return Head(
        operation=operation,
        batch=k.shape[0],
        num_tokens=0,
        heads=k.shape[2],
        key_dim=k.shape[3],
        value_dim=v.shape[3],
        dtype=dtype,
        device=k.device,
        exchange=exchange,
    )


def empty_pair(head: Head, num_tokens: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return unset keys [B, num_tokens, G, D] and values [B, num_tokens, G, D'] as the head says."""
    shape = (head.batch, num_tokens, head.heads)
    return (
        torch.empty(*shape, head.key_dim, dtype=head.dtype, device=device),
        torch.empty(*shape, head.value_dim, dtype=head.dtype, device=device),
    )
