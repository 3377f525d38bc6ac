"""The keys and values of a gather under way, part by part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from fm3_comm import ChunkedPending, Pending
from fm3_runtime.step import Chunks, Step


def arriving(
    step: Step, pending: Pending, k: Tensor, v: Tensor, parts: Sequence[Chunks]
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield each part's number once with its keys and values, as it gets here, or once all are here.

    A backend that does not tell what is here gives this rank's own keys at once, and then the rest together.

    Args:
        step: who gathers what.
        pending: the gather.
        k: [B, S, Hkv, D], this rank's tokens.
        v: [B, S, Hkv, Dv].
        parts: disjoint gathered chunks.
    """
    left = list(range(len(parts)))
    if step.overlap and isinstance(pending, ChunkedPending):
        while left:
            number = left.pop(pending.first_ready([parts[number] for number in left]))
            yield number, *pending.take(parts[number])
        return
    if step.overlap and step.own_chunks in parts:
        places = step.own_places(k.device)
        left.remove(parts.index(step.own_chunks))
        yield parts.index(step.own_chunks), k.index_select(1, places), v.index_select(1, places)
    all_k, all_v = pending.wait()
    for number in left:
        places = step.gathered_places(parts[number], all_k.device)
        yield number, all_k.index_select(1, places), all_v.index_select(1, places)
