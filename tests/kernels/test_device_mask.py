"""Masks on a device: conversion, FlashMask indices, validation, extrema made once."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from attention_masks import MASKS
from hypothesis import given, settings
from hypothesis import strategies as st

from fm3_core import ColumnMask, MaskError, patterns
from fm3_kernels import DeviceMask, attention


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_survives_the_way_to_the_device_and_back(name: str) -> None:
    on_device = DeviceMask.from_mask(MASKS[name], "cpu")
    assert on_device.to_mask() == MASKS[name]
    assert on_device.shape == MASKS[name].shape
    assert on_device.lts.dtype == torch.int32


def test_a_device_mask_does_not_share_the_host_masks_memory() -> None:
    mask = patterns.causal(8)
    on_device = DeviceMask.from_mask(mask)
    on_device.ute.add_(1)
    assert mask == patterns.causal(8)


@pytest.mark.parametrize(("n", "causal"), [(1, True), (2, True), (2, False), (4, False)])
@pytest.mark.parametrize(("num_rows", "num_keys"), [(9, 9), (12, 5), (5, 12)])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_flashmask_indices_mean_what_core_says(
    n: int, causal: bool, num_rows: int, num_keys: int, dtype: torch.dtype
) -> None:
    random = np.random.default_rng(n)
    indices = np.sort(random.integers(0, num_rows + 1, (2, 3, num_keys, n)), axis=-1)
    right = ColumnMask.from_startend_row_indices(indices, causal=causal, num_rows=num_rows)
    given_indices = torch.tensor(indices, dtype=dtype)
    for validate in (False, True):
        mine = DeviceMask.from_startend_row_indices(
            given_indices, causal=causal, num_rows=num_rows, validate=validate
        )
        assert mine.to_mask() == right


def test_rows_are_as_many_as_keys_unless_told() -> None:
    indices = torch.full((1, 1, 6, 1), 6, dtype=torch.int32)
    assert DeviceMask.from_startend_row_indices(indices, causal=True).to_mask() == patterns.causal(6)


@settings(max_examples=50, deadline=None)
@given(values=st.lists(st.tuples(*[st.integers(-5, 15)] * 4), min_size=1, max_size=12))
def test_without_validation_values_are_clamped_and_reversed_spans_hide_nothing(values: list) -> None:
    indices = np.array(values, dtype=np.int32)[None, None]
    mine = DeviceMask.from_startend_row_indices(torch.tensor(indices), causal=False, num_rows=10).to_mask()
    lts, lte, uts, ute = np.moveaxis(indices.clip(0, 10), -1, 0)
    right = ColumnMask(lts, np.maximum(lts, lte), uts, np.maximum(uts, ute), num_rows=10)
    assert mine == right


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ([4, 2, 0, 0], r"lower span \[4, 2\)"),
        ([0, 9, 0, 0], r"lower span \[0, 9\)"),
        ([0, 0, -1, 3], r"upper span \[-1, 3\)"),
    ],
)
def test_validation_names_the_column(column: list[int], text: str) -> None:
    indices = torch.zeros(2, 1, 3, 4, dtype=torch.int32)
    indices[1, 0, 2] = torch.tensor(column)
    match = rf"batch 1, head 0, column 2: {text} must satisfy .* num_rows=8 \(1 of 6 columns are wrong\)"
    with pytest.raises(MaskError, match=match):
        DeviceMask.from_startend_row_indices(indices, causal=False, num_rows=8, validate=True)


@pytest.mark.parametrize(
    ("shape", "causal", "dtype", "text"),
    [
        ((1, 1, 4, 3), True, torch.int32, "n=3"),
        ((1, 1, 4, 4), True, torch.int32, "n=4"),
        ((1, 1, 4, 1), False, torch.int32, "n=1"),
        ((1, 4, 1), True, torch.int32, r"got torch.int32 \[1, 4, 1\]"),
        ((1, 1, 4, 1), True, torch.float32, "got torch.float32"),
    ],
)
def test_indices_without_a_meaning_are_refused(
    shape: tuple[int, ...], causal: bool, dtype: torch.dtype, text: str
) -> None:
    with pytest.raises(MaskError, match=text):
        DeviceMask.from_startend_row_indices(torch.zeros(shape, dtype=dtype), causal=causal)


def test_indices_that_are_no_tensor_are_refused() -> None:
    with pytest.raises(MaskError, match="torch tensor, got ndarray"):
        DeviceMask.from_startend_row_indices(np.zeros((1, 1, 4, 1), np.int32), causal=True)


def test_indices_never_reach_the_host_without_validation() -> None:
    indices = torch.empty(1, 2, 300, 4, dtype=torch.int32, device="meta")
    mask = DeviceMask.from_startend_row_indices(indices, causal=False)
    assert mask.block_extrema(128).table.shape == (8, 1, 2, 3)
    assert mask.device.type == "meta"


VECTOR = torch.zeros(1, 1, 4, dtype=torch.int32)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (VECTOR[0], r"uts must be int32 \[batch, heads, keys\], got torch.int32 \[1, 4\]"),
        (VECTOR.long(), "uts must be int32"),
        (VECTOR[..., :3], r"uts is \[1, 1, 3\] on cpu, lts is \[1, 1, 4\] on cpu"),
        (VECTOR.to("meta"), "uts is .* on meta, lts is .* on cpu"),
        ([0, 0, 0, 0], "uts must be a torch tensor, got list"),
    ],
)
def test_vectors_that_do_not_fit_are_refused(wrong: object, text: str) -> None:
    with pytest.raises(MaskError, match=text):
        DeviceMask(VECTOR, VECTOR, wrong, VECTOR, num_rows=4)


def test_device_masks_are_frozen() -> None:
    mask = DeviceMask.from_mask(patterns.causal(4))
    with pytest.raises(dataclasses.FrozenInstanceError):
        mask.num_rows = 5


def test_extrema_are_made_once_for_each_block_size() -> None:
    mask = DeviceMask.from_mask(patterns.causal(300))
    assert mask.block_extrema(128) is mask.block_extrema(128)
    assert mask.block_extrema(64) is not mask.block_extrema(128)
    x = torch.randn(1, 300, 1, 8, generator=torch.Generator().manual_seed(0))
    attention(x, x, x, mask, engine="tiled")
    assert mask.block_extrema(128).host is mask.block_extrema(128).host


def test_what_is_no_mask_and_devices_that_are_not_here_are_refused():
    with pytest.raises(MaskError, match="from_mask takes a ColumnMask, got NoneType"):
        DeviceMask.from_mask(None)
    with pytest.raises(MaskError, match="device 'xyz' cannot be used here"):
        DeviceMask.from_mask(patterns.causal(4), "xyz")
