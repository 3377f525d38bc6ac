"""A model of the backward kernel's roles and barriers, run in random interleavings on a CPU.

Each role is a coroutine that mirrors its CUDA source (bwd_generator.cuh, bwd_loader.cuh, bwd_consumer.cuh,
bwd_writer.cuh) step by step. Shared memory holds tags in place of values, and whoever reads checks that it
finds the block it means. What this cannot see: memory ordering within a step.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

QUEUE_STAGES, QUEUE_ENTRIES, WRITERS, RING, WARPS = 4, 2, 2, 8, 8
LOADING = -7

Condition = Callable[[], bool]
Steps = Iterator[Condition]


class Mbarrier:
    """Counts arrivals and outstanding copies; waits are by the parity of a phase."""

    def __init__(self, arrivals: int) -> None:
        self.arrivals, self.pending, self.copies, self.phase = arrivals, arrivals, 0, 0

    def _turn(self) -> None:
        if self.pending == 0 and self.copies == 0:
            self.phase, self.pending = self.phase + 1, self.arrivals

    def arrive(self, copies: int = 0) -> None:
        assert self.pending > 0, "more arrivals than a phase has"
        self.copies += copies
        self.pending -= 1
        self._turn()

    def complete(self) -> None:
        self.copies -= 1
        self._turn()

    def passed(self, parity: int) -> Condition:
        return lambda: self.phase % 2 != parity


class NamedBarrier:
    """Some warps that wait for each other."""

    def __init__(self, members: int) -> None:
        self.members, self.count, self.round = members, 0, 0

    def join(self) -> Condition:
        mine = self.round
        self.count += 1
        if self.count == self.members:
            self.count, self.round = 0, self.round + 1
        return lambda: self.round > mine


class Cursor:
    """A role's place in a ring of stages."""

    def __init__(self, stages: int) -> None:
        self.stages, self.stage, self.parity = stages, 0, 0

    def advance(self) -> None:
        self.stage += 1
        if self.stage == self.stages:
            self.stage, self.parity = 0, self.parity ^ 1


class Tile(NamedTuple):
    """A block of keys of one pair of batch entry and kv head, and the row blocks that meet it."""

    pair: int
    chunk: int
    blocks: list[tuple[int, tuple[bool, bool]]]  # (row block, seen by which warpgroup)


class Entry(NamedTuple):
    """One entry of the list that every role walks."""

    tile: int
    row: tuple[int, int]
    turn: int
    seen: tuple[bool, bool]
    first: bool
    last: bool
    stop: bool


STOP = Entry(-1, (0, 0), 0, (False, False), False, False, True)


class Device:
    """Tiles, the CTAs that take them, and what they share in global memory."""

    def __init__(
        self,
        tiles: list[Tile],
        seed: int,
        *,
        ctas: int = 1,
        resident: int | None = None,
        slow_additions: int = 0,
        stages: tuple[int, int] = (3, 2),
        mistake: str = "",
    ) -> None:
        self.tiles, self.mistake = tiles, mistake
        self.q_stages, self.do_stages = stages
        self.slow_additions, self.num_ctas, self.resident = slow_additions, ctas, resident or ctas
        self.rng = random.Random(seed)
        self.next_tile = 0
        self.additions: dict[tuple[int, int], list[int]] = {}  # tiles, in the order in which they added
        self.turns: dict[tuple[int, int], int] = {}
        self.written: set[tuple[int, int]] = set()  # (tile, warpgroup) whose dK and dV are in place
        self.counted: dict[int, int] = {}
        self.done: set[int] = set()
        self.unfinished: dict[int, int] = {}  # actors of a CTA
        self.actors: list[tuple[str, Steps, Condition, int]] = []
        self.spawn("dispatcher", self.dispatcher(), -1)

    def spawn(self, name: str, actor: Steps, cta: int) -> None:
        self.unfinished[cta] = self.unfinished.get(cta, 0) + 1
        self.actors.append((name, actor, lambda: True, cta))

    def run(self) -> None:
        while self.actors:
            ready = [i for i, (_, _, condition, _) in enumerate(self.actors) if condition()]
            assert ready, f"deadlock: {[name for name, _, _, _ in self.actors]}"
            i = self.rng.choice(ready)
            name, actor, _, cta = self.actors[i]
            condition = next(actor, None)
            if condition is None:
                del self.actors[i]
                self.unfinished[cta] -= 1
            else:
                self.actors[i] = (name, actor, condition, cta)

    def pause(self, longest: int = 4) -> Steps:
        for _ in range(self.rng.randrange(longest)):
            yield lambda: True

    def dispatcher(self) -> Steps:
        for cta in range(self.num_ctas):
            yield lambda: sum(n > 0 for c, n in self.unfinished.items() if c >= 0) < self.resident
            Machine(self, cta)

    def take(self) -> int:
        self.next_tile += 1
        return self.next_tile - 1

    def entries(self, index: int) -> list[Entry]:
        tile = self.tiles[index]
        if not tile.blocks:
            return [Entry(index, (tile.pair, 0), 0, (False, False), True, True, False)]
        last = len(tile.blocks) - 1
        return [
            Entry(index, (tile.pair, row), self.turn_of(index, row), seen, i == 0, i == last, False)
            for i, (row, seen) in enumerate(tile.blocks)
        ]

    def has_turn(self, entry: Entry) -> bool:
        return self.turns.get(entry.row, 0) == entry.turn

    def turn_of(self, index: int, row: int) -> int:
        mine = self.tiles[index]
        before = (tile for tile in self.tiles[:index] if tile.pair == mine.pair)
        return sum(any(r == row for r, _ in tile.blocks) for tile in before)

    def count_stored(self, tile: int) -> None:
        chunk = self.tiles[tile].chunk
        self.counted[chunk] = self.counted.get(chunk, 0) + 1
        members = [i for i, other in enumerate(self.tiles) if other.chunk == chunk]
        if self.counted[chunk] == 2 * len(members):
            missing = {(i, group) for i in members for group in (0, 1)} - self.written
            assert not missing, f"chunk {chunk} is called done without {missing}"
            self.done.add(chunk)


class Machine:
    """One CTA: its shared memory, its barriers, its roles."""

    def __init__(self, device: Device, cta: int) -> None:
        self.device, self.cta, self.mistake = device, cta, device.mistake
        self.list: list[Entry] = []
        self.queue: list[list[int]] = [[] for _ in range(QUEUE_STAGES)]
        self.queue_full = [Mbarrier(1) for _ in range(QUEUE_STAGES)]
        self.queue_empty = [Mbarrier(1) for _ in range(QUEUE_STAGES)]
        self.q_full = [Mbarrier(1) for _ in range(device.q_stages)]
        self.q_empty = [Mbarrier(WARPS) for _ in range(device.q_stages)]
        self.do_full = [Mbarrier(1) for _ in range(device.do_stages)]
        self.do_empty = [Mbarrier(WARPS) for _ in range(device.do_stages)]
        self.key_full = {name: Mbarrier(1) for name in "kv"}
        self.key_empty = {name: Mbarrier(WARPS) for name in "kv"}
        self.dq_full = [Mbarrier(WARPS) for _ in range(WRITERS)]
        self.dq_empty = [Mbarrier(1) for _ in range(WRITERS)]
        self.consumers = NamedBarrier(WARPS)
        self.outputs = [NamedBarrier(4), NamedBarrier(4)]
        self.q, self.d_out = [LOADING] * device.q_stages, [LOADING] * device.do_stages
        self.entry_at = [(0, 0)] * device.q_stages
        self.keys = {"k": LOADING, "v": LOADING}
        self.ds: list[list[Any]] = [[None] * WARPS for _ in range(2)]
        self.dq: list[Any] = [None] * WARPS
        self.targets = [(-1, -1, 0)] * RING  # block, number, round of the ring
        self.readers = {
            "dq": 0,
            0: 0,
            1: 0,
        }  # bulk copies that still read the room of dQ, of a warpgroup's output
        self.writing = [0, 0]  # stores that are not in place yet, of each warpgroup
        self.uncounted: list[int | None] = [None, None]
        self.spawn("generator", self.generator())
        self.spawn("loader", self.loader())
        for writer in range(WRITERS):
            self.spawn(f"writer {writer}", self.writer(writer))
        for warp in range(WARPS):
            self.spawn(f"warp {warp}", Consumer(self, warp).run())

    def spawn(self, name: str, actor: Steps) -> None:
        self.device.spawn(f"{self.cta}: {name}", actor, self.cta)

    # --- Role 1.

    def generator(self) -> Steps:
        device, published = self.device, 0
        by_number = self.mistake == "the first tile is the CTA's number"
        index = self.cta if by_number else device.take()
        while True:
            stops = index >= len(device.tiles)
            found = [STOP] if stops else device.entries(index)
            for start in range(0, len(found), QUEUE_ENTRIES):
                at = published % QUEUE_STAGES
                yield self.queue_empty[at].passed(published // QUEUE_STAGES % 2 ^ 1)
                part = found[start : start + QUEUE_ENTRIES]
                self.queue[at] = list(range(len(self.list), len(self.list) + len(part)))
                self.list += part
                published += 1
                self.queue_full[at].arrive()
            if stops:
                return
            last = published - 1
            yield self.queue_empty[last % QUEUE_STAGES].passed(last // QUEUE_STAGES % 2)
            index = device.take() + (device.num_ctas if by_number else 0)

    # --- Role 2.

    def fetch(self, room: Any, at: Any, tag: int, barrier: Mbarrier) -> None:
        def copy() -> Steps:
            yield from self.device.pause()
            room[at] = tag
            barrier.complete()

        room[at] = LOADING
        barrier.arrive(copies=1)
        self.spawn("copy", copy())

    def loader(self) -> Steps:
        device = self.device
        queue, q, d_out = Cursor(QUEUE_STAGES), Cursor(device.q_stages), Cursor(device.do_stages)
        parity, num_dq = 0, 0
        while True:
            yield self.queue_full[queue.stage].passed(queue.parity)
            for n in self.queue[queue.stage]:
                entry = self.list[n]
                flags = any(entry.seen)
                yield self.q_empty[q.stage].passed(q.parity ^ 1)
                self.entry_at[q.stage] = (n, parity)
                for _ in range(WRITERS if entry.stop else int(flags)):
                    self.targets[num_dq % RING] = (-1 if entry.stop else n, num_dq, (num_dq // RING + 1) % 2)
                    num_dq += 1
                if flags:
                    self.fetch(self.q, q.stage, n, self.q_full[q.stage])
                else:
                    self.q_full[q.stage].arrive()
                q.advance()
                if flags or self.mistake == "entries without flags take room of dO":
                    yield self.do_empty[d_out.stage].passed(d_out.parity ^ 1)
                    if flags:
                        self.fetch(self.d_out, d_out.stage, n, self.do_full[d_out.stage])
                    else:
                        self.do_full[d_out.stage].arrive()
                    d_out.advance()
                if entry.first and flags:
                    for name in "kv":
                        yield self.key_empty[name].passed(parity ^ 1)
                        self.fetch(self.keys, name, entry.tile, self.key_full[name])
                    parity ^= 1
                if entry.stop:
                    return
            self.queue_empty[queue.stage].arrive()
            queue.advance()

    # --- Role 4.

    def writer(self, writer: int) -> Steps:
        device, n = self.device, writer
        while True:
            if self.mistake != "a place of the round before is taken":
                yield lambda n=n: self.targets[n % RING][2] == (n // RING + 1) % 2
            block, number, _ = self.targets[n % RING]
            assert number == n, "the target of another block"
            if block < 0:
                return
            entry = self.list[block]
            if self.mistake != "additions before this one are not waited for":
                yield lambda e=entry: device.has_turn(e)
            yield self.dq_full[writer].passed(n // WRITERS % 2)
            self.readers["dq"] += 1
            yield from device.pause()
            assert self.dq == [block] * WARPS, "dQ of another block"
            assert (entry.turn == 0) == (entry.row not in device.additions), (
                "who comes first stores, others add"
            )
            device.additions.setdefault(entry.row, []).append(entry.tile)
            self.readers["dq"] -= 1
            self.dq_empty[writer].arrive()
            yield from device.pause(device.slow_additions + 1)  # the addition is not there yet
            device.turns[entry.row] = device.turns.get(entry.row, 0) + 1
            n += WRITERS


class Consumer:
    """Role 3: one warp of a warpgroup."""

    def __init__(self, machine: Machine, warp: int) -> None:
        self.m, self.warp, self.group = machine, warp, warp // 4
        self.stores = warp % 4 == 0  # its first thread issues the warpgroup's stores
        self.q, self.d_out = Cursor(machine.device.q_stages), Cursor(machine.device.do_stages)
        self.num_dq, self.n, self.parity = 0, 0, 0

    @property
    def entry(self) -> Entry:
        return self.m.list[self.n]

    @property
    def sees(self) -> bool:
        return self.entry.seen[self.group]

    def run(self) -> Steps:
        m = self.m
        yield from self.take()
        while not self.entry.stop:
            tile = self.entry.tile
            if any(self.entry.seen):
                yield from self.open_tile()
                more = True
                while more:
                    more = yield from (self.run_blocks() if self.sees else self.skip_block())
                if m.mistake != "keys are released before the last dQ":
                    self.release_keys()
            elif m.mistake == "entries without flags take room of dO":
                m.do_empty[self.d_out.stage].arrive()
                self.d_out.advance()
            m.q_empty[self.q.stage].arrive()
            self.q.advance()
            yield from self.store_tile(tile)
            yield from self.take()
        yield from self.finish_stores()

    def run_blocks(self) -> Iterator[Any]:
        m, device = self.m, self.m.device
        yield m.do_full[self.d_out.stage].passed(self.d_out.parity)
        while True:
            n, (tile, _, _, seen, _, last, _) = self.n, self.entry
            for _ in range(2):  # while the scores and dP run
                assert m.q[self.q.stage] == n, "Q of another block"
                assert m.keys == {"k": tile, "v": tile}, "keys of another tile"
                assert m.d_out[self.d_out.stage] == n, "dO of another block"
                yield from device.pause()
            buffer = self.ds_room()
            assert m.readers[buffer] == 0, "dS overwrites a dV that is being stored"
            m.ds[buffer][self.warp] = n
            stage = self.q.stage
            released = m.mistake == "rows are released before dK"
            if released:
                m.q_empty[stage].arrive()
            if not last:
                self.q.advance()
                yield from self.take()
            yield m.consumers.join()
            if last and m.mistake == "keys are released before the last dQ":
                self.release_keys()
            yield from device.pause()
            assert m.d_out[self.d_out.stage] == n, "dO of another block"
            m.do_empty[self.d_out.stage].arrive()
            yield self.room()
            yield from self.products_for_dq(n, tile, seen)
            assert m.q[stage] == n, "Q of another block"
            self.d_out.advance()
            if last or not self.sees:
                yield from self.send(n)
                if not last and not released:
                    m.q_empty[stage].arrive()
                return not last
            if not released:
                m.q_empty[stage].arrive()
            yield m.do_full[self.d_out.stage].passed(self.d_out.parity)
            yield from self.send(n)

    def skip_block(self) -> Iterator[Any]:
        m, n, (tile, _, _, seen, _, last, _) = self.m, self.n, self.entry
        yield m.consumers.join()
        if last and m.mistake == "keys are released before the last dQ":
            self.release_keys()
        yield from self.products_for_dq(n, tile, seen)
        m.do_empty[self.d_out.stage].arrive()
        self.d_out.advance()
        yield self.room()
        yield from self.send(n)
        if last:
            return False
        m.q_empty[self.q.stage].arrive()
        self.q.advance()
        yield from self.take()
        return True

    def take(self) -> Steps:
        yield self.m.q_full[self.q.stage].passed(self.q.parity)
        self.n, self.parity = self.m.entry_at[self.q.stage]

    def ds_room(self) -> int:
        return 0 if self.m.mistake == "one room for dS" else self.d_out.stage % 2

    def room(self) -> Condition:
        if self.m.mistake == "dQ is sent without waiting for room":
            return lambda: True
        last = (self.num_dq - 1) % 2**32
        return self.m.dq_empty[last % WRITERS].passed(last // WRITERS % 2)

    def send(self, n: int) -> Steps:
        m = self.m
        assert m.readers["dq"] == 0, "dQ is overwritten while it is read"
        assert m.readers[0] == m.readers[1] == 0, "dQ overwrites a dK that is being stored"
        m.dq[self.warp] = n
        yield lambda: True
        m.dq_full[self.num_dq % WRITERS].arrive()
        self.num_dq += 1

    def products_for_dq(self, n: int, tile: int, seen: tuple[bool, bool]) -> Steps:
        for _ in range(2):  # when issued, and when waited for
            for half in (h for h in (0, 1) if seen[h]):
                found = self.m.ds[self.ds_room()][4 * half : 4 * half + 4]
                assert found == [n] * 4, "dS of another block"
            assert self.m.keys["k"] == tile, "K of another tile"
            yield from self.m.device.pause()

    def release_keys(self) -> None:
        for barrier in self.m.key_empty.values():
            barrier.arrive()

    def open_tile(self) -> Steps:
        yield from self.finish_stores()
        yield self.m.consumers.join()
        yield self.m.key_full["k"].passed(self.parity)
        yield self.m.key_full["v"].passed(self.parity)

    def finish_stores(self) -> Steps:
        m, group = self.m, self.group
        if not self.stores or m.mistake == "stores are not waited for":
            return
        if m.mistake == "a tile is counted once it is read":
            yield lambda: m.readers[group] == 0
        else:
            yield lambda: m.writing[group] == 0
        tile, m.uncounted[group] = m.uncounted[group], None
        if tile is not None:
            m.device.count_stored(tile)

    def store_tile(self, tile: int) -> Steps:
        m, group = self.m, self.group
        yield from self.finish_stores()
        yield self.room()
        yield m.consumers.join()
        assert m.readers["dq"] == m.readers[group] == 0, "output overwrites what is being read"
        m.ds[group][self.warp], m.dq[self.warp] = ("dv", tile), ("dk", tile)
        yield m.outputs[group].join()
        if self.stores:
            m.uncounted[group] = tile
            m.readers[group] += 1
            m.writing[group] += 1
            m.spawn("store", self.store(tile))

    def store(self, tile: int) -> Steps:
        m, group = self.m, self.group
        part = slice(4 * group, 4 * group + 4)
        yield from m.device.pause()
        assert m.dq[part] == [("dk", tile)] * 4, "dK overwritten"
        assert m.ds[group][part] == [("dv", tile)] * 4, "dV overwritten"
        m.readers[group] -= 1
        yield from m.device.pause()
        m.device.written.add((tile, group))
        m.writing[group] -= 1
