"""How one attention call splits into shares: heads and batch entries that one stacked matrix product serves.

Query heads that use the same kv head and the same mask head are stacked as more rows of one product; kv
heads and batch entries under the same mask become its batch. Every share is a rectangle of slices, so
nothing is gathered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """Batch entries, kv heads and query heads that are computed together under one mask head.

    The query heads are `heads_per_kv` for each kv head, ascending.
    """

    batch: slice
    kv_heads: slice
    query_heads: slice
    heads_per_kv: int
    mask_batch: int
    mask_head: int


def shares(
    *, batch: int, query_heads: int, kv_heads: int, mask_batch: int, mask_heads: int, max_products: int
) -> Iterator[Share]:
    """Yield shares that cover every (batch entry, query head) once, in a fixed order.

    Args:
        batch: batch entries of the tensors.
        query_heads: a multiple of both kv_heads and mask_heads.
        kv_heads: heads of k and v.
        mask_batch: 1 or `batch`.
        mask_heads: heads of the mask.
        max_products: most (batch entry, query head) pairs that a share stacks; a share has at least one.
    """
    max_products = max(1, max_products)
    entries = [(0, 0, batch)] if mask_batch == 1 else [(b, b, b + 1) for b in range(batch)]
    for mask_head in range(mask_heads):
        for kv_start, kv_end, first_query, heads_per_kv in _groups(
            mask_head, query_heads // kv_heads, query_heads // mask_heads, max_products
        ):
            kv_step = max_products // heads_per_kv
            batch_step = max(1, max_products // (heads_per_kv * (kv_end - kv_start)))
            for entry, batch_start, batch_end in entries:
                for b in range(batch_start, batch_end, batch_step):
                    for kv in range(kv_start, kv_end, kv_step):
                        kv_stop = min(kv_end, kv + kv_step)
                        query = first_query + (kv - kv_start) * heads_per_kv
                        yield Share(
                            batch=slice(b, min(batch_end, b + batch_step)),
                            kv_heads=slice(kv, kv_stop),
                            query_heads=slice(query, query + (kv_stop - kv) * heads_per_kv),
                            heads_per_kv=heads_per_kv,
                            mask_batch=entry,
                            mask_head=mask_head,
                        )


def _groups(
    mask_head: int, per_kv: int, per_mask: int, max_products: int
) -> Iterator[tuple[int, int, int, int]]:
    """Yield (kv start, kv end, first query head, query heads for each kv head) of one mask head."""
    first, last = mask_head * per_mask, (mask_head + 1) * per_mask
    if per_mask % per_kv == 0 and per_kv <= max_products:
        yield first // per_kv, last // per_kv, first, per_kv
        return
    while first < last:
        kv = first // per_kv
        stop = min(last, (kv + 1) * per_kv, first + max_products)
        yield kv, kv + 1, first, stop - first
        first = stop
