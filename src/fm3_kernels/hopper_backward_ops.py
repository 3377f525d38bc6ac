"""The Hopper backward kernel as torch operations, beside those of `hopper_ops`.

`fm3::hopper_prepare_backward`, `fm3::hopper_backward`, and `fm3::hopper_backward_flagged`, which also says
when chunks of keys are done. What holds for `hopper_ops` holds here.

Shapes: B batch, S rows, T keys, H query heads, G kv heads, D head dim; Bm, Hm batch and heads of the mask;
RB row blocks of 64 rows, KB key blocks of 128 keys.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from fm3_kernels import hopper_ops
from fm3_kernels.extension import load_extension

BLOCK_KEYS = hopper_ops.BLOCK_KEYS
BLOCK_ROWS = 64
_SECTION_BYTES = 24 << 20  # of Q, dO and sums of dQ that are worked on side by side: they share L2

_LIBRARY = torch.library.Library("fm3", "FRAGMENT")
_LIBRARY.define(
    "hopper_prepare_backward(Tensor columns, Tensor extrema, Tensor row_blocks, Tensor? keep, "
    "SymInt num_rows, SymInt num_keys, SymInt kv_heads) -> (Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_ARGUMENTS = (
    "Tensor dout, Tensor q, Tensor k, Tensor v, Tensor? out, Tensor lse, Tensor? dlse, Tensor columns, "
    "Tensor extrema, Tensor row_blocks, Tensor? keep, Tensor records, Tensor sorted, Tensor visits, "
    "float softmax_scale, bool float_kv, int num_ctas"
)
_LIBRARY.define(
    f"hopper_backward({_ARGUMENTS}) -> (Tensor, Tensor, Tensor)", tags=(torch.Tag.pt2_compliant_tag,)
)
_LIBRARY.define(
    f"hopper_backward_flagged({_ARGUMENTS}, Tensor(a!) epochs, int epoch, int chunk_size) "
    "-> (Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)

Gradients = tuple[Tensor, Tensor, Tensor]


def prepare_backward(
    columns: Tensor,
    extrema: Tensor,
    row_blocks: Tensor,
    keep: Tensor | None,
    *,
    num_rows: int,
    num_keys: int,
    kv_heads: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a mask's records, sorted records and visits; see `BackwardLists`.

    Args:
        columns: see `PreparedMask`.
        extrema: see `PreparedMask`.
        row_blocks: see `PreparedMask`.
        keep: see `PreparedMask`.
        num_rows: rows of the mask.
        num_keys: keys of the mask.
        kv_heads: of the attention.
    """
    result = torch.ops.fm3.hopper_prepare_backward(
        columns, extrema, row_blocks, keep, num_rows, num_keys, kv_heads
    )
    return cast("tuple[Tensor, Tensor, Tensor]", result)


def backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor | None,
    lse: Tensor,
    dlse: Tensor | None,
    arrays: tuple[Tensor, Tensor, Tensor, Tensor | None],
    lists: tuple[Tensor, Tensor, Tensor],
    *,
    softmax_scale: float,
    float_kv: bool,
    num_ctas: int = 0,
    epochs: Tensor | None = None,
    epoch: int = 0,
    chunk_size: int = BLOCK_KEYS,
) -> Gradients:
    """Return dq, dk and dv, contiguous.

    Args:
        dout: [B, S, H, D] in q's dtype. It and q, k, v, out are copied if the copy engine cannot read them.
        q: bf16 or fp16 [B, S, H, D].
        k: [B, T, G, D] likewise.
        v: [B, T, G, D] likewise.
        out: [B, S, H, D] in q's dtype; None: rowsum(dout * out) is part of dlse, negated.
        lse: float32 [B, H, S].
        dlse: float32 [B, H, S], None for zeros.
        arrays: columns, extrema, row_blocks and keep of the `PreparedMask`.
        lists: records, sorted and visits of its `BackwardLists`.
        softmax_scale: factor of the scores, any finite number.
        float_kv: dk and dv in float32 instead of k's dtype.
        num_ctas: CTAs to start, 0 for one a multiprocessor.
        epochs: int32 [chunks], see `DoneFlags`; None where nobody waits.
        epoch: what a chunk's entry is set to once its dk and dv are in place.
        chunk_size: keys of a chunk, a multiple of 128.
    """
    arguments = (
        dout, q, k, v, out, lse, dlse, *arrays, *lists, softmax_scale, float_kv, num_ctas
    )  # fmt: skip
    if epochs is None:
        return cast("Gradients", torch.ops.fm3.hopper_backward(*arguments))
    return cast("Gradients", torch.ops.fm3.hopper_backward_flagged(*arguments, epochs, epoch, chunk_size))


def section_pairs(q: Tensor, k: Tensor, *, by_chunk: bool) -> int:
    """Return how many (batch entry, kv head) pairs are worked on side by side.

    Few, so that their rows share L2, and the pairs after them come later; all of them, where chunks of keys
    are waited for, since one is done when the last pair has passed it.
    """
    batch, rows, query_heads, dim = q.shape
    pairs = max(1, batch * k.shape[2])
    if by_chunk:
        return pairs
    row_bytes = 8 * rows * dim * (query_heads // k.shape[2])  # 2 of Q, 2 of dO, 4 of the sums
    return min(max(_SECTION_BYTES // max(1, row_bytes), 1), pairs)


@torch.library.impl(_LIBRARY, "hopper_prepare_backward", "CUDA")
def _prepare_backward(
    columns: Tensor,
    extrema: Tensor,
    row_blocks: Tensor,
    keep: Tensor | None,
    num_rows: int,
    num_keys: int,
    kv_heads: int,
) -> tuple[Tensor, Tensor, Tensor]:
    extension = load_extension()
    assert extension is not None, "the engine has refused such calls"
    arrays = _empty_lists(columns, num_rows)
    mask = hopper_ops.native_mask(columns, extrema, row_blocks, keep, num_rows, num_keys)
    with torch.cuda.device(columns.device):
        extension.prepare_backward(
            mask=mask,
            lists=_native_lists(mask, *arrays),
            kv_heads=kv_heads,
            stream=torch.cuda.current_stream().cuda_stream,
        )
    return arrays


@torch.library.impl(_LIBRARY, "hopper_backward", "CUDA")
@torch.library.impl(_LIBRARY, "hopper_backward_flagged", "CUDA")
def _backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor | None,
    lse: Tensor,
    dlse: Tensor | None,
    columns: Tensor,
    extrema: Tensor,
    row_blocks: Tensor,
    keep: Tensor | None,
    records: Tensor,
    in_order: Tensor,
    visits: Tensor,
    softmax_scale: float,
    float_kv: bool,
    num_ctas: int,
    epochs: Tensor | None = None,
    epoch: int = 0,
    chunk_size: int = BLOCK_KEYS,
) -> Gradients:
    extension = load_extension()
    assert extension is not None, "the engine has refused such calls"
    dq_scale = softmax_scale
    q, softmax_scale = hopper_ops.positive_scale(q, softmax_scale)
    dout, q, k, v = (hopper_ops.loadable(x) for x in (dout, q, k, v))
    out = None if out is None else hopper_ops.loadable(out)
    gradients = _empty_gradients(q, k, v, float_kv)
    batch, rows, heads, dim = q.shape
    blocks, chunks = batch * heads * -(-rows // BLOCK_ROWS), -(-k.shape[1] // chunk_size)
    dq_sums = q.new_empty(blocks * BLOCK_ROWS * dim, dtype=torch.float32)
    row_terms = q.new_empty(blocks * 2 * BLOCK_ROWS, dtype=torch.float32)
    counters = q.new_empty(1 + chunks + blocks, dtype=torch.int32)
    next_tile, stored, turns = (counters.data_ptr() + 4 * first for first in (0, 1, 1 + chunks))
    mask = hopper_ops.native_mask(columns, extrema, row_blocks, keep, rows, k.shape[1])
    dq, dk, dv = (hopper_ops.native_tensor(x) for x in gradients)
    nothing = extension.RowTensor(0, list(q.shape), [0, 0, 0])
    with torch.cuda.device(q.device):
        extension.backward(
            name=hopper_ops.instance_name(q.dtype, dim, float_output=False),
            q=hopper_ops.native_tensor(q),
            k=hopper_ops.native_tensor(k),
            v=hopper_ops.native_tensor(v),
            out=nothing if out is None else hopper_ops.native_tensor(out),
            d_out=hopper_ops.native_tensor(dout),
            lse=lse.data_ptr(),
            d_lse=0 if dlse is None else dlse.data_ptr(),
            dq=dq,
            dk=dk,
            dv=dv,
            float_kv=float_kv,
            mask=mask,
            lists=_native_lists(mask, records, in_order, visits),
            done=extension.DoneFlags(
                epochs=0 if epochs is None else epochs.data_ptr(),
                epoch=epoch % 2**32,
                blocks_per_chunk=chunk_size // BLOCK_KEYS,
                stored=stored,
            ),
            dq_sums=dq_sums.data_ptr(),
            row_terms=row_terms.data_ptr(),
            turns=turns,
            next_tile=next_tile,
            softmax_scale=softmax_scale,
            dq_scale=dq_scale,
            section_pairs=section_pairs(q, k, by_chunk=epochs is not None),
            num_ctas=num_ctas,
            stream=torch.cuda.current_stream().cuda_stream,
        )
    return gradients


def _fake_prepare_backward(
    columns: Tensor,
    extrema: Tensor,
    row_blocks: Tensor,
    keep: Tensor | None,
    num_rows: int,
    num_keys: int,
    kv_heads: int,
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_lists(columns, num_rows)


def _fake_backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *others: object) -> Gradients:
    return _empty_gradients(q, k, v, bool(others[11]))


torch.library.register_fake("fm3::hopper_prepare_backward", _fake_prepare_backward, lib=_LIBRARY)
torch.library.register_fake("fm3::hopper_backward", _fake_backward, lib=_LIBRARY)
torch.library.register_fake("fm3::hopper_backward_flagged", _fake_backward, lib=_LIBRARY)


def _empty_lists(columns: Tensor, num_rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return records, sorted and visits, not filled; csrc/attention/bwd_params.h has their layout."""
    batch, heads, key_blocks = columns.shape[:3]
    row_blocks = -(-num_rows // BLOCK_ROWS)
    return (
        columns.new_empty(batch, heads, key_blocks, 4),
        columns.new_empty(batch, heads, key_blocks, 4),
        columns.new_empty(batch, heads, row_blocks, -(-key_blocks // 32), 2),
    )


def _empty_gradients(q: Tensor, k: Tensor, v: Tensor, float_kv: bool) -> Gradients:
    kv_dtype = torch.float32 if float_kv else k.dtype
    return q.new_empty(q.shape), k.new_empty(k.shape, dtype=kv_dtype), v.new_empty(v.shape, dtype=kv_dtype)


def _native_lists(mask: object, records: Tensor, in_order: Tensor, visits: Tensor) -> object:
    extension = load_extension()
    assert extension is not None
    return extension.BackwardLists(
        mask=mask,
        records=records.data_ptr(),
        sorted=in_order.data_ptr(),
        visits=visits.data_ptr(),
    )
