"""What lies around and behind the Hopper forward kernel's tensors: views, poison, repeats, small grids."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hopper_compare import (
    DIMS,
    check,
    needs_hopper,
    normal,
    poison_free_memory,
    problem,
    redrawn,
    run,
)
from pattern_masks import PATTERNS, pattern, stacked

from fm3_core import ColumnMask, patterns
from fm3_kernels import DeviceMask, attention_forward, hopper

pytestmark = needs_hopper

VIEWS = {
    "heads first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "every second head": lambda x: x.repeat_interleave(2, dim=2)[:, :, ::2],
    "every third row": lambda x: x.repeat_interleave(3, dim=1)[:, ::3],
    "every second dim": lambda x: x.repeat_interleave(2, dim=3)[..., ::2],
    "packed": lambda x: torch.cat([x, x, x], dim=3)[..., x.shape[3] : 2 * x.shape[3]],
    "base of 2 bytes": lambda x: _shifted(x, 1),
    "base of 16 bytes": lambda x: _shifted(x, 8),
    "rows of odd length": lambda x: torch.cat([x, x[..., :1]], dim=3)[..., :-1],
    "dims first": lambda x: x.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0),
    "batch last": lambda x: x.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2),
}


def _shifted(x, elements):
    flat = x.new_empty(x.numel() + elements)
    flat[elements:] = x.flatten()
    return flat[elements:].view(x.shape)


def same(mine, theirs):
    """Say whether two results hold the same bits."""
    return all(torch.equal(one, other) for one, other in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_gives_the_bits_of_its_copy(view, dim):
    x = problem(patterns.causal_document([100, 157]), batch=2, heads=4, kv_heads=2, dim=dim)
    viewed = replace(x, **{name: VIEWS[view](getattr(x, name)) for name in ("q", "k", "v")})
    assert not viewed.q.is_contiguous() or view.startswith("base")
    assert same(run(viewed), run(x))


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_an_expanded_tensor_gives_the_bits_of_its_copy(name):
    x = problem(patterns.causal(257), batch=2, heads=4, kv_heads=4)
    for expanded in (
        getattr(x, name)[:1].expand(2, -1, -1, -1),
        getattr(x, name)[:, :, :1].expand(-1, -1, 4, -1),
        getattr(x, name)[:, :1].expand(-1, 257, -1, -1),
    ):
        assert same(run(replace(x, **{name: expanded})), run(replace(x, **{name: expanded.contiguous()})))


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", PATTERNS)
def test_nothing_is_read_that_nobody_has_written(name, dim):
    x = problem(pattern(name, 261, 261), batch=2, heads=4, kv_heads=2, dim=dim)
    expected = run(x)
    for num_bytes in (1 << 20, 8 << 20, 64 << 20):
        poison_free_memory(num_bytes)
        assert same(run(replace(x, q=x.q.clone())), expected)


@pytest.mark.parametrize("keys", [1, 100, 127, 129, 200])
def test_what_lies_behind_the_last_key_does_not_matter(keys):
    x = problem(patterns.full(150, keys), batch=1)
    behind = {name: torch.full((1, keys + 300, 2, 64), torch.nan, device=x.q.device) for name in ("k", "v")}
    for name, tensor in behind.items():
        tensor[:, :keys] = getattr(x, name)
    behind = {name: tensor.to(x.q.dtype)[:, :keys] for name, tensor in behind.items()}
    assert same(run(replace(x, **behind)), run(x))


@pytest.mark.parametrize("dim", DIMS)
def test_finite_values_of_hidden_keys_change_no_bit(dim):
    mask = patterns.document([100, 120, 80], padding=21)
    x = problem(mask, dim=dim)
    changed = replace(x, k=x.k.clone(), v=x.v.clone())
    changed.k[:, 300:] = 1000.0
    changed.v[:, 300:] = -1000.0
    assert same(run(changed), run(x))
    changed.v[:, :100] = normal(1, 100, 2, dim, dtype=x.v.dtype, seed=99)
    out, lse = run(changed)
    right, right_lse = run(x)
    assert torch.equal(out[:, 100:], right[:, 100:])
    assert torch.equal(lse, right_lse)
    assert not torch.equal(out[:, :100], right[:, :100])


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("num_ctas", [1, 2, 5])
@pytest.mark.parametrize("row_blocks", [1, 2, 3, 5])
@pytest.mark.parametrize("keys", [0, 1, 128, 129, 384, 640])
def test_one_and_few_ctas_take_tiles_of_all_counts_of_blocks(keys, row_blocks, num_ctas, dim):
    check(problem(patterns.full(128 * row_blocks, keys), heads=1, kv_heads=1, dim=dim), num_ctas=num_ctas)


@pytest.mark.parametrize("num_ctas", [1, 2, 7, 131, 132, 500])
def test_the_number_of_ctas_changes_no_bit(num_ctas):
    masks = [pattern(name, 517, 517) for name in PATTERNS]
    x = problem(stacked(masks, 2, 6), batch=2, heads=6, kv_heads=2, dim=128)
    assert same(run(x, num_ctas=num_ctas), run(x))


@pytest.mark.parametrize("dim", DIMS)
def test_a_thousand_repeats_give_the_same_bits(dim):
    masks = [pattern(name, 40, 40) for name in PATTERNS]
    x = problem(stacked(masks, 1, 12), heads=12, kv_heads=12, dim=dim)
    mask = DeviceMask.from_mask(x.mask, x.q.device)
    expected = run(x)
    wrong = torch.zeros((), dtype=torch.int64, device=x.q.device)
    for i in range(1000):
        if i % 100 == 0:
            poison_free_memory(1 << 20)
        again = attention_forward(x.q, x.k, x.v, mask, softmax_scale=x.scale, engine="hopper")
        for mine, theirs in zip(again, expected, strict=True):
            wrong += (mine != theirs).sum()
    assert wrong.item() == 0


def test_a_long_problem_repeats_bitwise():
    x = problem(patterns.causal_document([3000, 5192]), batch=2, heads=8, kv_heads=2, dim=128)
    expected = run(x)
    for _ in range(50):
        assert same(run(x), expected)


def test_results_of_calls_in_a_row_do_not_mix():
    mask = patterns.causal_document([900, 1148])
    first = problem(mask, heads=8, kv_heads=8, dim=128)
    others = [redrawn(first, seed) for seed in range(100, 104)]
    expected = [run(x) for x in (first, *others)]
    torch.cuda.synchronize()
    again = [run(x) for x in (first, *others)]
    assert all(same(one, other) for one, other in zip(again, expected, strict=True))


def test_masks_of_one_batch_entry_and_of_all_agree():
    one = pattern("share_question", 300, 300)
    x = problem(one, batch=3, heads=4, kv_heads=2)
    many = ColumnMask(
        *(vector.repeat(3, 0).repeat(4, 1) for vector in (one.lts, one.lte, one.uts, one.ute)), num_rows=300
    )
    assert same(run(replace(x, mask=many)), run(x))


def test_a_call_on_another_stream_waits_for_the_mask():
    x = problem(patterns.causal_document([700, 1348]), heads=8, kv_heads=8, dim=128)
    expected = run(x)
    busy = torch.randn(4096, 4096, device=x.q.device)
    for _ in range(20):
        mask = DeviceMask.from_mask(x.mask, x.q.device)
        first, second = torch.cuda.Stream(), torch.cuda.Stream()
        first.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(first):
            busy = busy @ busy * 1e-3
            hopper.prepared(mask)
        second.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(second):
            results = attention_forward(x.q, x.k, x.v, mask, softmax_scale=x.scale, engine="hopper")
        torch.cuda.synchronize()
        assert same(results, expected)
