"""The lists that the Hopper backward kernel walks, made on a GPU, against what the mask says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attention_masks import MASKS
from backward_cases import gpu_marks, random_spans

from fm3_core import BlockMap, ColumnMask, patterns
from fm3_core.blocks import EMPTY
from fm3_kernels import DeviceMask
from fm3_kernels.backward_lists import BackwardLists
from fm3_kernels.prepared_mask import prepared

pytestmark = gpu_marks()

ROWS, KEYS = 64, 128
CASES = {
    **{f"pattern {name}": (mask, 1) for name, mask in MASKS.items()},
    "many key blocks": (patterns.causal_document([3000, 100, 37000, 900]), 1),
    "more rows than keys": (patterns.full(20000, 130), 1),
    "nobody sees anything": (patterns.document([100], padding=500), 1),
    "a mask for each query head": (random_spans(700, 900, 6, 2, "runs", seed=3), 2),
    "a mask for each kv head": (random_spans(700, 900, 2, 1, "free", seed=4), 2),
    "one mask for all": (random_spans(700, 900, 1, 1, "causal", seed=5), 2),
}


def lists_of(mask: ColumnMask, kv_heads: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    lists = BackwardLists.from_prepared(prepared(DeviceMask.from_mask(mask, "cuda")), kv_heads=kv_heads)
    torch.cuda.synchronize()
    return tuple(x.cpu().numpy() for x in (lists.records, lists.sorted, lists.visits))


@pytest.mark.parametrize("name", CASES)
def test_lists_agree_with_each_other_and_leave_no_block_out(name: str) -> None:
    mask, kv_heads = CASES[name]
    records, in_order, visits = lists_of(mask, kv_heads)
    seen = BlockMap.from_mask(mask, ROWS, KEYS).kinds != EMPTY
    share = max(mask.heads // kv_heads, 1)
    for batch in range(mask.batch):
        for head in range(mask.heads):
            order = in_order[batch, head // share * share, :, 0]
            bits = visits[batch, head, :, :, 0, None].astype(np.uint32) >> np.arange(32, dtype=np.uint32) & 1
            by_place = bits.reshape(bits.shape[0], -1).astype(bool)
            listed = np.zeros_like(seen[batch, head])
            listed[:, order] = by_place[:, : len(order)]
            assert not by_place[:, len(order) :].any()
            assert not (seen[batch, head] & ~listed).any(), "a visible block is in no list"

            counts = bits.sum(2)
            assert np.array_equal(visits[batch, head, :, :, 1], np.cumsum(counts, 1) - counts)
            rows = np.arange(len(listed))[:, None]
            first = np.where(listed, rows, len(listed)).min(0, initial=len(listed))
            last = np.where(listed, rows, -1).max(0, initial=-1)
            keys = np.arange(listed.shape[1])
            right = np.stack([keys, first, last, listed.sum(0)], 1)
            assert np.array_equal(records[batch, head], right)
            assert np.array_equal(in_order[batch, head], right[np.lexsort((keys, -first))])
