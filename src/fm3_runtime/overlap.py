"""Attention of one rank over keys that arrive: what is computed when, and in which order it is added.

A part is some chunks of the gathered keys. Parts are computed as they arrive and put together in one fixed
order, so that no bit depends on what arrived when. Forward merges the parts' results in float32; backward
adds the parts' dQ in float32, and each part's dK and dV belong to its own keys (float64 for float64).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

import fm3_kernels
from fm3_comm import ChunkedBackend, SegmentedPending
from fm3_comm.symmetric import DevicePending
from fm3_kernels import Engine
from fm3_runtime.arriving import arriving
from fm3_runtime.flagged import flagged_backward, flagged_forward, takes_flags
from fm3_runtime.step import Chunks, Step


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a call asks for.

    Args:
        softmax_scale: factor of the scores, None for 1 / sqrt(D).
        deterministic: the same bits every time, with overlap and without.
        engine: a name or an engine.
    """

    softmax_scale: float | None
    deterministic: bool
    engine: str | Engine


def forward(step: Step, q: Tensor, k: Tensor, v: Tensor, asked: Asked) -> tuple[Tensor, Tensor]:
    """Gather keys and values and attend to them; return out and its log-sum-exp.

    Args:
        step: who gathers what.
        q: [B, S, Hq, D], this rank's tokens.
        k: [B, S, Hkv, D], this rank's tokens.
        v: [B, S, Hkv, Dv].
        asked: how.
    """
    pending = step.backend.start_gather(step.exchange, k, v)
    if takes_flags(pending, asked.engine):
        return flagged_forward(step, q, cast("DevicePending", pending), asked.softmax_scale)
    parts = _forward_parts(step, asked)
    if len(parts) < 2:
        return fm3_kernels.attention_forward(
            q, *pending.wait(), step.device_mask(q.device),
            softmax_scale=asked.softmax_scale, engine=asked.engine,
        )  # fmt: skip
    results = {
        number: fm3_kernels.attention_forward(
            q, part_k, part_v, step.part_mask(parts[number], q.device),
            softmax_scale=asked.softmax_scale, engine=asked.engine, out_dtype=_exact(q),
        )
        for number, part_k, part_v in arriving(step, pending, k, v, parts)
    }  # fmt: skip
    out, lse = fm3_kernels.merge([results[number] for number in range(len(parts))])
    return out.to(q.dtype), lse


def backward(
    step: Step,
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dlse: Tensor | None,
    asked: Asked,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gather again; return dq, and the sums of all ranks' dk and dv for this rank's tokens in float32.

    Args:
        step: who gathers what.
        dout: gradient of out, [B, S, Hq, Dv].
        q: as in `forward`.
        k: as in `forward`.
        v: as in `forward`.
        out: the result of `forward`.
        lse: the result of `forward`.
        dlse: gradient of lse, or None.
        asked: how.
    """
    pending = step.backend.start_gather(step.exchange, k, v)
    if takes_flags(pending, asked.engine):
        flagged = cast("DevicePending", pending)
        return flagged_backward(step, dout, q, flagged, out, lse, dlse, asked.softmax_scale)
    if not _goes_back_by_parts(step, q, k, v, asked):
        dq, all_dk, all_dv = fm3_kernels.attention_backward(
            dout, q, *pending.wait(), out, lse, step.device_mask(q.device),
            dlse=dlse, softmax_scale=asked.softmax_scale, deterministic=asked.deterministic,
            engine=asked.engine, kv_grad_dtype=_exact(q),
        )  # fmt: skip
        reduced = step.backend.start_reduce(step.exchange, all_dk, all_dv, wire_dtype=step.wire_dtype)
        return dq, *reduced.wait()

    tokens = int(step.exchange.gathered_lengths(step.rank).sum())
    all_dk, all_dv = (x.new_zeros((x.shape[0], tokens, *x.shape[2:]), dtype=_exact(q)) for x in (k, v))
    reduction = _open(step, all_dk, all_dv)
    dq_parts = _SumInOrder(torch.zeros_like(q, dtype=_exact(q), memory_format=torch.contiguous_format))
    exact_dout, exact_q = dout.to(_exact(q)), q.to(_exact(q))
    for number, part_k, part_v in arriving(step, pending, k, v, step.backward_parts):
        part = step.backward_parts[number]
        dq, dk, dv = fm3_kernels.attention_backward(
            exact_dout, exact_q, part_k.to(_exact(q)), part_v.to(_exact(q)), out, lse,
            step.part_mask(part, q.device),
            dlse=dlse, softmax_scale=asked.softmax_scale, deterministic=asked.deterministic,
            engine=asked.engine,
        )  # fmt: skip
        places = step.gathered_places(part, q.device)
        all_dk.index_copy_(1, places, dk)
        all_dv.index_copy_(1, places, dv)
        dq_parts.add(number, dq)
        if reduction is not None:
            reduction.work_done(number)
    if reduction is None:
        sums = step.backend.start_reduce(step.exchange, all_dk, all_dv, wire_dtype=step.wire_dtype).wait()
    else:
        sums = reduction.wait()
    return dq_parts.total.to(q.dtype), *sums


class _SumInOrder:
    """Adds what comes by number, in ascending order; what comes early is kept."""

    def __init__(self, zeros: Tensor) -> None:
        self.total = zeros
        self._next = 0
        self._early: dict[int, Tensor] = {}

    def add(self, number: int, term: Tensor) -> None:
        self._early[number] = term
        while self._next in self._early:
            self.total += self._early.pop(self._next)
            self._next += 1


def _exact(q: Tensor) -> torch.dtype:
    """Return what sums of parts are kept in."""
    return torch.promote_types(q.dtype, torch.float32)


def _forward_parts(step: Step, asked: Asked) -> list[Chunks]:
    """Return the parts in the order in which they are merged; fewer than two: all keys at once."""
    if asked.deterministic or (step.overlap and isinstance(step.backend, ChunkedBackend)):
        parts = [step.own_chunks, *step.arriving_parts]
    elif step.overlap:
        # Nothing will tell which of the others' keys are here before all of them are.
        parts = [step.own_chunks, tuple(sorted(chunk for part in step.arriving_parts for chunk in part))]
    else:
        parts = []
    return [part for part in parts if part]


def _goes_back_by_parts(step: Step, q: Tensor, k: Tensor, v: Tensor, asked: Asked) -> bool:
    """Say whether dQ is added from parts: each must then be exact, so the engine must compute in float32."""
    if not (asked.deterministic or (step.overlap and isinstance(step.backend, ChunkedBackend))):
        return False
    q, k, v = (x.to(_exact(q)) for x in (q, k, v))
    return not fm3_kernels.why_unsupported(
        q, k, v, step.device_mask(q.device, own=True),
        softmax_scale=asked.softmax_scale, deterministic=asked.deterministic, engine=asked.engine,
    )  # fmt: skip


def _open(step: Step, all_dk: Tensor, all_dv: Tensor) -> SegmentedPending | None:
    """Start a reduction that partials may leave for while others are computed, if there is overlap."""
    if step.overlap and isinstance(step.backend, ChunkedBackend):
        return step.backend.open_reduce(step.exchange, all_dk, all_dv, wire_dtype=step.wire_dtype)
    return None
