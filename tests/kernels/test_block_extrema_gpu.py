"""The CUDA extension's block extrema against those that torch reduces."""

from __future__ import annotations

import importlib

import pytest
import torch

from fm3_core import ColumnMask, pack, patterns
from fm3_kernels import DeviceMask
from fm3_kernels.extrema import BlockExtrema

try:
    extension = importlib.import_module("fm3_kernels._C")
except ImportError:
    extension = None

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
    pytest.mark.skipif(
        extension is None, reason="fm3_kernels._C was not built here: the install found no nvcc"
    ),
]


def extrema_by_extension(mask: DeviceMask, block_keys: int) -> torch.Tensor:
    num_blocks = -(-mask.num_keys // block_keys)
    table = torch.full((8, mask.batch, mask.heads, num_blocks), -1, dtype=torch.int32, device=mask.device)
    extension.block_extrema(
        lts=mask.lts.data_ptr(),
        lte=mask.lte.data_ptr(),
        uts=mask.uts.data_ptr(),
        ute=mask.ute.data_ptr(),
        table=table.data_ptr(),
        num_masks=mask.batch * mask.heads,
        num_keys=mask.num_keys,
        num_rows=mask.num_rows,
        block_keys=block_keys,
        stream=torch.cuda.current_stream().cuda_stream,
    )
    return table


def random_mask(batch: int, heads: int, num_rows: int, num_keys: int) -> DeviceMask:
    generator = torch.Generator().manual_seed(num_keys)
    values = torch.randint(0, num_rows + 1, (2, 2, batch, heads, num_keys), generator=generator)
    (lts, uts), (lte, ute) = values.sort(dim=0).values.to(torch.int32).cuda()
    return DeviceMask(lts, lte, uts, ute, num_rows=num_rows)


@pytest.mark.parametrize("block_keys", [1, 64, 100, 128])
@pytest.mark.parametrize("shape", [(1, 1, 7, 5), (2, 3, 1000, 1001), (1, 2, 300, 128), (1, 1, 64, 4096)])
def test_the_extension_finds_the_extrema_that_torch_finds(shape: tuple[int, int, int, int], block_keys: int):
    mask = random_mask(*shape)
    torch.testing.assert_close(
        extrema_by_extension(mask, block_keys), mask.block_extrema(block_keys).table, rtol=0, atol=0
    )


@pytest.mark.parametrize(
    "mask",
    [
        patterns.full(300),
        patterns.causal_document([100, 1, 500]),
        patterns.global_sliding_window(700, 16, 50, 50),
        pack([patterns.causal(129), patterns.full(64)]),
    ],
)
def test_empty_spans_are_kept_out_of_the_touch_extrema_alone(mask: ColumnMask):
    on_device = DeviceMask.from_mask(mask, "cuda")
    expected = BlockExtrema.from_vectors(
        *(torch.tensor(getattr(mask, name)) for name in ("lts", "lte", "uts", "ute")),
        num_rows=mask.num_rows,
        block_keys=128,
    )
    torch.testing.assert_close(extrema_by_extension(on_device, 128).cpu(), expected.table, rtol=0, atol=0)


def test_a_mask_without_keys_launches_nothing():
    mask = random_mask(1, 1, 8, 0)
    assert extrema_by_extension(mask, 128).shape == (8, 1, 1, 0)
