"""The backward kernel of the Hopper engine: gradients under a prepared mask."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fm3_core.errors import UnsupportedError
from fm3_kernels import hopper_backward_ops as ops
from fm3_kernels.backward_lists import BackwardLists, masks_of_kv_head
from fm3_kernels.prepared_mask import PreparedMask

_MOST_BLOCKS = (1 << 30) - 1


@dataclass(frozen=True, kw_only=True)
class DoneFlags:
    """Gradients of keys that leave while the kernel runs.

    Once dk and dv of all of a chunk's keys, over all heads and batch entries, are in place, the kernel sets
    the chunk's entry in `epochs` to `epoch`, with release order for the whole system: whoever reads the entry
    with acquire order, on this device or another, may read the chunk. Entries are not touched before, so that
    with an epoch of its own for each call nothing needs clearing.

    Key blocks come in one order for all heads then, which costs some sharing of rows in L2.

    Args:
        epochs: int32 [chunks] on the keys' device, contiguous.
        epoch: what entries are set to, taken modulo 2^32.
        chunk_size: keys of a chunk, a multiple of 128; the last chunk may be shorter.
    """

    epochs: Tensor
    epoch: int
    chunk_size: int


def backward_prepared(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    mask: PreparedMask,
    lists: BackwardLists,
    *,
    softmax_scale: float,
    dlse: Tensor | None = None,
    kv_grad_dtype: torch.dtype | None = None,
    done: DoneFlags | None = None,
    num_ctas: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of attention under a prepared mask, which may have a map of blocks to keep.

    Args:
        dout: floating [batch, rows, query heads, dim].
        q: bf16 or fp16 [batch, rows, query heads, dim].
        k: [batch, keys, kv heads, dim].
        v: [batch, keys, kv heads, dim].
        out: forward's result, any floating dtype.
        lse: forward's log-sum-exp, [batch, query heads, rows].
        mask: prepared on the same device.
        lists: made from that mask.
        softmax_scale: factor of the scores.
        dlse: gradient of lse, None for none.
        kv_grad_dtype: dtype of dk and dv, None for k's; float32 comes from the float32 sums unrounded.
        done: whom to tell which keys' gradients are in place; None for nobody.
        num_ctas: most multiprocessors to use, 0 for all.

    Returns:
        (dq, dk, dv), contiguous, dq in q's dtype.

    Raises:
        UnsupportedError: the flags, or the mask's sizes, do not fit the tensors; with every reason.
    """
    kv_grad_dtype = k.dtype if kv_grad_dtype is None else kv_grad_dtype
    reasons = _list_reasons(q, k, mask, lists) + (
        [] if done is None else _done_reasons(done, k, kv_grad_dtype)
    )
    if reasons:
        raise UnsupportedError("backward_prepared", reasons)
    row_sums, dlse = _row_gradients(dout, q, out, dlse)
    dq, dk, dv = ops.backward(
        dout.to(q.dtype),
        q,
        k,
        v,
        row_sums,
        lse.to(torch.float32).contiguous(),
        dlse,
        (mask.columns, mask.extrema, mask.row_blocks, mask.keep),
        (lists.records, lists.sorted, lists.visits),
        softmax_scale=softmax_scale,
        float_kv=kv_grad_dtype != k.dtype,
        num_ctas=num_ctas,
        epochs=None if done is None else done.epochs,
        epoch=0 if done is None else done.epoch,
        chunk_size=ops.BLOCK_KEYS if done is None else done.chunk_size,
    )
    return dq, dk.to(kv_grad_dtype), dv.to(kv_grad_dtype)


def size_reasons(q: Tensor, k: Tensor) -> list[str]:
    """Return which sizes the kernel's 32-bit counters do not hold; offsets in memory are 64-bit."""
    counts = {
        "blocks of rows": q.shape[0] * q.shape[2] * -(-q.shape[1] // ops.BLOCK_ROWS),
        "blocks of keys": k.shape[0] * k.shape[2] * -(-k.shape[1] // ops.BLOCK_KEYS),
    }
    return [
        f"backward has {count} {what} over batch and heads, it takes {_MOST_BLOCKS}"
        for what, count in counts.items()
        if count > _MOST_BLOCKS
    ]


def _row_gradients(
    dout: Tensor, q: Tensor, out: Tensor, dlse: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Return out and dlse, whose rowsum(dout * out) - dlse the kernel takes, or None and that, negated."""
    if dlse is not None:
        dlse = dlse.to(torch.float32)
    if out.dtype == q.dtype and dout.dtype == q.dtype:
        return out, None if dlse is None else dlse.contiguous()
    sums = (dout.to(torch.float32) * out.to(torch.float32)).sum(-1).transpose(1, 2)
    return None, (-sums if dlse is None else dlse - sums).contiguous()


def _list_reasons(q: Tensor, k: Tensor, mask: PreparedMask, lists: BackwardLists) -> list[str]:
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
    expected = (batch, heads, -(-mask.num_keys // ops.BLOCK_KEYS), 4)
    if tuple(lists.records.shape) != expected:
        reasons.append(
            f"the lists are of {list(lists.records.shape[:3])} batch entries, heads and key blocks, the mask "
            f"has {list(expected[:3])}"
        )
    kv_heads = k.shape[2]
    if heads % kv_heads and kv_heads % heads:
        reasons.append(
            f"the mask's {heads} heads neither divide the {kv_heads} kv heads nor are a multiple of them"
        )
    elif lists.masks_of_kv_head != masks_of_kv_head(heads, kv_heads):
        reasons.append(
            f"the lists are of {lists.masks_of_kv_head} mask heads a kv head, here there are "
            f"{masks_of_kv_head(heads, kv_heads)}"
        )
    return reasons


def _done_reasons(done: DoneFlags, k: Tensor, kv_grad_dtype: torch.dtype) -> list[str]:
    epochs, size = done.epochs, done.chunk_size
    reasons = []
    if kv_grad_dtype not in (k.dtype, torch.float32):
        reasons.append(f"dk and dv are converted to {kv_grad_dtype} after they are called done")
    if size < 1 or size % ops.BLOCK_KEYS:
        return [*reasons, f"chunk_size must be a multiple of {ops.BLOCK_KEYS} of at least that, got {size}"]
    chunks = -(-k.shape[1] // size)
    if epochs.dtype != torch.int32 or tuple(epochs.shape) != (chunks,) or epochs.device != k.device:
        reasons.append(
            f"epochs must be int32 [{chunks}] on {k.device}, got {epochs.dtype} {list(epochs.shape)} on "
            f"{epochs.device}"
        )
    elif not epochs.is_contiguous():
        reasons.append("epochs must be contiguous")
    return reasons
