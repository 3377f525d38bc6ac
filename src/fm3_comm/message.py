"""What travels between two ranks: a head that says what it is, and a flat body.

Legend: B batch, S tokens, G key-value heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""The dtypes of keys and values."""

_OPERATIONS = ("gather", "reduce", "share text", "share bytes", "barrier")
_DTYPES = (*FLOATS, torch.uint8)
_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, kw_only=True)
class Head:
    """What a message holds; the receiver compares it with what it expects before it takes the body.

    Args:
        operation: "gather", "reduce", "share text", "share bytes" or "barrier".
        exchange: digest of the exchange, 0 where there is none.
        batch: B.
        num_tokens: tokens in this message; bytes of a shared text.
        heads: G.
        key_dim: D of keys.
        value_dim: D of values.
        dtype: of the body.
        device: where it is, and where it shall arrive; ranks agree on its type.
    """

    operation: str
    exchange: int
    batch: int
    num_tokens: int
    heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def num_elements(self) -> int:
        """Elements of the body."""
        return self.batch * self.num_tokens * self.heads * (self.key_dim + self.value_dim)

    def sized(self, num_tokens: int) -> Head:
        """Return this head for another number of tokens."""
        return replace(self, num_tokens=num_tokens)

    def encode(self) -> Tensor:
        """Return the head as int64 [9]."""
        numbers = {
            **vars(self),
            "operation": _OPERATIONS.index(self.operation),
            "dtype": _DTYPES.index(self.dtype),
            "device": _DEVICES.index(self.device.type),
        }
        return torch.tensor([numbers[field.name] for field in fields(self)], dtype=torch.int64)

    @classmethod
    def decode(cls, encoded: Tensor) -> Head:
        """Return the head that `encode` wrote; of the device its type."""
        numbers = dict(zip((field.name for field in fields(cls)), encoded.tolist(), strict=True))
        names = {
            "operation": _OPERATIONS[numbers["operation"]],
            "dtype": _DTYPES[numbers["dtype"]],
            "device": torch.device(_DEVICES[numbers["device"]]),
        }
        return cls(**{**numbers, **names})

    def difference(self, expected: Head) -> str | None:
        """Say what differs first from `expected`, or None; a shared text may have any length."""
        for field in fields(self):
            mine, other = getattr(self, field.name), getattr(expected, field.name)
            if field.name == "device":
                mine, other = mine.type, other.type
            any_length = field.name == "num_tokens" and self.operation.startswith("share")
            if mine != other and not any_length:
                if field.name == "exchange":
                    return "it uses another exchange: the ranks hold different masks or plans"
                return f"its {field.name} is {mine}, expected {other}"
        return None


@dataclass(frozen=True)
class Message:
    """A head and its body, a flat tensor that belongs to the message alone."""

    head: Head
    body: Tensor

    @property
    def num_bytes(self) -> int:
        """Bytes of the body."""
        return self.body.numel() * self.body.element_size()

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Return keys [B, S, G, D] and values [B, S, G, D] as views of the body."""
        return split(self.head, self.body)


def split(head: Head, body: Tensor) -> tuple[Tensor, Tensor]:
    """View a flat body as keys [B, S, G, D] and values [B, S, G, D]."""
    keys = head.batch * head.num_tokens * head.heads * head.key_dim
    return (
        body[:keys].view(head.batch, head.num_tokens, head.heads, head.key_dim),
        body[keys:].view(head.batch, head.num_tokens, head.heads, head.value_dim),
    )


def pack(head: Head, k: Tensor, v: Tensor, runs: Iterable[tuple[int, int]]) -> Message:
    """Copy runs of tokens of k and v [B, S, G, D] into a fresh message, rounded to the head's dtype."""
    runs = tuple(runs)
    body = torch.empty(head.num_elements, dtype=head.dtype, device=k.device)
    for part, tensor in zip(split(head, body), (k, v), strict=True):
        filled = 0
        for start, length in runs:
            part[:, filled : filled + length].copy_(tensor[:, start : start + length])
            filled += length
    return Message(head, body)
