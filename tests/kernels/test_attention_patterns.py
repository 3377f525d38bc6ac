"""Every pattern, head form, dtype and odd shape against the float64 oracle, forward and backward."""

from __future__ import annotations

import pytest
import torch
from attention_compare import (
    assert_all_near,
    assert_near,
    plain_errors,
    random_inputs,
    run_engine,
    run_plainly,
)
from attention_masks import MASKS

from fm3_core import patterns
from fm3_kernels import TiledEngine

SMALL = TiledEngine(block_rows=32, block_keys=16, run_keys=48, tile_elements=4000)
HEADS = [(2, 2), (4, 2), (4, 1)]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def test_every_pattern_of_core_has_a_mask_here() -> None:
    assert {name.split(",")[0] for name in MASKS} == set(patterns.PATTERNS)


@pytest.mark.parametrize("name", MASKS)
def test_the_oracle_agrees_with_autograd_through_dense_attention(name: str) -> None:
    inputs = random_inputs(MASKS[name], batch=2, query_heads=4, kv_heads=2, value_dim=8, dtype=torch.float64)
    oracle, plain = run_engine(inputs, "reference"), run_plainly(inputs)
    for result, value in oracle.items():
        finite = torch.isfinite(plain[result])
        assert torch.equal(finite, torch.isfinite(value))
        torch.testing.assert_close(value[finite], plain[result][finite], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_tiled_attention_is_as_exact_as_its_dtype_allows(
    name: str, heads: tuple[int, int], dtype: torch.dtype
) -> None:
    inputs = random_inputs(
        MASKS[name], query_heads=heads[0], kv_heads=heads[1], dim=24, value_dim=16, dtype=dtype, seed=1
    )
    assert_all_near(inputs, SMALL)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_default_blocks_are_as_exact_as_the_dtype_allows(name: str, dtype: torch.dtype) -> None:
    inputs = random_inputs(MASKS[name], batch=2, query_heads=2, kv_heads=1, dtype=dtype, scale=0.7, seed=2)
    assert_all_near(inputs, "tiled")


@pytest.mark.parametrize("name", MASKS)
def test_the_dense_engine_is_as_exact_as_float32_allows(name: str) -> None:
    assert_all_near(random_inputs(MASKS[name], query_heads=4, kv_heads=2, value_dim=8), "reference")


@pytest.mark.parametrize("num_rows", [1, 31, 32, 33, 65])
@pytest.mark.parametrize("num_keys", [1, 15, 16, 17, 49, 97])
def test_no_length_is_special(num_rows: int, num_keys: int) -> None:
    assert_all_near(random_inputs(patterns.causal(num_rows, num_keys), dim=8, value_dim=3), SMALL)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_inputs_are_rounded_once_at_the_end(dtype: torch.dtype) -> None:
    inputs = random_inputs(MASKS["causal_document"], query_heads=4, kv_heads=2, dtype=dtype)
    halves, singles = run_engine(inputs, "tiled"), run_engine(inputs.to(torch.float32), "tiled")
    assert torch.equal(halves["out"], singles["out"].to(dtype))
    assert torch.equal(halves["lse"], singles["lse"])
    assert_near("dk", halves["dk"], singles["dk"], plain_errors(inputs)["dk"])
