"""The Hopper backward kernel against the float64 oracle."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attention_masks import MASKS
from backward_cases import DIMS, DTYPES, Problem, assert_right, columns, gpu_marks, random_spans
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fm3_core import ColumnMask, patterns

pytestmark = gpu_marks()


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_every_pattern(name: str, dtype: torch.dtype, dim: int) -> None:
    mask = MASKS[name]
    problem = Problem(mask.num_rows, mask.num_keys, batch=2, kv_heads=2, group=2, dim=dim, dtype=dtype)
    assert_right(problem, mask, name)


@given(
    rows=st.integers(1, 700),
    keys=st.integers(1, 700),
    batch=st.integers(1, 2),
    kv_heads=st.integers(1, 2),
    group=st.integers(1, 3),
    mask_heads=st.sampled_from(["one", "kv", "query"]),
    style=st.sampled_from(["free", "runs", "causal"]),
    dim=st.sampled_from(DIMS),
    dtype=st.sampled_from(DTYPES),
    num_ctas=st.sampled_from([0, 1, 3]),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_overlapping_spans(
    rows: int,
    keys: int,
    batch: int,
    kv_heads: int,
    group: int,
    mask_heads: str,
    style: str,
    dim: int,
    dtype: torch.dtype,
    num_ctas: int,
    seed: int,
) -> None:
    problem = Problem(rows, keys, batch, kv_heads, group, dim, dtype, seed=seed)
    heads = {"one": 1, "kv": kv_heads, "query": kv_heads * group}[mask_heads]
    mask = random_spans(rows, keys, heads, batch, style, seed)
    assert_right(
        problem, mask, f"{style} spans of {heads} heads",
        num_ctas=num_ctas,
    )  # fmt: skip


def overlapping_pair() -> ColumnMask:
    lts, ute = np.full(512, 512), np.zeros(512)
    lts[5], ute[5], lts[70], ute[70] = 291, 313, 147, 402
    return columns(512, 512, lts, 512, 0, ute)


def overlapping_column() -> ColumnMask:
    lts, lte, uts, ute = (np.zeros(512) for _ in range(4))
    lts[7], lte[7], uts[7], ute[7] = 178, 399, 67, 242
    return columns(512, 512, lts, lte, uts, ute)


def some_hidden_keys() -> ColumnMask:
    lts = np.full(300, 300)
    lts[[3, 130, 299]] = 0
    return columns(300, 300, lts, 300)


def one_late_row_block() -> ColumnMask:
    return columns(1023, 512, 0, np.where(np.arange(512) < 128, 1020, 1023))


KNOWN = {
    "two columns that overlap": overlapping_pair(),
    "a column whose spans overlap": overlapping_column(),
    "keys that nobody sees": some_hidden_keys(),
    "first rows see nothing": columns(300, 300, 0, 14),
    "last rows see nothing": columns(300, 300, 297, 300),
    "nobody sees anything": columns(300, 300, 0, 300),
    "more rows than keys": patterns.causal(300, 100),
    "a key block that the last row block alone sees": one_late_row_block(),
    "empty documents": patterns.document([0, 1, 3, 7]),
    "a document ends in the middle of a block": patterns.document([512, 513]),
    "rows end behind a block": columns(130, 300, 128, 130),
    "keys end behind a block": patterns.full(200, 129),
    "document and window": patterns.document([100, 200]) & patterns.sliding_window(300, 20, 10),
    "window of two": patterns.sliding_window(8, 2),
    "one row, one key": patterns.full(1, 1),
    "no keys": patterns.full(70, 0),
    "no rows": patterns.full(0, 70),
}


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", KNOWN)
def test_inputs_on_which_such_kernels_have_failed(name: str, dim: int) -> None:
    mask = KNOWN[name]
    problem = Problem(mask.num_rows, mask.num_keys, kv_heads=2, group=2, dim=dim)
    assert_right(problem, mask, name)


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 8])
def test_masks_of_any_number_of_heads(heads: int) -> None:
    kv_heads, group = (2, 3) if heads == 3 else (2, 4)
    mask = random_spans(260, 260, heads, 1, "free", seed=5)
    problem = Problem(260, 260, kv_heads=kv_heads, group=group)
    assert_right(problem, mask, f"{heads} mask heads")


@pytest.mark.parametrize("keys", [1, 128, 129, 384])
@pytest.mark.parametrize("row_blocks", [1, 2, 3, 5])
def test_one_cta_takes_every_tile(row_blocks: int, keys: int) -> None:
    mask = patterns.full(64 * row_blocks, keys)
    problem = Problem(mask.num_rows, keys, kv_heads=2)
    assert_right(problem, mask, num_ctas=1)


@pytest.mark.parametrize("scale", [-0.3, 0.0, 1e-38, 1.5])
def test_any_finite_scale(scale: float) -> None:
    mask = patterns.causal(200)
    assert_right(Problem(200, 200, kv_heads=1, group=2, scale=scale), mask)


def test_gradients_of_keys_in_float32_are_not_rounded_before() -> None:
    mask = random_spans(300, 333, 2, 2, "free", seed=8)
    problem = Problem(300, 333, batch=2, kv_heads=2, group=3)
    assert_right(problem, mask, kv_grad_dtype=torch.float32)
