"""A differentiable all-gather of any tensor's tokens, by the exchange that attention uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from fm3_comm import ExchangeBackend
from fm3_core import Exchange, UnsupportedError


def gather_tokens(
    x_local: torch.Tensor, dim: int, exchange: Exchange, backend: ExchangeBackend
) -> torch.Tensor:
    """Return the tokens that `exchange` gathers for this rank along `dim`; backward sums over the ranks.

    Args:
        x_local: this rank's own tokens along `dim`, floating, integer or bool; only floating ones have a
            gradient. Integers travel as the bits of 8-byte floats, since backends carry floats.
        dim: the token dimension.
        exchange: who gets which chunks.
        backend: this rank's handle.

    Raises:
        UnsupportedError: complex tokens.
    """
    if x_local.is_complex():
        raise UnsupportedError("gather", [f"tokens must be floating, integer or bool, got {x_local.dtype}"])
    tokens_first = x_local.movedim(dim, 0)
    features = tokens_first.shape[1:]
    flat = tokens_first.reshape(tokens_first.shape[0], features.numel())
    if x_local.is_floating_point():
        apply: Callable[..., torch.Tensor] = _GatherTokens.apply
        gathered = apply(flat, exchange, backend)
    else:
        as_bits = flat.to(torch.int64).view(torch.float64)
        gathered = _gather(as_bits, exchange, backend).view(torch.int64).to(x_local.dtype)
    return gathered.reshape(gathered.shape[0], *features).movedim(0, dim)


class _GatherTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, flat: torch.Tensor, exchange: Exchange, backend: ExchangeBackend) -> torch.Tensor:
        ctx.exchange, ctx.backend, ctx.dtype = exchange, backend, flat.dtype
        return _gather(flat, exchange, backend)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        sums = gradient.to(torch.promote_types(ctx.dtype, torch.float32))
        pair = _as_keys_and_values(sums)
        total, _ = ctx.backend.start_reduce(ctx.exchange, *pair).wait()
        return total[0, :, 0].to(ctx.dtype), None, None


def _gather(flat: torch.Tensor, exchange: Exchange, backend: ExchangeBackend) -> torch.Tensor:
    gathered, _ = backend.start_gather(exchange, *_as_keys_and_values(flat)).wait()
    return gathered[0, :, 0]


def _as_keys_and_values(flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Show tokens [S, features] as keys [1, S, 1, features] beside values without features."""
    keys = flat[None, :, None, :].contiguous()
    return keys, keys[..., :0]
