"""The Hopper kernels as torch operations: `fm3::hopper_prepare_mask` and `fm3::hopper_forward`.

Registered with fake kernels, so that torch.compile traces them. They start work on the current stream and
never wait; memory comes from torch's allocator alone, so that CUDA graphs capture them.

Shapes: B batch, S rows, T keys, H query heads, G kv heads, D head dim; Bm, Hm batch and heads of the mask;
RB row blocks of 128 rows, KB key blocks of 128 keys.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor

from fm3_kernels.extension import load_extension

BLOCK_KEYS = 128
_SECTION_BYTES = 32 << 20  # of K and V that are worked on side by side: fits L2; 8 and 128 MB were slower
_BAND_TILES = 64  # of a section, before the next section's while keys arrive; by a model, not measured yet
_SMALLEST_SCALE = 1e-37  # below it, scores in base 2 would lose their scale in float32

_LIBRARY = torch.library.Library("fm3", "FRAGMENT")
_LIBRARY.define(
    "hopper_prepare_mask(Tensor lts, Tensor lte, Tensor uts, Tensor ute, Tensor? keep, SymInt num_rows, "
    "int block_rows) -> (Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_LIBRARY.define(
    "hopper_forward(Tensor q, Tensor k, Tensor v, Tensor columns, Tensor extrema, Tensor row_blocks, "
    "Tensor? keep, Tensor? epochs, int epoch, int chunk_size, float softmax_scale, bool float_output, "
    "int num_ctas) -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def prepare_mask(
    lts: Tensor, lte: Tensor, uts: Tensor, ute: Tensor, keep: Tensor | None, num_rows: int, block_rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a mask's columns, extrema and row blocks; see `PreparedMask`.

    Args:
        lts: int32 [Bm, Hm, T], contiguous, on a CUDA device.
        lte: the same.
        uts: the same.
        ute: the same.
        keep: uint8 [Bm, Hm, RB, KB], contiguous, or None.
        num_rows: rows of the mask.
        block_rows: rows of a row block.
    """
    result = torch.ops.fm3.hopper_prepare_mask(lts, lte, uts, ute, keep, num_rows, block_rows)
    return cast("tuple[Tensor, Tensor, Tensor]", result)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    columns: Tensor,
    extrema: Tensor,
    row_blocks: Tensor,
    keep: Tensor | None,
    *,
    softmax_scale: float,
    float_output: bool = False,
    epochs: Tensor | None = None,
    epoch: int = 0,
    chunk_size: int = BLOCK_KEYS,
    num_ctas: int = 0,
) -> tuple[Tensor, Tensor]:
    """Return out and the log-sum-exp of attention under a prepared mask.

    Args:
        q: bf16 or fp16 [B, S, H, D]. Copied if the copy engine cannot read it: D not contiguous, its base or
            a stride not a multiple of 16 bytes, or a dimension expanded.
        k: [B, T, G, D], likewise.
        v: [B, T, G, D], likewise.
        columns: see `PreparedMask`.
        extrema: see `PreparedMask`.
        row_blocks: see `PreparedMask`.
        keep: see `PreparedMask`.
        softmax_scale: factor of the scores, any finite number.
        float_output: out in float32 instead of q's dtype.
        epochs: int32 [chunks], see `ReadyFlags`; None where all keys are there.
        epoch: keys of a chunk are read once its entry has come to this, counted modulo 2^32.
        chunk_size: keys of a chunk, a multiple of 128.
        num_ctas: CTAs to start, 0 for one a multiprocessor.

    Returns:
        out [B, S, H, D], contiguous, and lse float32 [B, H, S].
    """
    result = torch.ops.fm3.hopper_forward(
        q, k, v, columns, extrema, row_blocks, keep, epochs, epoch, chunk_size, softmax_scale, float_output,
        num_ctas,
    )  # fmt: skip
    return cast("tuple[Tensor, Tensor]", result)


def is_loadable(x: Tensor) -> bool:
    """Say whether the copy engine can read a 16-bit [B, S, H, D] tensor where it lies."""
    strides = [stride for stride, extent in zip(x.stride(), x.shape, strict=True) if extent > 1][:-1]
    aligned = all(stride > 0 and stride * x.element_size() % 16 == 0 for stride in strides)
    return aligned and x.stride(3) == 1 and x.data_ptr() % 16 == 0


def loadable(x: Tensor) -> Tensor:
    """Return x, or a copy that the copy engine can read."""
    return x if is_loadable(x) else x.clone(memory_format=torch.contiguous_format)


def section_pairs(q: Tensor, k: Tensor) -> int:
    """Return how many (batch entry, query head) pairs are worked on side by side, to share K and V in L2."""
    batch, _, query_heads, dim = q.shape
    kv_heads = max(1, _SECTION_BYTES // max(1, 2 * k.shape[1] * dim * k.element_size()))
    return min(kv_heads * (query_heads // k.shape[2]), max(1, batch * query_heads))


def band_rows(row_blocks: int, pairs: int, *, keys_arrive: bool) -> int:
    """Return how many row blocks every section of `pairs` pairs has its turn with, before any goes on.

    All, so that a section's keys and values stay in L2 to its end; but while keys arrive, few: a section that
    is worked on to its end waits for the last key before another starts with the first ones.
    """
    return min(row_blocks, -(-_BAND_TILES // pairs)) if keys_arrive else row_blocks


def instance_name(dtype: torch.dtype, dim: int, float_output: bool) -> str:
    """Return the name of the compiled forward kernel for inputs of a dtype and head dim."""
    inputs = {torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    return f"{inputs}_dim{dim}" + ("_float" if float_output else "")


@torch.library.impl(_LIBRARY, "hopper_prepare_mask", "CUDA")
def _prepare_mask(
    lts: Tensor, lte: Tensor, uts: Tensor, ute: Tensor, keep: Tensor | None, num_rows: int, block_rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    extension = load_extension()
    assert extension is not None, "the engine has refused such calls"
    columns, extrema, row_blocks = _empty_arrays(lts, num_rows, block_rows)
    unsorted = torch.empty_like(row_blocks)
    with torch.cuda.device(lts.device):
        extension.prepare_mask(
            lts=lts.data_ptr(),
            lte=lte.data_ptr(),
            uts=uts.data_ptr(),
            ute=ute.data_ptr(),
            mask=native_mask(columns, extrema, row_blocks, keep, num_rows, lts.shape[2]),
            unsorted=unsorted.data_ptr(),
            block_rows=block_rows,
            stream=torch.cuda.current_stream().cuda_stream,
        )
    return columns, extrema, row_blocks


@torch.library.impl(_LIBRARY, "hopper_forward", "CUDA")
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    columns: Tensor,
    extrema: Tensor,
    row_blocks: Tensor,
    keep: Tensor | None,
    epochs: Tensor | None,
    epoch: int,
    chunk_size: int,
    softmax_scale: float,
    float_output: bool,
    num_ctas: int,
) -> tuple[Tensor, Tensor]:
    extension = load_extension()
    assert extension is not None, "the engine has refused such calls"
    q, softmax_scale = positive_scale(q, softmax_scale)
    q, k, v = (loadable(x) for x in (q, k, v))
    out, lse = _empty_results(q, float_output)
    next_tile = torch.empty(1, dtype=torch.int32, device=q.device)
    pairs = section_pairs(q, k)
    with torch.cuda.device(q.device):
        extension.forward(
            name=instance_name(q.dtype, q.shape[3], float_output),
            q=native_tensor(q),
            k=native_tensor(k),
            v=native_tensor(v),
            out=native_tensor(out),
            lse=lse.data_ptr(),
            mask=native_mask(columns, extrema, row_blocks, keep, q.shape[1], k.shape[1]),
            ready=extension.ReadyFlags(
                epochs=0 if epochs is None else epochs.data_ptr(),
                epoch=epoch % 2**32,
                blocks_per_chunk=chunk_size // BLOCK_KEYS,
            ),
            next_tile=next_tile.data_ptr(),
            softmax_scale=softmax_scale,
            band_rows=band_rows(row_blocks.shape[2], pairs, keys_arrive=epochs is not None),
            section_pairs=pairs,
            num_ctas=num_ctas,
            stream=torch.cuda.current_stream().cuda_stream,
        )
    return out, lse


def _fake_prepare_mask(
    lts: Tensor, lte: Tensor, uts: Tensor, ute: Tensor, keep: Tensor | None, num_rows: int, block_rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_arrays(lts, num_rows, block_rows)


def _fake_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    columns: Tensor,
    extrema: Tensor,
    row_blocks: Tensor,
    keep: Tensor | None,
    epochs: Tensor | None,
    epoch: int,
    chunk_size: int,
    softmax_scale: float,
    float_output: bool,
    num_ctas: int,
) -> tuple[Tensor, Tensor]:
    return _empty_results(q, float_output)


torch.library.register_fake("fm3::hopper_prepare_mask", _fake_prepare_mask, lib=_LIBRARY)
torch.library.register_fake("fm3::hopper_forward", _fake_forward, lib=_LIBRARY)


def _empty_arrays(vector: Tensor, num_rows: int, block_rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return columns, extrema and row blocks, not filled; csrc/attention/mask_prepare.h has their layout."""
    batch, heads, num_keys = vector.shape
    key_blocks, row_blocks = -(-num_keys // BLOCK_KEYS), -(-num_rows // block_rows)
    return (
        vector.new_empty(batch, heads, key_blocks, 4, BLOCK_KEYS),
        vector.new_empty(batch, heads, 2 * key_blocks, 2, 4),
        vector.new_empty(batch, heads, row_blocks, 4),
    )


def _empty_results(q: Tensor, float_output: bool) -> tuple[Tensor, Tensor]:
    batch, rows, heads, _ = q.shape
    out = q.new_empty(q.shape, dtype=torch.float32 if float_output else q.dtype)
    return out, q.new_empty(batch, heads, rows, dtype=torch.float32)


def positive_scale(q: Tensor, softmax_scale: float) -> tuple[Tensor, float]:
    """Return a q and a scale above 0 with the same products: the kernel's running maximum needs that."""
    if abs(softmax_scale) < _SMALLEST_SCALE:
        return torch.zeros_like(q), 1.0
    return (q, softmax_scale) if softmax_scale > 0 else (q.neg(), math.fabs(softmax_scale))


def native_tensor(x: Tensor) -> object:
    """Return a tensor as the extension's functions take it."""
    extension = load_extension()
    assert extension is not None
    return extension.RowTensor(x.data_ptr(), list(x.shape), list(x.stride()[:3]))


def native_mask(
    columns: Tensor, extrema: Tensor, row_blocks: Tensor, keep: Tensor | None, num_rows: int, num_keys: int
) -> object:
    """Return a prepared mask's arrays as the extension's functions take them."""
    extension = load_extension()
    assert extension is not None
    return extension.PreparedMask(
        batch=row_blocks.shape[0],
        heads=row_blocks.shape[1],
        num_rows=num_rows,
        num_keys=num_keys,
        block_rows=128,
        columns=columns.data_ptr(),
        extrema=extrema.data_ptr(),
        row_blocks=row_blocks.data_ptr(),
        keep=0 if keep is None else keep.data_ptr(),
    )
