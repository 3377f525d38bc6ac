"""What the CUDA extension says without a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

FORWARD = ["bf16_dim128", "bf16_dim64", "fp16_dim128", "fp16_dim64"]


@pytest.fixture
def extension() -> Any:
    reason = "fm3_kernels._C was not built here: the install found no nvcc"
    return pytest.importorskip("fm3_kernels._C", reason=reason)


def prepared_mask(extension: Any, num_rows: int = 300, num_keys: int = 200) -> Any:
    return extension.PreparedMask(
        batch=1, heads=1, num_rows=num_rows, num_keys=num_keys, block_rows=128, columns=0, extrema=0,
        row_blocks=0, keep=0,
    )  # fmt: skip


def prepare(extension: Any, mask: Any, block_rows: int = 128) -> None:
    vectors = dict.fromkeys(("lts", "lte", "uts", "ute"), 0)
    extension.prepare_mask(**vectors, mask=mask, unsorted=0, block_rows=block_rows, stream=0)


def forward(extension: Any, *, name: str = "bf16_dim64", rows: int = 300, dim: int = 64) -> None:
    tensor = extension.RowTensor(0, [1, rows, 1, dim], [rows * dim, dim, dim])
    extension.forward(
        name=name, q=tensor, k=tensor, v=tensor, out=tensor, lse=0, mask=prepared_mask(extension, rows, rows),
        ready=extension.ReadyFlags(epochs=0, epoch=0, blocks_per_chunk=1), next_tile=0, softmax_scale=1.0,
        band_rows=1, section_pairs=1, num_ctas=0, stream=0,
    )  # fmt: skip


def test_it_says_what_it_was_built_with(extension: Any):
    assert extension.build_info()["architecture"] == "90a"
    assert extension.build_info()["nvcc"].split(".")[0].isdigit()


def test_its_forward_kernels_are_listed(extension: Any):
    names = sorted([*FORWARD, *(f"{name}_float" for name in FORWARD)])
    found = extension.forward_instances()
    assert sorted(found) == names
    for name, instance in found.items():
        assert instance["block_rows"] == 128
        assert f"dim{instance['head_dim']}" in name
        assert instance["float_output"] == name.endswith("_float")


def test_sizes_of_a_prepared_mask_are_those_that_torch_allocates(extension: Any):
    columns, extrema, row_blocks, scratch = extension.prepared_sizes(2, 3, 300, 200, 128)
    assert columns == 2 * 3 * 2 * 4 * 128 * 4
    assert extrema == 2 * 3 * 4 * 2 * 4 * 4
    assert row_blocks == scratch == 2 * 3 * 3 * 4 * 4


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda c: prepare(c, prepared_mask(c, num_keys=0), block_rows=100),
            "block_rows must be 64, 128 or 192",
        ),
        (
            lambda c: c.ReadyFlags(epochs=0, epoch=0, blocks_per_chunk=0),
            "blocks_per_chunk must be at least 1",
        ),
        (
            lambda c: forward(c, name="bf16_dim96"),
            "no forward kernel is called bf16_dim96; compiled are bf16_dim",
        ),
        (lambda c: forward(c, dim=128), "head_dim 128 is not that of bf16_dim64"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(extension: Any, call: Any, words: str):
    with pytest.raises(extension.DeviceError, match=rf"{words}.* \(csrc/.*:\d+\)"):
        call(extension)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_launch_without_a_gpu_names_the_cuda_error(extension: Any):
    with pytest.raises(extension.DeviceError, match="prepare_columns: cudaError"):
        prepare(extension, prepared_mask(extension))
    with pytest.raises(extension.DeviceError, match="cudaGetDriverEntryPointByVersion: cudaError"):
        forward(extension)


def test_what_is_empty_launches_nothing(extension: Any):
    prepare(extension, prepared_mask(extension, num_rows=0, num_keys=0))
    forward(extension, rows=0)
