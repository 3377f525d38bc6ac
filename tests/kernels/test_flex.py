"""The bridge to FlexAttention, both ways."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from attention_compare import random_inputs
from attention_masks import MASKS
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention

from fm3_core import MaskError, patterns
from fm3_kernels import attention, flex


@pytest.mark.parametrize("name", MASKS)
def test_mask_mods_say_what_the_mask_says(name: str) -> None:
    mask = MASKS[name]
    dense = create_mask(flex.to_mask_mod(mask), mask.batch, mask.heads, mask.num_rows, mask.num_keys, "cpu")
    assert np.array_equal(dense.numpy(), mask.to_dense())


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_survives_the_way_through_a_mask_mod(name: str) -> None:
    mask = MASKS[name]
    back = flex.from_mask_mod(
        flex.to_mask_mod(mask), num_rows=mask.num_rows, num_keys=mask.num_keys, heads=mask.heads
    )
    assert back == mask
    assert back.canonical() is back


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_survives_the_way_through_a_block_mask(name: str) -> None:
    block_mask = flex.to_block_mask(MASKS[name], block_size=32)
    assert flex.from_block_mask(block_mask) == MASKS[name]


@pytest.mark.parametrize("name", MASKS)
def test_block_masks_list_the_blocks_that_torch_lists(name: str) -> None:
    mask = MASKS[name]
    shape = (mask.batch, mask.heads, mask.num_rows, mask.num_keys)
    right = create_block_mask(flex.to_mask_mod(mask), *shape, device="cpu", BLOCK_SIZE=32)
    mine = flex.to_block_mask(mask, block_size=32)
    visited = mine.to_dense()
    assert torch.equal(visited, right.to_dense())
    # torch never calls a block at a ragged edge full, we do: a full block that it lists is full here too
    assert (mine.full_kv_num_blocks >= right.full_kv_num_blocks).all()
    assert (mine.full_kv_num_blocks + mine.kv_num_blocks == visited.sum(-1)).all()


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_under_our_block_mask_gives_our_attention() -> None:
    mask = patterns.random_eviction(160, 60, heads=2, seed=1)
    x = random_inputs(mask, batch=2, query_heads=4, kv_heads=4, dtype=torch.float64)
    block_mask = flex.to_block_mask(mask, query_heads=4, block_size=32)
    theirs = flex_attention(*(t.transpose(1, 2) for t in (x.q, x.k, x.v)), block_mask=block_mask)
    torch.testing.assert_close(attention(x.q, x.k, x.v, mask), theirs.transpose(1, 2))


def test_masks_differ_by_batch_entry_and_head() -> None:
    def mask_mod(batch: object, head: object, row: object, key: object) -> object:
        return row >= key + 3 * batch + head

    mask = flex.from_mask_mod(mask_mod, num_rows=20, batch=2, heads=3)
    assert np.array_equal(mask.to_dense(), create_mask(mask_mod, 2, 3, 20, 20, "cpu").numpy())


def test_a_mask_mod_that_hides_three_spans_is_refused_with_the_first_such_column() -> None:
    def mask_mod(batch: object, head: object, row: object, key: object) -> object:
        return (key < 5) | (row % 4 == 1)

    match = (
        r"mask_mod: batch 0, head 0, column 5 has no form with two hidden spans: "
        r"it hides \[0, 1\), \[2, 5\), \[6, 9\), \[10, 11\) \(6 of the 11 columns"
    )
    with pytest.raises(MaskError, match=match):
        flex.from_mask_mod(mask_mod, num_rows=11)


def test_a_block_mask_that_skips_visible_blocks_means_what_its_lists_say() -> None:
    block_mask = flex.to_block_mask(patterns.full(8), block_size=2)
    block_mask.full_kv_num_blocks[0, 0, 1:3] = 3
    dense = np.ones((8, 8), bool)
    dense[2:6, 6:] = False
    assert np.array_equal(flex.from_block_mask(block_mask).to_dense()[0, 0], dense)


@pytest.mark.parametrize(("rows", "keys"), [(0, 5), (5, 0), (1, 1), (0, 0)])
def test_masks_without_rows_or_keys(rows: int, keys: int) -> None:
    mask = patterns.full(rows, keys)
    assert flex.from_mask_mod(flex.to_mask_mod(mask), num_rows=rows, num_keys=keys) == mask


@settings(max_examples=40, deadline=None)
@given(
    dense=st.integers(1, 9).flatmap(
        lambda rows: st.lists(st.lists(st.booleans(), min_size=rows, max_size=rows), min_size=1, max_size=6)
    ),
    stripe=st.sampled_from([1, 7, 1 << 22]),
)
def test_a_mask_mod_has_a_column_mask_exactly_when_core_finds_one(dense: list, stripe: int) -> None:
    from fm3_core import ColumnMask

    visible = np.array(dense).T
    table = torch.tensor(visible)
    patch = pytest.MonkeyPatch()
    patch.setattr(flex, "_STRIPE_ELEMENTS", stripe)

    def convert() -> object:
        return flex.from_mask_mod(
            lambda b, h, row, key: table[row, key], num_rows=visible.shape[0], num_keys=visible.shape[1]
        )

    def result_of(function: object) -> object:
        try:
            return function()
        except MaskError as error:
            return "column" in str(error)

    mine, right = result_of(convert), result_of(lambda: ColumnMask.from_dense(visible[None, None]))
    patch.undo()
    assert mine == right


def test_a_mask_whose_heads_do_not_divide_the_query_heads_is_refused() -> None:
    mask = patterns.random_eviction(8, 4, heads=2, seed=0)
    with pytest.raises(MaskError, match="2 heads do not divide query_heads=3"):
        flex.to_mask_mod(mask, query_heads=3)


def test_a_block_mask_needs_rows_and_keys() -> None:
    with pytest.raises(MaskError, match="0 x 5"):
        flex.to_block_mask(patterns.full(0, 5))


def test_importing_the_package_does_not_import_flex_attention() -> None:
    code = (
        "import sys, torch; name = 'torch.nn.attention.flex_attention'; before = name in sys.modules; "
        "import fm3_kernels; assert (name in sys.modules) == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
