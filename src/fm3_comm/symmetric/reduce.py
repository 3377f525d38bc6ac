"""The reduction as a program: owners open their slots, contributors put partials there, owners add them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fm3_comm.message import Head
from fm3_comm.symmetric.footprint import BITS, Slots, mask_of, needed
from fm3_comm.symmetric.program import QUIET, AnyOf, Program, Until
from fm3_comm.symmetric.site import Site
from fm3_core import Transfer

_WORD = 1 << BITS


@dataclass(frozen=True, kw_only=True)
class ReduceWork:
    """What one rank brings to a reduction.

    Args:
        head: what every rank must have started; its dtype is the wire's.
        slots: where partials are.
        wire_bytes: bytes of each chunk on the wire, for chunks that pass this rank.
        segments: gathered chunks by segment; segments may get done in any order.
        partials: this rank's partial of a gathered chunk, flat, in the dtype of sums; valid for the chunks of
            a segment once its `work_done` is set.
        sum_dtype: float32 or float64.
        started: called with the epoch when the words of `work_done` may be set.
        count: called for each hop that leaves this rank, with its bytes.
    """

    head: Head
    slots: Slots
    wire_bytes: Mapping[int, int]
    segments: Sequence[Sequence[int]]
    partials: Mapping[int, Tensor]
    sum_dtype: torch.dtype
    started: Callable[[int], None]
    count: Callable[[Transfer, int], None]


def reduce(site: Site, work: ReduceWork) -> Program[dict[int, Tensor]]:
    """Move and add partials; return the sum of every own chunk that came back, flat."""
    yield from site.make_room(needed(work.slots, segments=len(work.segments), reduce=True), work.head)
    epoch = site.next_epoch()
    me = work.slots.trees[site.rank]
    board = site.board

    # Readers of the last operation may still be pulling from slots that contributors are about to fill.
    yield from board.all_closed()
    for child in me.below:
        board.open_to(child, work.head, epoch)
    work.started(epoch)

    met: set[int] = set()
    waiting = {
        segment: site.until(
            site.room.work_done(segment),
            epoch,
            site.rank,
            f"segment {segment} of the backward pass on this rank",
        )
        for segment in range(len(work.segments))
    }
    while waiting:
        yield AnyOf(tuple(waiting.values()))
        for segment in [segment for segment, until in waiting.items() if until.reached(site.memory)]:
            del waiting[segment]
            leaves = {
                chunk: work.partials[chunk].to(work.head.dtype)
                for chunk in work.segments[segment]
                if chunk in me.parent and chunk not in me.children
            }
            yield from _deliver(site, work, epoch, leaves, met)
    relayed = [chunk for chunk in me.children if chunk in me.parent]
    while relayed:
        missing = {chunk: _missing(site, work, chunk) for chunk in relayed}
        if all(missing.values()):
            yield AnyOf(tuple(untils[0] for untils in missing.values()))
        done = [chunk for chunk in relayed if not _missing(site, work, chunk)]
        sums = {chunk: _sum(site, work, chunk).to(work.head.dtype) for chunk in done}
        yield from _deliver(site, work, epoch, sums, met)
        relayed = [chunk for chunk in relayed if chunk not in done]
    total = {}
    for chunk in me.sent:
        while untils := _missing(site, work, chunk):
            yield AnyOf((untils[0],))
        total[chunk] = _sum(site, work, chunk)
    for parent in me.above:
        # Also to parents that needed nothing of it: they may not open anything before it is done.
        board.close_to(parent, epoch)
    yield QUIET
    return total


def _deliver(
    site: Site, work: ReduceWork, epoch: int, bodies: Mapping[int, Tensor], met: set[int]
) -> Program[None]:
    """Put partials into the slots of the ranks above, and set this rank's bit once they are there."""
    me = work.slots.trees[site.rank]
    left = dict(bodies)
    while left:
        parents = sorted({me.parent[chunk] for chunk in left})
        opened = {parent: site.board.opened_by(parent, epoch) for parent in parents if parent not in met}
        if len(opened) == len(parents):
            yield AnyOf(tuple(opened.values()))
        for parent, until in opened.items():
            if until.reached(site.memory):
                site.board.head_of(parent, epoch, work.head)
                met.add(parent)
        now = [chunk for chunk in left if me.parent[chunk] in met]
        for chunk in now:
            parent, body = me.parent[chunk], left.pop(chunk).view(torch.uint8)
            slot = site.slot(work.slots.partial(site.rank, chunk), len(body))
            slot.copy_(body)
            work.count(Transfer(chunk, site.rank, parent), len(body))
            site.put(
                slot,
                work.slots.contribution(parent, chunk, site.rank),
                word=site.room.landed(site.rank, me.place_above[chunk]),
                epoch=epoch,
                pe=parent,
            )
        # The bit must not overtake the data.
        yield QUIET
        for chunk in now:
            parent = me.parent[chunk]
            index = work.slots.trees[parent].passed_index[chunk]
            word = site.room.contributors(index, site.rank // BITS)
            site.memory.fetch_or(site.buffer, word, 1 << (site.rank % BITS), parent)


def _missing(site: Site, work: ReduceWork, chunk: int) -> list[Until]:
    """Return what is left to wait for before a chunk's partials are all here.

    Only those that the exchange names set their bits, so a word is complete when it reaches the expected
    value.
    """
    me = work.slots.trees[site.rank]
    children = me.children[chunk]
    untils = [
        site.until(
            site.room.contributors(me.passed_index[chunk], word),
            bits,
            next(child for child in children if child // BITS == word),
            f"partials of chunk {chunk} from ranks {', '.join(map(str, children))}",
        )
        for word, bits in enumerate(mask_of(children, site.memory.num_ranks))
        if bits
    ]
    return [until for until in untils if not until.reached(site.memory)]


def _sum(site: Site, work: ReduceWork, chunk: int) -> Tensor:
    """Add the partials of a chunk in ascending order of rank, and clear their bits for the next epoch."""
    me = work.slots.trees[site.rank]
    children = me.children[chunk]
    num_bytes = work.wire_bytes[chunk]
    total = torch.zeros(num_bytes // work.head.dtype.itemsize, dtype=work.sum_dtype)
    own = work.partials.get(chunk)
    for source in sorted([*children, site.rank]):
        if source != site.rank:
            slot = site.slot(work.slots.contribution(site.rank, chunk, source), num_bytes)
            total += slot.view(work.head.dtype).to("cpu", work.sum_dtype)
        elif own is not None:
            total += own
    for word, bits in enumerate(mask_of(children, site.memory.num_ranks)):
        if bits:
            place = site.room.contributors(me.passed_index[chunk], word)
            site.memory.fetch_add(site.buffer, place, _WORD - bits, site.rank)
    return total
