"""The Hopper engine: its kernels among the engines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from fm3_core.errors import UnsupportedError
from fm3_kernels import hopper_backward, hopper_ops
from fm3_kernels.backward_lists import backward_lists, repeat_heads
from fm3_kernels.device_mask import DeviceMask
from fm3_kernels.extension import WHY_ABSENT, load_extension
from fm3_kernels.prepared_mask import BLOCK_ROWS, PreparedMask, prepared

DTYPES = (torch.float16, torch.bfloat16)
HEAD_DIMS = (64, 128)
_MOST_TOKENS = 1 << 30
_MOST_TILES = (1 << 31) - 1


@dataclass(frozen=True, kw_only=True)
class ReadyFlags:
    """Keys and values that arrive while the kernel runs.

    A chunk of keys is read once its entry in `epochs` has come to `epoch`, counted modulo 2^32. Whoever sets
    an entry does so after the chunk's keys and values, with release order (a later operation of the same
    stream has it). It must be able to run beside the kernel, which fills every multiprocessor that it
    is given: the copy engine, another device, or multiprocessors that `num_ctas` leaves free. Kernels that
    it launches must have run before (or CUDA_MODULE_LOADING=EAGER be set): loading one waits for those that
    run.

    Args:
        epochs: int32 [chunks] on the keys' device.
        epoch: what they are waited for.
        chunk_size: keys of a chunk, a multiple of 128; the last chunk may be shorter.
    """

    epochs: Tensor
    epoch: int
    chunk_size: int


class HopperEngine:
    """The CUDA kernels for compute capability 9.0: bf16 and fp16, head dims 64 and 128.

    Tensors of any strides: what the copy engine cannot read where it lies is copied (the head dim not
    contiguous, base or strides not multiples of 16 bytes, expanded dimensions). float32 output comes from
    the float32 sums without a rounding in between; other dtypes than the inputs' are converted from it.
    """

    def why_unsupported(
        self, q: Tensor, k: Tensor, v: Tensor, mask: DeviceMask, *, deterministic: bool
    ) -> list[str]:
        """Return every reason why the kernels cannot serve the call; see `Engine.why_unsupported`."""
        reasons = _device_reasons(q.device.type, q.device.index)
        if q.dtype not in DTYPES:
            reasons.append(f"the tensors are {q.dtype}, it takes torch.float16 and torch.bfloat16")
        if q.shape[3] not in HEAD_DIMS:
            reasons.append(f"the head dim is {q.shape[3]}, it takes 64 and 128")
        if v.shape[3] != q.shape[3]:
            reasons.append(f"v has head dim {v.shape[3]}, q has {q.shape[3]}: it takes equal ones")
        reasons += _size_reasons(q, k)
        reasons += hopper_backward.size_reasons(q, k)
        return reasons

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: DeviceMask,
        *,
        softmax_scale: float,
        out_dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        """Return out and the log-sum-exp; see `Engine.forward`."""
        return forward_prepared(q, k, v, prepared(mask), softmax_scale=softmax_scale, out_dtype=out_dtype)

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        mask: DeviceMask,
        *,
        dlse: Tensor | None,
        softmax_scale: float,
        deterministic: bool,
        kv_grad_dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return dq, dk and dv, the same bits each time; see `Engine.backward`."""
        mask = repeat_heads(mask, query_heads=q.shape[2], kv_heads=k.shape[2])
        return hopper_backward.backward_prepared(
            dout,
            q,
            k,
            v,
            out,
            lse,
            prepared(mask),
            backward_lists(mask, kv_heads=k.shape[2]),
            dlse=dlse,
            softmax_scale=softmax_scale,
            kv_grad_dtype=kv_grad_dtype,
        )


def forward_prepared(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: PreparedMask,
    *,
    softmax_scale: float,
    out_dtype: torch.dtype | None = None,
    ready: ReadyFlags | None = None,
    num_ctas: int = 0,
) -> tuple[Tensor, Tensor]:
    """Compute attention under a prepared mask, which may have a map of blocks to keep.

    Args:
        q: bf16 or fp16 [batch, rows, query heads, dim].
        k: [batch, keys, kv heads, dim].
        v: [batch, keys, kv heads, dim].
        mask: prepared on the same device.
        softmax_scale: factor of the scores.
        out_dtype: dtype of out, None for q's.
        ready: when which keys may be read, None where all are there.
        num_ctas: most multiprocessors to use, 0 for all.

    Returns:
        (out, lse) as `Engine.forward`.

    Raises:
        UnsupportedError: the flags, or the mask's sizes, do not fit the tensors; with every reason.
    """
    reasons = _mask_reasons(q, k, mask) + ([] if ready is None else _ready_reasons(ready, k))
    if reasons:
        raise UnsupportedError("forward_prepared", reasons)
    out_dtype = q.dtype if out_dtype is None else out_dtype
    out, lse = hopper_ops.forward(
        q,
        k,
        v,
        mask.columns,
        mask.extrema,
        mask.row_blocks,
        mask.keep,
        softmax_scale=softmax_scale,
        float_output=out_dtype != q.dtype,
        epochs=None if ready is None else ready.epochs,
        epoch=0 if ready is None else ready.epoch,
        chunk_size=hopper_ops.BLOCK_KEYS if ready is None else ready.chunk_size,
        num_ctas=num_ctas,
    )
    return out.to(out_dtype), lse


def _find_device_reasons(kind: str, index: int | None) -> list[str]:
    """Return what the build and the device lack."""
    reasons = [] if load_extension() is not None else [WHY_ABSENT]
    if kind != "cuda":
        return [*reasons, f"the tensors are on {kind}, it needs a CUDA device of compute capability 9.0"]
    capability = torch.cuda.get_device_capability(index)
    if capability != (9, 0):
        found = ".".join(str(number) for number in capability)
        reasons.append(f"the device has compute capability {found}, it needs 9.0")
    return reasons


_device_reasons = cast(
    "Callable[[str, int | None], list[str]]", torch.compiler.assume_constant_result(_find_device_reasons)
)


def _size_reasons(q: Tensor, k: Tensor) -> list[str]:
    """Return which sizes the kernel's 32-bit counters do not hold; offsets in memory are 64-bit."""
    reasons = [
        f"there are {count} {what}, it takes fewer than {_MOST_TOKENS}"
        for what, count in (("rows", q.shape[1]), ("keys", k.shape[1]))
        if count >= _MOST_TOKENS
    ]
    tiles = q.shape[0] * q.shape[2] * -(-q.shape[1] // BLOCK_ROWS)
    if tiles > _MOST_TILES:
        reasons.append(f"there are {tiles} blocks of rows over batch and heads, it takes {_MOST_TILES}")
    return reasons


def _mask_reasons(q: Tensor, k: Tensor, mask: PreparedMask) -> list[str]:
    reasons = []
    if (mask.num_rows, mask.num_keys) != (q.shape[1], k.shape[1]):
        reasons.append(
            f"the mask has {mask.num_rows} rows and {mask.num_keys} keys, q and k have {q.shape[1]} and "
            f"{k.shape[1]}"
        )
    batch, heads = mask.row_blocks.shape[:2]
    if batch not in (1, q.shape[0]):
        reasons.append(f"the mask's batch of {batch} is neither 1 nor q's {q.shape[0]}")
    if heads == 0 or q.shape[2] % heads:
        reasons.append(f"the mask's {heads} heads do not divide q's {q.shape[2]}")
    return reasons


def _ready_reasons(ready: ReadyFlags, k: Tensor) -> list[str]:
    epochs, size = ready.epochs, ready.chunk_size
    if size < 1 or size % hopper_ops.BLOCK_KEYS:
        return [f"chunk_size must be a multiple of {hopper_ops.BLOCK_KEYS} of at least that, got {size}"]
    chunks = -(-k.shape[1] // size)
    if epochs.dtype == torch.int32 and tuple(epochs.shape) == (chunks,) and epochs.device == k.device:
        return [] if epochs.is_contiguous() else ["epochs must be contiguous"]
    return [
        f"epochs must be int32 [{chunks}] on {k.device}, got {epochs.dtype} {list(epochs.shape)} on "
        f"{epochs.device}"
    ]
