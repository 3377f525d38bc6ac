"""CPU doubles of the Hopper operations, so that everything around the kernels runs without a GPU.

`fm3::hopper_prepare_mask` packs the vectors as the kernel does; forward and backward unpack them and ask the
reference engine.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from fm3_kernels import DeviceMask, hopper, hopper_ops
from fm3_kernels.reference import ReferenceEngine

BLOCK = hopper_ops.BLOCK_KEYS


def prepare_mask(
    lts: Tensor, lte: Tensor, uts: Tensor, ute: Tensor, keep: Tensor | None, num_rows: int, block_rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, keys = lts.shape
    blocks, row_blocks = -(-keys // BLOCK), -(-num_rows // block_rows)
    packed = torch.stack([lts, lte, uts, ute], dim=2)
    packed = torch.nn.functional.pad(packed, (0, blocks * BLOCK - keys))
    columns = packed.unflatten(3, (blocks, BLOCK)).transpose(2, 3).contiguous()
    return (
        columns,
        lts.new_zeros(batch, heads, 2 * blocks, 2, 4),
        lts.new_zeros(batch, heads, row_blocks, 4),
    )


def unpacked(columns: Tensor, rows: int, keys: int) -> DeviceMask:
    vectors = columns.transpose(2, 3).flatten(3)[..., :keys].unbind(2)
    return DeviceMask(*(x.contiguous() for x in vectors), num_rows=rows)


def forward(
    q: Tensor, k: Tensor, v: Tensor, columns: Tensor, extrema: Tensor, row_blocks: Tensor,
    keep: Tensor | None, epochs: Tensor | None, epoch: int, chunk_size: int, softmax_scale: float,
    float_output: bool, num_ctas: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    mask = unpacked(columns, q.shape[1], k.shape[1])
    out_dtype = torch.float32 if float_output else q.dtype
    return ReferenceEngine().forward(q, k, v, mask, softmax_scale=softmax_scale, out_dtype=out_dtype)


def prepare_backward(
    columns: Tensor, extrema: Tensor, row_blocks: Tensor, keep: Tensor | None, num_rows: int, num_keys: int,
    kv_heads: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    batch, heads, blocks = columns.shape[:3]
    assert heads % kv_heads == 0 or kv_heads % heads == 0
    records = columns.new_zeros(batch, heads, blocks, 4)
    visits = columns.new_zeros(batch, heads, -(-num_rows // 64), -(-blocks // 32), 2)
    return records, records.clone(), visits


def backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor | None, lse: Tensor, dlse: Tensor | None,
    columns: Tensor, extrema: Tensor, row_blocks: Tensor, keep: Tensor | None, records: Tensor,
    in_order: Tensor, visits: Tensor, softmax_scale: float, float_kv: bool, num_ctas: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    assert (dout.dtype, lse.dtype) == (q.dtype, torch.float32)
    assert lse.is_contiguous()
    mask = unpacked(columns, q.shape[1], k.shape[1])
    return ReferenceEngine().backward(
        dout, q, k, v, torch.zeros_like(q) if out is None else out, lse, mask, dlse=dlse,
        softmax_scale=softmax_scale, deterministic=True,
        kv_grad_dtype=torch.float32 if float_kv else k.dtype,
    )  # fmt: skip


def backward_flagged(*arguments: object) -> tuple[Tensor, Tensor, Tensor]:
    *shared, epochs, epoch, _ = arguments
    epochs.fill_(epoch)
    return backward(*shared)


@pytest.fixture
def hopper_double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the Hopper engine serve CPU tensors through the doubles."""
    monkeypatch.setattr(hopper, "_device_reasons", lambda kind, index: [])
    library = torch.library.Library("fm3", "IMPL")
    library.impl("hopper_prepare_mask", prepare_mask, "CPU")
    library.impl("hopper_forward", forward, "CPU")
    library.impl("hopper_prepare_backward", prepare_backward, "CPU")
    library.impl("hopper_backward", backward, "CPU")
    library.impl("hopper_backward_flagged", backward_flagged, "CPU")
    yield
    library._destroy()
