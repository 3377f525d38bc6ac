"""The Hopper forward kernel against a dense oracle: patterns, head forms, shapes, known cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hopper_compare import (
    DIMS,
    DTYPES,
    assert_near,
    check,
    dense,
    needs_hopper,
    plain_errors,
    problem,
    run,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from pattern_masks import PATTERNS, pattern, random_spans, stacked

from fm3_core import ColumnMask, localize, patterns

pytestmark = needs_hopper

# query heads, kv heads, mask heads
HEAD_FORMS = [(1, 1, 1), (4, 4, 4), (6, 2, 1), (6, 2, 2), (6, 2, 6), (8, 1, 1), (8, 1, 8)]
LENGTHS = [1, 7, 63, 64, 65, 127, 128, 129, 300, 1025]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("tokens", [128, 257, 1000])
@pytest.mark.parametrize("name", PATTERNS)
def test_every_pattern_is_exact(name, tokens, dim, dtype):
    check(problem(pattern(name, tokens, tokens), heads=4, kv_heads=2, dim=dim, dtype=dtype))


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize(("heads", "kv_heads", "mask_heads"), HEAD_FORMS)
@pytest.mark.parametrize(("batch", "mask_batch"), [(1, 1), (3, 1), (3, 3)])
def test_every_form_of_heads_and_batch_is_exact(batch, mask_batch, heads, kv_heads, mask_heads, dim):
    masks = [pattern(name, 333, 333) for name in PATTERNS]
    mask = stacked(masks, mask_batch, mask_heads)
    check(problem(mask, batch=batch, heads=heads, kv_heads=kv_heads, dim=dim))


@pytest.mark.parametrize("keys", LENGTHS)
@pytest.mark.parametrize("rows", LENGTHS)
@pytest.mark.parametrize("dim", DIMS)
def test_every_length_of_rows_and_keys_is_exact(dim, rows, keys):
    names = ["full", "causal", "document", "share_question"]
    mask = stacked([pattern(name, rows, keys) for name in names], 1, 4)
    check(problem(mask, heads=4, kv_heads=4, dim=dim))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("rows", [0, 1, 300])
def test_rows_without_any_key_are_empty(rows, dim, dtype):
    out, lse = check(problem(patterns.full(rows, 0), heads=4, kv_heads=2, dim=dim, dtype=dtype))
    assert not out.any()
    assert torch.isneginf(lse).all()


def test_an_empty_batch_is_empty():
    x = problem(patterns.full(300, 300), batch=2)
    out, lse = run(type(x)(q=x.q[:0], k=x.k[:0], v=x.v[:0], mask=x.mask, scale=x.scale))
    assert (out.shape, lse.shape) == ((0, 300, 2, 64), (0, 2, 300))


def columns(*spans: tuple[int, int, int, int], rows: int, keys: int) -> ColumnMask:
    """Return a mask whose columns repeat the given (lts, lte, uts, ute)."""
    vectors = np.resize(np.array(spans), (keys, 4)).T[:, None, None]
    return ColumnMask(*vectors, num_rows=rows)


KNOWN = {
    "a tail row block behind a span": columns((128, 130, 0, 0), rows=130, keys=130),
    "one key beyond a block": patterns.full(128, 129),
    "overlapping spans": columns((291, 512, 0, 313), (147, 512, 0, 402), rows=512, keys=512),
    "overlapping spans inside": columns((178, 399, 67, 242), (0, 0, 0, 0), rows=512, keys=512),
    "touching spans": columns((178, 399, 67, 178), (399, 399, 67, 399), rows=512, keys=200),
    "first rows hidden": columns((0, 14, 0, 0), rows=300, keys=300),
    "last rows hidden": columns((297, 300, 0, 0), rows=300, keys=300),
    "all rows hidden": columns((0, 300, 0, 0), rows=300, keys=300),
    "all rows hidden by both": columns((0, 150, 150, 300), rows=300, keys=300),
    "a row block hidden": columns((128, 256, 0, 0), (0, 0, 128, 256), rows=300, keys=150),
    "causal, more rows": patterns.causal(300, 100),
    "causal, more keys": patterns.causal(100, 300),
    "short documents": patterns.document([0, 1, 3, 7]),
    "documents around a block": patterns.document([512, 513]),
    "document and window": patterns.document([100, 200]) & patterns.sliding_window(300, 20, 10),
    "window of two": patterns.sliding_window(8, 1),
    "a key block of the last row block": columns((0, 1000, 0, 0), rows=1023, keys=128),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", KNOWN)
def test_known_cases_are_exact(name, dim, dtype):
    check(problem(KNOWN[name], dim=dim, dtype=dtype, heads=2, kv_heads=1))


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("scale", [-0.2, 0.0, 1e-40, 1.0, 3.0])
def test_any_scale_is_exact(scale, dim):
    check(problem(patterns.causal(300), dim=dim, scale=scale))


@pytest.mark.parametrize("dim", DIMS)
def test_scores_that_grow_and_fall_by_hundreds_are_exact(dim):
    x = problem(patterns.causal(700), dim=dim, scale=1.0)
    ramp = torch.linspace(-4, 4, 700, device=x.k.device)[None, :, None, None]
    for steps in (ramp, -ramp, ramp.flip(1).abs()):
        check(type(x)(q=x.q.abs(), k=(x.k * steps).to(x.k.dtype), v=x.v, mask=x.mask, scale=0.5))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", DIMS)
def test_output_in_float32_is_not_rounded_in_between(dim, dtype):
    x = problem(patterns.causal_document([100, 212, 0, 88]), dim=dim, dtype=dtype, heads=4, kv_heads=2)
    out, lse = check(x, out_dtype=torch.float32)
    rounded, same_lse = run(x)
    assert torch.equal(out.to(dtype), rounded)
    assert torch.equal(lse, same_lse)
    assert not torch.equal(out, out.to(dtype).float())
    double, _ = run(x, out_dtype=torch.float64)
    assert torch.equal(double, out.double())


def test_query_heads_use_the_kv_head_of_their_group():
    x = problem(patterns.causal(300), heads=6, kv_heads=2)
    x.v[:, :, 1] = 0.0
    out, _ = run(x)
    assert not out[:, :, 3:].any()
    assert out[:, :, :3].count_nonzero() > 0.99 * out[:, :, :3].numel()


def assert_part_is_near(part, out, lse):
    """Compare a part of a larger call's results with the oracle of that part."""
    for name, got, truth, error in zip(
        ("out", "lse"), (out, lse), dense(part, torch.float64), plain_errors(part), strict=True
    ):
        assert_near(name, got, truth, error)


def test_many_tiny_sequences_are_exact():
    x = problem(patterns.causal(32), batch=2840, heads=16, kv_heads=16)
    out, lse = run(x)
    for entry in (0, 1, 1419, 2839):
        one = slice(entry, entry + 1)
        part = type(x)(q=x.q[one], k=x.k[one], v=x.v[one], mask=x.mask, scale=x.scale)
        assert_part_is_near(part, out[one], lse[one])


def test_more_elements_than_32_bits_count_are_exact():
    tokens, heads, window = 131_200, 128, 63  # 2^31 and 2 million elements in q, k, v and out each
    x = problem(patterns.sliding_window(tokens, window), heads=heads, kv_heads=heads, dim=128)
    assert x.q.numel() > 2**31
    out, lse = run(x)
    for first in (0, tokens // 2, tokens - 128):
        rows, keys = slice(first, first + 128), slice(max(0, first - window), first + 128)
        local = localize(x.mask, [first], [128])
        local = ColumnMask(
            *(vector[:, :, keys] for vector in (local.lts, local.lte, local.uts, local.ute)), num_rows=128
        )
        for head in (slice(0, 1), slice(heads - 1, heads)):
            part = type(x)(
                q=x.q[:, rows, head],
                k=x.k[:, keys, head],
                v=x.v[:, keys, head],
                mask=local,
                scale=x.scale,
            )
            assert_part_is_near(part, out[:, rows, head], lse[:, head, rows])


@settings(max_examples=150)
@given(
    rows=st.integers(1, 700),
    keys=st.integers(1, 700),
    batch=st.integers(1, 3),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    dim=st.sampled_from(DIMS),
    dtype=st.sampled_from(DTYPES),
    num_ctas=st.sampled_from([0, 1, 3]),
    form=st.integers(0, 5),
    seed=st.integers(0, 2**32 - 1),
)
def test_random_spans_are_exact(rows, keys, batch, kv_heads, group, dim, dtype, num_ctas, form, seed):
    heads = kv_heads * group
    mask = random_spans(
        np.random.default_rng(seed),
        rows,
        keys,
        batch=[1, batch][form % 2],
        heads=[1, kv_heads, heads][form // 2],
    )
    x = problem(mask, batch=batch, heads=heads, kv_heads=kv_heads, dim=dim, dtype=dtype, seed=seed % 1000)
    check(x, num_ctas=num_ctas)


def test_the_oracle_agrees_with_another():
    x = problem(patterns.causal(257), heads=2, kv_heads=1)
    right = torch.nn.functional.scaled_dot_product_attention(
        *(y.double().transpose(1, 2) for y in (x.q, x.k, x.v)), is_causal=True, enable_gqa=True
    )
    torch.testing.assert_close(dense(x, torch.float64)[0], right.transpose(1, 2))
