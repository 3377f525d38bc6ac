"""What the Hopper engine decides before a kernel starts: reasons, shapes, prepared masks, copies."""

from __future__ import annotations

import math

import pytest
import torch

from fm3_core import Fm3Error, MaskError, UnsupportedError, patterns
from fm3_kernels import DeviceMask, hopper, hopper_ops, why_unsupported
from fm3_kernels.hopper import ReadyFlags, forward_prepared
from fm3_kernels.prepared_mask import PreparedMask

META = torch.device("meta")


def device_mask(mask, device=META):
    return DeviceMask.from_mask(mask, device)


def tensors(rows=300, keys=200, heads=4, kv_heads=2, dim=64, dtype=torch.bfloat16, batch=1, device=META):
    q = torch.empty(batch, rows, heads, dim, dtype=dtype, device=device)
    k = torch.empty(batch, keys, kv_heads, dim, dtype=dtype, device=device)
    return q, k, torch.empty_like(k)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"dtype": torch.float32},
            "the tensors are torch.float32, it takes torch.float16 and torch.bfloat16",
        ),
        ({"dim": 96}, "the head dim is 96, it takes 64 and 128"),
    ],
)
def test_a_call_that_the_kernel_cannot_serve_has_its_reason(options, reason):
    reasons = hopper.HopperEngine().why_unsupported(
        *tensors(**options), device_mask(patterns.full(300, 200)), deterministic=False
    )
    assert reason in reasons
    assert any("it needs a CUDA device of compute capability 9.0" in each for each in reasons)


def test_a_value_dim_of_its_own_is_a_reason():
    q, k, _ = tensors()
    reasons = hopper.HopperEngine().why_unsupported(
        q, k, k[..., :32], device_mask(patterns.full(300, 200)), deterministic=False
    )
    assert "v has head dim 32, q has 64: it takes equal ones" in reasons


@pytest.mark.parametrize(
    ("rows", "keys", "batch", "expected"),
    [
        (1 << 30, 8, 1, "there are 1073741824 rows, it takes fewer than 1073741824"),
        (8, (1 << 30) + 1, 1, "there are 1073741825 keys, it takes fewer than 1073741824"),
        (8, 8, 1 << 30, "there are 4294967296 blocks of rows over batch and heads, it takes 2147483647"),
    ],
)
def test_sizes_beyond_32_bit_counters_are_reasons(rows, keys, batch, expected):
    q, k, v = tensors(rows=rows, keys=keys, batch=batch)
    mask = DeviceMask(
        *(torch.empty(1, 1, keys, dtype=torch.int32, device=META) for _ in range(4)), num_rows=rows
    )
    assert expected in hopper.HopperEngine().why_unsupported(q, k, v, mask, deterministic=False)


def test_why_unsupported_names_the_engine():
    q, k, v = tensors(dtype=torch.float32, device="cpu")
    reasons = why_unsupported(q, k, v, patterns.full(300, 200), engine="hopper")
    assert all(reason.startswith("engine 'hopper': ") for reason in reasons)
    assert any("the tensors are on cpu" in reason for reason in reasons)


@pytest.mark.parametrize(
    ("out_dtype", "kernel"),
    [(None, torch.bfloat16), (torch.float32, torch.float32), (torch.float64, torch.float32)],
)
def test_results_have_their_shapes_and_dtypes(out_dtype, kernel):
    mask = PreparedMask.from_mask(device_mask(patterns.causal(300, 200)))
    out, lse = forward_prepared(*tensors(), mask, softmax_scale=0.5, out_dtype=out_dtype)
    assert (out.shape, out.dtype) == ((1, 300, 4, 64), out_dtype or torch.bfloat16)
    assert (lse.shape, lse.dtype) == ((1, 4, 300), torch.float32)
    assert hopper_ops.instance_name(torch.bfloat16, 64, kernel == torch.float32) in {
        "bf16_dim64",
        "bf16_dim64_float",
    }


def test_a_mask_is_prepared_once():
    mask = device_mask(patterns.causal_document([100, 200]))
    assert hopper.prepared(mask) is hopper.prepared(mask)
    columns = hopper.prepared(mask).columns
    assert columns.shape == (1, 1, 3, 4, 128)
    assert hopper.prepared(mask).extrema.shape == (1, 1, 6, 2, 4)
    assert hopper.prepared(mask).row_blocks.shape == (1, 1, 3, 4)


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (1, 4), (3, 2)])
def test_a_keep_map_may_have_more_heads_and_entries_than_the_mask(shape):
    keep = torch.zeros(*shape, 3, 2, dtype=torch.bool, device=META)
    mask = PreparedMask.from_mask(device_mask(patterns.full(300, 200)), keep=keep)
    assert mask.keep is not None
    assert mask.keep.shape == (*shape, 3, 2)
    assert mask.columns.shape[:2] == shape
    forward_prepared(*tensors(batch=3), mask, softmax_scale=1.0)


@pytest.mark.parametrize(
    ("keep", "words"),
    [
        (torch.zeros(1, 1, 2, 2, dtype=torch.bool), r"3 row blocks, 2 key blocks.*got \[1, 1, 2, 2\]"),
        (torch.zeros(3, 2, dtype=torch.bool), r"got \[3, 2\]"),
        (torch.zeros(1, 1, 3, 2), "keep must be bool or uint8, got torch.float32"),
        (torch.zeros(1, 1, 3, 2, dtype=torch.bool, device="meta"), "keep is on meta, the mask on cpu"),
        (torch.zeros(3, 1, 3, 2, dtype=torch.bool), "keep has batch 3, the mask 2"),
        (torch.zeros(1, 3, 3, 2, dtype=torch.bool), "keep has heads 3, the mask 2"),
        (torch.zeros(1, 0, 3, 2, dtype=torch.bool), "keep has heads 0, the mask 2"),
    ],
)
def test_a_keep_map_that_does_not_fit_is_refused(keep, words):
    vectors = (torch.zeros(2, 2, 200, dtype=torch.int32) for _ in range(4))
    with pytest.raises(MaskError, match=words):
        PreparedMask.from_mask(DeviceMask(*vectors, num_rows=300), keep=keep)


@pytest.mark.parametrize(
    ("epochs", "chunk_size", "words"),
    [
        (torch.zeros(2, dtype=torch.int32, device=META), 100, "chunk_size must be a multiple of 128"),
        (torch.zeros(2, dtype=torch.int32, device=META), 0, "chunk_size must be a multiple of 128"),
        (torch.zeros(3, dtype=torch.int32, device=META), 128, r"epochs must be int32 \[2\] on meta"),
        (torch.zeros(2, dtype=torch.int64, device=META), 128, "got torch.int64"),
        (torch.zeros(2, dtype=torch.int32), 128, "on cpu"),
        (torch.zeros(4, dtype=torch.int32, device=META)[::2], 128, "epochs must be contiguous"),
    ],
)
def test_flags_that_do_not_fit_the_keys_are_refused(epochs, chunk_size, words):
    mask = PreparedMask.from_mask(device_mask(patterns.full(300, 200)))
    with pytest.raises(UnsupportedError, match=words):
        forward_prepared(
            *tensors(),
            mask,
            softmax_scale=1.0,
            ready=ReadyFlags(epochs=epochs, epoch=1, chunk_size=chunk_size),
        )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rows": 299}, "the mask has 300 rows and 200 keys, q and k have 299 and 200"),
        ({"batch": 3}, "the mask's batch of 2 is neither 1 nor q's 3"),
        ({"batch": 2, "heads": 3, "kv_heads": 3}, "the mask's 2 heads do not divide q's 3"),
    ],
)
def test_a_prepared_mask_that_does_not_fit_is_refused(options, words):
    vectors = (torch.zeros(2, 2, 200, dtype=torch.int32, device=META) for _ in range(4))
    mask = PreparedMask.from_mask(DeviceMask(*vectors, num_rows=300))
    with pytest.raises(Fm3Error, match=words):
        forward_prepared(*tensors(**options), mask, softmax_scale=1.0)


@pytest.mark.parametrize(
    ("change", "loadable"),
    [
        (lambda x: x, True),
        (lambda x: x[:, ::2], True),
        (lambda x: x.transpose(1, 2), True),
        (lambda x: x[..., ::2], False),
        (lambda x: x[..., 4:], False),
        (lambda x: x.transpose(1, 3), False),
        (lambda x: x[:, :, :1].expand(-1, -1, 5, -1), False),
        (lambda x: x[:, :1].expand(-1, 1, -1, -1), True),
        (lambda x: x.reshape(2, -1)[:, 8:104].unflatten(1, (3, 2, 16)), True),
        (lambda x: x.reshape(-1)[4 : 4 + 64].view(1, 1, 1, 64), False),
    ],
    ids=[
        "as made",
        "rows",
        "heads first",
        "dims",
        "base",
        "dims first",
        "expanded",
        "one row",
        "base and batch stride",
        "odd base",
    ],
)
def test_the_copy_engine_reads_aligned_strides_where_they_lie(change, loadable):
    assert hopper_ops.is_loadable(change(torch.zeros(2, 6, 4, 64, dtype=torch.bfloat16))) == loadable


@pytest.mark.parametrize("scale", [0.3, -0.3, 0.0, -0.0, 1e-40, -1e-300])
def test_every_scale_becomes_one_above_zero_with_the_same_scores(scale):
    q = torch.randn(1, 5, 1, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    changed, positive = hopper_ops.positive_scale(q, scale)
    assert positive > 0
    assert math.isfinite(positive)
    torch.testing.assert_close(changed * positive, q * scale)


@pytest.mark.parametrize(
    ("row_blocks", "pairs", "band"),
    [(128, 4, 16), (128, 3, 22), (7, 4, 7), (128, 64, 1), (5, 1000, 1), (0, 4, 0)],
)
def test_while_keys_arrive_sections_take_turns_after_a_band_of_tiles(row_blocks, pairs, band):
    assert hopper_ops.band_rows(row_blocks, pairs, keys_arrive=True) == band
    assert hopper_ops.band_rows(row_blocks, pairs, keys_arrive=False) == row_blocks


def test_a_section_of_pairs_is_whole_groups_of_query_heads():
    q, k, _ = tensors(rows=8192, keys=131072, heads=32, kv_heads=8, dim=128)
    assert hopper_ops.section_pairs(q, k) % 4 == 0
    assert hopper_ops.section_pairs(q, k[:, :0]) == 32
    assert hopper_ops.section_pairs(q[:0], k[:0]) == 1
