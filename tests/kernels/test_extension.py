"""What the CUDA extension says without a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

SIZES: dict[str, int] = {"num_masks": 1, "num_keys": 8, "num_rows": 8, "block_keys": 4}
ADDRESSES: dict[str, int] = dict.fromkeys(("lts", "lte", "uts", "ute", "table", "stream"), 0)


@pytest.fixture
def extension() -> Any:
    reason = "fm3_kernels._C was not built here: the install found no nvcc"
    return pytest.importorskip("fm3_kernels._C", reason=reason)


def test_it_says_what_it_was_built_with(extension: Any):
    assert extension.build_info()["architecture"] == "90a"
    assert extension.build_info()["nvcc"].split(".")[0].isdigit()


@pytest.mark.parametrize("wrong", [{"block_keys": 0}, {"num_rows": -1}, {"num_keys": -1}, {"num_masks": -1}])
def test_an_impossible_size_is_refused_with_its_place(extension: Any, wrong: dict[str, int]):
    with pytest.raises(
        RuntimeError, match=r"block_extrema: sizes .* \(csrc/attention/block_extrema\.cu:\d+\)"
    ):
        extension.block_extrema(**{**ADDRESSES, **SIZES, **wrong})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_launch_without_a_gpu_names_the_cuda_error(extension: Any):
    with pytest.raises(RuntimeError, match="block_extrema: cudaError"):
        extension.block_extrema(**ADDRESSES, **SIZES)


def test_a_mask_without_keys_launches_nothing(extension: Any):
    extension.block_extrema(**{**ADDRESSES, **SIZES, "num_keys": 0})
