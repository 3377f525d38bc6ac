"""Blocks of the Hopper forward kernel: the prepared mask, maps of blocks to keep, keys that arrive late."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hopper_compare import DIMS, check, dense, needs_hopper, plain_errors, problem, run
from launch_watchdog import note_input
from pattern_masks import PATTERNS, pattern, random_spans, stacked

from fm3_core import BlockMap, ColumnMask, patterns
from fm3_kernels import DeviceMask, hopper, hopper_ops
from fm3_kernels.hopper import PreparedMask, ReadyFlags

pytestmark = needs_hopper

SPANS = [random_spans(np.random.default_rng(seed), 777, 650, heads=3) for seed in range(15)]


def prepare(mask: ColumnMask, keep: torch.Tensor | None = None) -> PreparedMask:
    """Return a host mask's prepared form."""
    return PreparedMask.from_mask(DeviceMask.from_mask(mask, "cuda"), keep=keep)


@pytest.mark.parametrize("mask", [*(pattern(name, 777, 650) for name in PATTERNS), *SPANS])
def test_row_blocks_come_by_falling_work_and_visit_what_is_not_empty(mask):
    note_input(f"{mask.shape}")
    found = prepare(mask).row_blocks.cpu().numpy()
    exact = BlockMap.from_mask(mask, 128, 128).kinds != 0
    halves = BlockMap.from_mask(mask, 64, 64, method="extrema").kinds != 0
    halves = np.pad(halves, [(0, 0), (0, 0), (0, -halves.shape[2] % 2), (0, -halves.shape[3] % 2)])
    allowed = halves.reshape(*halves.shape[:2], halves.shape[2] // 2, 2, halves.shape[3] // 2, 2).any((3, 5))
    assert found.shape == (mask.batch, mask.heads, exact.shape[2], 4)
    for head in range(mask.heads):
        records = found[0, head]
        assert sorted(records[:, 0]) == list(range(exact.shape[2]))
        assert (np.diff(records[:, 3]) <= 0).all()
        ties = np.diff(records[:, 3]) == 0
        assert (np.diff(records[:, 0])[ties] > 0).all()
        for row_block, first, last, count in records:
            needed = np.flatnonzero(exact[0, head, row_block])
            might = np.flatnonzero(allowed[0, head, row_block])
            assert len(needed) <= count <= len(might)
            assert len(needed) == 0 or (first <= needed[0] and needed[-1] <= last)
            assert count == 0 or (might[0] <= first and last <= might[-1])


def test_packed_columns_hold_the_vectors():
    mask = random_spans(np.random.default_rng(3), 500, 300, batch=2, heads=3)
    columns = prepare(mask).columns.cpu().numpy()  # [2, 3, 3, 4, 128]
    flat = columns.transpose(0, 1, 3, 2, 4).reshape(2, 3, 4, -1)[..., :300]
    row = np.arange(500)[:, None]
    lts, lte, uts, ute = (flat[:, :, i, None, :] for i in range(4))
    seen = ~(((row >= lts) & (row < lte)) | ((row >= uts) & (row < ute)))
    assert (seen == mask.to_dense()).all()


def test_a_mask_is_prepared_without_waiting_for_the_device():
    indices = torch.full((1, 1, 300, 1), 300, dtype=torch.int32, device="cuda")
    q = torch.zeros(1, 300, 1, 64, dtype=torch.bfloat16, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        mask = DeviceMask.from_startend_row_indices(indices, causal=True)
        out, _ = hopper.forward_prepared(q, q, q, hopper.prepared(mask), softmax_scale=1.0)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not out.any()


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize(("batch", "heads"), [(1, 1), (2, 1), (1, 2), (2, 4)])
def test_a_map_of_blocks_hides_beside_the_mask(batch, heads, name, dim):
    x = problem(pattern(name, 600, 500), batch=2, heads=4, kv_heads=2, dim=dim)
    generator = torch.Generator(device="cuda").manual_seed(5)
    keep = torch.rand(batch, heads, 5, 4, generator=generator, device="cuda") < 0.6
    check(replace(x, keep=keep))


def test_a_map_that_keeps_all_changes_no_bit_and_one_that_keeps_none_hides_all():
    masks = [pattern(name, 300, 300) for name in PATTERNS]
    x = problem(stacked(masks, 1, 12), heads=12, kv_heads=12)
    everything = run(replace(x, keep=torch.ones(1, 1, 3, 3, dtype=torch.uint8, device="cuda")))
    for kept, plain in zip(everything, run(x), strict=True):
        assert torch.equal(kept, plain)
    out, lse = run(replace(x, keep=torch.zeros(1, 1, 3, 3, dtype=torch.bool, device="cuda")))
    assert not out.any()
    assert torch.isneginf(lse).all()


CHUNK = 256


def _late(x, order, *, epoch=1, base=0, by_copy=True, by_arrival=False):
    """Run the kernel while a second stream delivers keys, values and flags, chunk by chunk in an order.

    By copies from pinned host memory, which need no multiprocessor; or by kernels, for which the launch
    leaves multiprocessors free.
    """
    num_chunks = -(-x.mask.num_keys // CHUNK)
    k, v = torch.full_like(x.k, torch.nan), torch.full_like(x.v, torch.nan)
    epochs = torch.full((num_chunks,), base, dtype=torch.int32, device="cuda")
    ready = torch.full((num_chunks,), epoch, dtype=torch.int32)
    source_k, source_v, ready = (y.cpu().pin_memory() if by_copy else y.cuda() for y in (x.k, x.v, ready))
    prepared = prepare(x.mask).by_arrival() if by_arrival else prepare(x.mask)
    sender = torch.cuda.Stream()

    def send(chunk):
        keys = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
        if not by_copy:
            torch.cuda._sleep(200_000)
        k[:, keys].copy_(source_k[:, keys], non_blocking=True)
        v[:, keys].copy_(source_v[:, keys], non_blocking=True)
        epochs[chunk : chunk + 1].copy_(ready[chunk : chunk + 1], non_blocking=True)

    with torch.cuda.stream(sender):  # a kernel that is loaded first while another waits for it never comes
        send(0)
        for tensor, value in ((k, torch.nan), (v, torch.nan), (epochs, base)):
            tensor.fill_(value)
    torch.cuda.synchronize()
    out, lse = hopper.forward_prepared(
        x.q, k, v, prepared,
        softmax_scale=x.scale,
        ready=ReadyFlags(epochs=epochs, epoch=epoch, chunk_size=CHUNK),
        num_ctas=0 if by_copy else 64,
    )  # fmt: skip
    with torch.cuda.stream(sender):
        for chunk in order:
            send(chunk)
    torch.cuda.synchronize()
    return out, lse


def one_kv_head(mask, dim):
    """Return a problem whose chunks of keys are contiguous, and whose tiles fill every multiprocessor."""
    return problem(mask, heads=64, kv_heads=1, dim=dim)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("by_copy", [True, False], ids=["copy engine", "kernels beside"])
@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 0, 4, 1, 3]], ids=str)
def test_keys_that_arrive_late_and_out_of_order_are_waited_for(order, by_copy, dim):
    for name in ("full", "causal", "document", "global_sliding_window"):
        x = one_kv_head(pattern(name, 700, 5 * CHUNK - 77), dim)
        note_input(f"{x} in order {order}")
        for by_arrival in (False, True):
            late = _late(x, order, by_copy=by_copy, by_arrival=by_arrival)
            assert all(map(torch.equal, late, run(x)))


@pytest.mark.parametrize("by_arrival", [False, True])
@pytest.mark.parametrize("band_tiles", [1, 5, 64])
@pytest.mark.parametrize("section_bytes", [1, 1 << 18, 1 << 25])
def test_no_order_of_tiles_changes_a_bit(section_bytes, band_tiles, by_arrival, monkeypatch):
    epochs = torch.full((3,), 4, dtype=torch.int32, device="cuda")
    for name in PATTERNS:
        x = problem(pattern(name, 900, 700), batch=2, heads=6, kv_heads=3, dim=128)
        usual, mask = run(x), prepare(x.mask)
        mask = mask.by_arrival() if by_arrival else mask
        note_input(f"{x}, sections {section_bytes}, bands {band_tiles}")
        for ready in (None, ReadyFlags(epochs=epochs, epoch=4, chunk_size=CHUNK)):
            with monkeypatch.context() as patch:
                patch.setattr(hopper_ops, "_SECTION_BYTES", section_bytes)
                patch.setattr(hopper_ops, "_BAND_TILES", band_tiles)
                found = hopper.forward_prepared(x.q, x.k, x.v, mask, softmax_scale=x.scale, ready=ready)
            for mine, theirs in zip(found, usual, strict=True):
                assert torch.equal(mine, theirs)


@pytest.mark.parametrize(
    ("epoch", "base"), [(1, 0), (7, 6), (2**31, 2**31 - 1), (2**32 - 1, 2**32 - 2), (0, -1)]
)
def test_epochs_count_modulo_their_range(epoch, base):
    x = one_kv_head(patterns.causal(3 * CHUNK), 64)
    signed = (base + 2**31) % 2**32 - 2**31
    note_input(f"epoch {epoch} from {signed}")
    wrapped = (epoch + 2**31) % 2**32 - 2**31
    for late, there in zip(_late(x, [2, 1, 0], epoch=wrapped, base=signed), run(x), strict=True):
        assert torch.equal(late, there)


@pytest.mark.parametrize("name", PATTERNS)
def test_rows_may_come_as_their_keys_arrive(name):
    x = problem(pattern(name, 700, 5 * CHUNK - 77), heads=4, kv_heads=2, dim=64)
    usual, by_arrival = prepare(x.mask), prepare(x.mask).by_arrival()
    for head, records in enumerate(usual.row_blocks[0].tolist()):
        expected = sorted(records, key=lambda record: (record[2], -record[3], record[0]))
        found = by_arrival.row_blocks[0, head].tolist()
        assert [r[1:] for r in found] == [r[1:] for r in expected]
        assert sorted(found) == sorted(records)
    results = [
        hopper.forward_prepared(x.q, x.k, x.v, mask, softmax_scale=x.scale) for mask in (usual, by_arrival)
    ]
    assert all(map(torch.equal, *results))


def test_an_epoch_that_is_past_is_ready():
    x = problem(patterns.causal(700), heads=4, kv_heads=2)
    epochs = torch.tensor([9, 5, 6], dtype=torch.int32, device="cuda")
    found = hopper.forward_prepared(
        x.q, x.k, x.v, prepare(x.mask),
        softmax_scale=x.scale,
        ready=ReadyFlags(epochs=epochs, epoch=5, chunk_size=256),
    )  # fmt: skip
    for mine, theirs in zip(found, run(x), strict=True):
        assert torch.equal(mine, theirs)


def test_a_chunk_that_no_row_sees_is_not_waited_for():
    x = problem(patterns.document([512, 256], padding=256), heads=2, kv_heads=1)
    epochs = torch.tensor([1, 1, 1, 0], dtype=torch.int32, device="cuda")
    out, lse = hopper.forward_prepared(
        x.q, x.k, x.v, prepare(x.mask),
        softmax_scale=x.scale,
        ready=ReadyFlags(epochs=epochs, epoch=1, chunk_size=256),
    )  # fmt: skip
    assert (out.double() - dense(x, torch.float64)[0]).abs().max() <= 2 * plain_errors(x)[0] + 2**-7
    assert torch.isneginf(lse[:, :, 768:]).all()
