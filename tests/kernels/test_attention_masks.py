"""Laws of attention under random masks with overlapping, touching and empty spans."""

from __future__ import annotations

import numpy as np
import torch
from attention_compare import RESULTS, Inputs, assert_all_near, random_inputs, run_engine, same_bits
from hypothesis import given, settings
from hypothesis import strategies as st

from fm3_core import BlockMap, ColumnMask
from fm3_core.blocks import EMPTY, FULL
from fm3_kernels import DeviceMask, TiledEngine
from fm3_kernels.schedule import visible_runs

SMALL = TiledEngine(block_rows=16, block_keys=8, run_keys=24, tile_elements=1500)


def random_mask(seed: int, rows: int, keys: int, batch: int = 1, heads: int = 1) -> ColumnMask:
    """Return a mask with random spans, sorted so that none is reversed, one in four of them empty."""
    random = np.random.default_rng(seed)
    spans = np.sort(random.integers(0, rows + 1, (2, batch, heads, keys, 2)), axis=-1)
    spans[..., 1] = np.where(random.random(spans.shape[:-1]) < 0.25, spans[..., 0], spans[..., 1])
    lower, upper = spans
    return ColumnMask(lower[..., 0], lower[..., 1], upper[..., 0], upper[..., 1], num_rows=rows)


SEEDS = st.integers(0, 2**32 - 1)
LENGTHS = st.integers(1, 70)


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS, rows=LENGTHS, keys=LENGTHS, kv_heads=st.sampled_from([1, 2, 6]))
def test_random_masks_give_the_oracles_results(seed: int, rows: int, keys: int, kv_heads: int) -> None:
    mask = random_mask(seed, rows, keys)
    draws = [
        random_inputs(mask, query_heads=6, kv_heads=kv_heads, dim=8, value_dim=8, seed=i) for i in range(4)
    ]
    assert_all_near(draws[0], SMALL, like=draws[1:])


@settings(max_examples=50, deadline=None)
@given(
    seed=SEEDS,
    mask_heads=st.sampled_from([1, 2, 3, 4, 6, 12]),
    kv_heads=st.sampled_from([1, 2, 3, 4, 6, 12]),
    mask_batch=st.sampled_from([1, 3]),
)
def test_every_mask_head_form_gives_the_oracles_results(
    seed: int, mask_heads: int, kv_heads: int, mask_batch: int
) -> None:
    mask = random_mask(seed, 33, 29, mask_batch, mask_heads)
    draws = [
        random_inputs(mask, batch=3, query_heads=12, kv_heads=kv_heads, dim=8, value_dim=4, seed=i)
        for i in range(3)
    ]
    assert_all_near(draws[0], SMALL, like=draws[1:])


def with_changed_hidden_keys(inputs: Inputs, value: float) -> Inputs:
    """Return the inputs with K and V replaced where no row sees the key."""
    unseen = torch.tensor(~inputs.mask.to_dense().any(axis=(0, 1, 2)))
    k, v = inputs.k.clone(), inputs.v.clone()
    k[:, unseen], v[:, unseen] = value, -value
    return Inputs(
        q=inputs.q, k=k, v=v, dout=inputs.dout, dlse=inputs.dlse, mask=inputs.mask, scale=inputs.scale
    )


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS, value=st.sampled_from([0.0, -7.5, 1e30, 3.4e38]))
def test_finite_values_of_keys_that_nobody_sees_change_no_bit(seed: int, value: float) -> None:
    some_unseen = random_mask(seed, 5, 60)
    inputs = random_inputs(some_unseen, dim=8, value_dim=8)
    mine = run_engine(inputs, SMALL)
    theirs = run_engine(with_changed_hidden_keys(inputs, value), SMALL)
    assert [name for name in RESULTS if not same_bits(mine[name], theirs[name])] == []


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS)
def test_keys_that_nobody_sees_have_gradients_of_exactly_zero(seed: int) -> None:
    inputs = random_inputs(random_mask(seed, 5, 60), dim=8, value_dim=8)
    unseen = torch.tensor(~inputs.mask.to_dense()[0, 0].any(axis=0))
    results = run_engine(inputs, SMALL)
    assert results["dk"][:, unseen].count_nonzero() == 0
    assert results["dv"][:, unseen].count_nonzero() == 0


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS)
def test_rows_that_see_nothing_have_output_zero_lse_minus_infinity_and_no_gradient(seed: int) -> None:
    inputs = random_inputs(random_mask(seed, 60, 5), dim=8, value_dim=8)
    empty = torch.tensor(~inputs.mask.to_dense()[0, 0].any(axis=1))
    inputs.dlse[:, :, empty] = torch.nan
    results = run_engine(inputs, SMALL)
    assert results["out"][:, empty].count_nonzero() == 0
    assert torch.isneginf(results["lse"][:, :, empty]).all()
    assert results["dq"][:, empty].count_nonzero() == 0
    assert all(torch.isfinite(results[name]).all() for name in ("out", "dq", "dk", "dv"))


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS, rows=LENGTHS, keys=LENGTHS, block_rows=st.integers(1, 20), block_keys=st.integers(1, 20))
def test_blocks_are_classified_as_core_does_by_extrema(
    seed: int, rows: int, keys: int, block_rows: int, block_keys: int
) -> None:
    mask = random_mask(seed, rows, keys, batch=2, heads=2)
    right = BlockMap.from_mask(mask, block_rows, block_keys, method="extrema")
    extrema = DeviceMask.from_mask(mask).block_extrema(block_keys)
    for batch, head, block in np.ndindex(right.kinds.shape[:3]):
        start = block * block_rows
        codes = extrema.classify(batch, head, start, min(rows, start + block_rows))
        kinds, cuts = right.kinds[batch, head, block], right.cuts[batch, head, block]
        assert np.array_equal(codes == 4, kinds == EMPTY)
        assert np.array_equal(codes == 0, kinds == FULL)
        assert np.array_equal(codes[kinds != EMPTY], cuts[kinds != EMPTY])


@settings(max_examples=50, deadline=None)
@given(
    seed=SEEDS,
    rows=LENGTHS,
    keys=LENGTHS,
    block_rows=st.integers(1, 20),
    block_keys=st.integers(1, 9),
    blocks_a_run=st.integers(1, 5),
)
def test_runs_cover_the_visible_blocks_once_and_no_empty_one(
    seed: int, rows: int, keys: int, block_rows: int, block_keys: int, blocks_a_run: int
) -> None:
    mask = random_mask(seed, rows, keys)
    extrema = DeviceMask.from_mask(mask).block_extrema(block_keys)
    kinds = BlockMap.from_mask(mask, block_rows, block_keys, method="extrema").kinds[0, 0]
    for block, start in enumerate(range(0, rows, block_rows)):
        visits, masked = np.zeros(keys, int), np.zeros(keys, int)
        end = min(rows, start + block_rows)
        limit = block_keys * blocks_a_run
        for run in visible_runs(extrema, 0, 0, start, end, num_keys=keys, max_keys=limit):
            assert 0 < run.end - run.start <= limit
            visits[run.start : run.end] += 1
            for cut in run.cuts:
                assert run.start <= cut.start < cut.end <= run.end
                masked[cut.start : cut.end] += 1
        kind_of_key = np.repeat(kinds[block], block_keys)[:keys]
        assert np.array_equal(visits, kind_of_key != EMPTY)
        assert np.array_equal(masked, (kind_of_key != EMPTY) & (kind_of_key != FULL))
