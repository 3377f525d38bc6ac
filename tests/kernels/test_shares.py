"""How a call splits into stacked products."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fm3_kernels.shares import shares

HEADS = st.sampled_from([1, 2, 3, 4, 6, 12])


@given(
    batch=st.integers(0, 5),
    kv_heads=HEADS,
    mask_heads=HEADS,
    one_mask=st.booleans(),
    max_products=st.integers(0, 40),
)
def test_every_query_head_is_computed_once_with_its_own_kv_and_mask_head(
    batch: int, kv_heads: int, mask_heads: int, one_mask: bool, max_products: int
) -> None:
    query_heads = math.lcm(kv_heads, mask_heads, 12)
    seen = np.zeros((batch, query_heads), int)
    for share in shares(
        batch=batch,
        query_heads=query_heads,
        kv_heads=kv_heads,
        mask_batch=1 if one_mask else batch,
        mask_heads=mask_heads,
        max_products=max_products,
    ):
        entries, heads = range(batch)[share.batch], range(query_heads)[share.query_heads]
        kv = range(kv_heads)[share.kv_heads]
        assert 0 < len(entries) * len(heads) <= max(1, max_products)
        assert [h // (query_heads // kv_heads) for h in heads] == list(np.repeat(kv, share.heads_per_kv))
        assert {h // (query_heads // mask_heads) for h in heads} == {share.mask_head}
        assert {0 if one_mask else b for b in entries} == {share.mask_batch}
        seen[share.batch, share.query_heads] += 1
    assert (seen == 1).all()


def test_as_many_heads_and_entries_are_stacked_as_allowed() -> None:
    heads = {"query_heads": 8, "kv_heads": 4, "mask_batch": 1, "mask_heads": 1}
    assert len(list(shares(batch=3, max_products=24, **heads))) == 1
    assert len(list(shares(batch=3, max_products=8, **heads))) == 3
    assert len(list(shares(batch=3, max_products=4, **heads))) == 6
    assert len(list(shares(batch=3, max_products=1, **heads))) == 24
