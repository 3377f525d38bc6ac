"""The gather as a program: owners open their chunks, readers pull them, relays open them again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from fm3_comm.hops import nearest_first
from fm3_comm.message import Head
from fm3_comm.symmetric.footprint import Slots, needed
from fm3_comm.symmetric.program import QUIET, AnyOf, Program
from fm3_comm.symmetric.site import Site
from fm3_core import Cluster, Transfer


@dataclass(frozen=True, kw_only=True)
class GatherWork:
    """What one rank brings to a gather.

    Args:
        head: what every rank must have started.
        slots: where chunks are.
        chunk_bytes: bytes of each chunk that passes this rank.
        bodies: bytes of each own chunk that somebody needs, uint8.
        cluster: which ranks are near.
        started: called with the epoch that `ready` flags will have.
        arrived: called for each received chunk with a copy of its bytes.
        count: called for each hop that leaves this rank, with its bytes.
    """

    head: Head
    slots: Slots
    chunk_bytes: Mapping[int, int]
    bodies: Mapping[int, Tensor]
    cluster: Cluster
    started: Callable[[int], None]
    arrived: Callable[[int, Tensor], None]
    count: Callable[[Transfer, int], None]


def gather(site: Site, work: GatherWork) -> Program[dict[int, Tensor]]:
    """Move chunks; return the bytes of every chunk that this rank received, copied out of the buffer."""
    yield from site.make_room(needed(work.slots, segments=0, reduce=False), work.head)
    epoch = site.next_epoch()
    work.started(epoch)
    me = work.slots.trees[site.rank]
    board, room, slots = site.board, site.room, work.slots

    def open_chunk(chunk: int) -> None:
        for child in me.children.get(chunk, ()):
            work.count(Transfer(chunk, site.rank, child), work.chunk_bytes[chunk])
            site.flag(room.landed(site.rank, me.place_below[child, chunk]), epoch, child)

    # Readers of the last operation may still be pulling from the slots that are written now.
    yield from board.all_closed()
    for chunk in me.sent:
        site.slot(slots.key(site.rank, chunk), work.chunk_bytes[chunk]).copy_(work.bodies[chunk])
    for child in me.below:
        board.open_to(child, work.head, epoch)
    for chunk in me.sent:
        open_chunk(chunk)

    left = list(nearest_first(me, work.cluster))
    received: dict[int, Tensor] = {}
    open_chunks = {parent: len(chunks) for parent, chunks in me.above.items()}
    met: set[int] = set()
    while left:
        opened = {parent: board.opened_by(parent, epoch) for parent in open_chunks if parent not in met}
        landed = {
            chunk: site.until(
                room.landed(me.parent[chunk], me.place_above[chunk]),
                epoch,
                me.parent[chunk],
                f"chunk {chunk} of rank {me.parent[chunk]}",
            )
            for chunk in left
            if me.parent[chunk] in met
        }
        yield AnyOf((*opened.values(), *landed.values()))
        for parent, until in opened.items():
            if until.reached(site.memory):
                board.head_of(parent, epoch, work.head)
                met.add(parent)
        now = [chunk for chunk, until in landed.items() if until.reached(site.memory)]
        for chunk in now:
            into = site.slot(slots.key(site.rank, chunk), work.chunk_bytes[chunk])
            site.get(into, slots.key(me.parent[chunk], chunk), me.parent[chunk])
        yield QUIET
        for chunk in now:
            site.flag(room.ready(me.received_index[chunk]), epoch, site.rank)
            open_chunk(chunk)
            received[chunk] = site.slot(slots.key(site.rank, chunk), work.chunk_bytes[chunk]).clone()
            work.arrived(chunk, received[chunk])
            open_chunks[me.parent[chunk]] -= 1
            if not open_chunks[me.parent[chunk]]:
                board.close_to(me.parent[chunk], epoch)
        left = [chunk for chunk in left if chunk not in now]
    yield QUIET
    return received
