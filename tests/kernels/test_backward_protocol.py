"""The barriers of the backward kernel, by random interleavings on a CPU.

Each role is a coroutine that mirrors its CUDA source (bwd_loader.cuh, bwd_consumer.cuh, bwd_writer.cuh) step
by step. Shared memory holds tags in place of values, and whoever reads checks that it finds the block it
means. What this cannot see: memory ordering within a step, and the list generator, which feeds the
loader.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

Q_STAGES, DO_STAGES, WRITERS, RING, WARPS = 3, 2, 2, 8, 8
LOADING = -7


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

    def passed(self, parity: int) -> Callable[[], bool]:
        return lambda: self.phase % 2 != parity


class NamedBarrier:
    """All warps of both consumer warpgroups."""

    def __init__(self, members: int) -> None:
        self.members, self.count, self.round = members, 0, 0

    def join(self) -> Callable[[], bool]:
        mine = self.round
        self.count += 1
        if self.count == self.members:
            self.count, self.round = 0, self.round + 1
        return lambda: self.round > mine


class Cursor:
    def __init__(self, stages: int) -> None:
        self.stages, self.stage, self.parity = stages, 0, 0

    def advance(self) -> None:
        self.stage += 1
        if self.stage == self.stages:
            self.stage, self.parity = 0, self.parity ^ 1

    def previous(self) -> int:
        return (self.stage - 1) % self.stages

    def next(self) -> Cursor:
        other = Cursor(self.stages)
        other.stage, other.parity = self.stage, self.parity
        other.advance()
        return other


class Machine:
    """One CTA. tiles: of each its blocks as (seen by warpgroup 0, by warpgroup 1); none if empty."""

    def __init__(self, tiles: list[list[tuple[bool, bool]]], seed: int, turns_held: int) -> None:
        self.rng = random.Random(seed)
        self.entries = []  # (tile, seen, first, last, stop), the list that every role walks
        for t, blocks in enumerate(tiles):
            for i, seen in enumerate(blocks or [(False, False)]):
                self.entries.append((t, seen, i == 0, i == max(len(blocks), 1) - 1, False))
        self.entries.append((len(tiles), (False, False), False, False, True))
        self.q_full = [Mbarrier(1) for _ in range(Q_STAGES)]
        self.q_empty = [Mbarrier(WARPS) for _ in range(Q_STAGES)]
        self.do_full = [Mbarrier(1) for _ in range(DO_STAGES)]
        self.do_empty = [Mbarrier(WARPS) for _ in range(DO_STAGES)]
        self.k_full, self.k_empty = Mbarrier(1), Mbarrier(WARPS)
        self.v_full, self.v_empty = Mbarrier(1), Mbarrier(WARPS)
        self.dq_full = [Mbarrier(WARPS) for _ in range(WRITERS)]
        self.dq_empty = [Mbarrier(1) for _ in range(WRITERS)]
        self.consumers = NamedBarrier(WARPS)
        self.outputs = [NamedBarrier(4), NamedBarrier(4)]
        self.q, self.d_out = [None] * Q_STAGES, [None] * DO_STAGES
        self.entry_at = [None] * Q_STAGES
        self.keys, self.values = None, None
        self.ds = [[None] * WARPS for _ in range(2)]
        self.dq = [None] * WARPS
        self.targets = [None] * RING
        self.sent: list[int] = []
        self.stored: list[tuple[int, int]] = []
        self.readers: dict[str, int] = {}  # bulk copies that still read a room
        self.actors: list[tuple[str, Iterator, Callable[[], bool]]] = []
        self.turns_held = turns_held
        self._spawn("loader", self.loader())
        for warp in range(WARPS):
            self._spawn(f"warp {warp}", self.consumer(warp))
        for writer in range(WRITERS):
            self._spawn(f"writer {writer}", self.writer(writer))

    def _spawn(self, name: str, actor: Iterator) -> None:
        self.actors.append((name, actor, lambda: True))

    def run(self) -> None:
        while self.actors:
            ready = [i for i, (_, _, condition) in enumerate(self.actors) if condition()]
            assert ready, f"deadlock: {[name for name, _, _ in self.actors]}"
            i = self.rng.choice(ready)
            name, actor, _ = self.actors[i]
            condition = next(actor, None)
            if condition is None:
                del self.actors[i]
            else:
                self.actors[i] = (name, actor, condition)

    def _pause(self) -> Iterator:
        for _ in range(self.rng.randrange(4)):
            yield lambda: True

    def _copy(self, write: Callable[[], None], barrier: Mbarrier) -> Iterator:
        yield from self._pause()
        write()
        barrier.complete()

    def _fetch(self, room: list, at: int, tag: int, barrier: Mbarrier) -> None:
        room[at] = LOADING
        barrier.arrive(copies=1)
        self._spawn("copy", self._copy(lambda: room.__setitem__(at, tag), barrier))

    def loader(self) -> Iterator:
        q, d_out, parity, num_dq = Cursor(Q_STAGES), Cursor(DO_STAGES), 0, 0
        for n, (tile, seen, first, _, stop) in enumerate(self.entries):
            flags = any(seen)
            yield self.do_empty[d_out.stage].passed(d_out.parity ^ 1)
            if flags:
                self._fetch(self.d_out, d_out.stage, n, self.do_full[d_out.stage])
            else:
                self.do_full[d_out.stage].arrive()
            d_out.advance()
            yield self.q_empty[q.stage].passed(q.parity ^ 1)
            self.entry_at[q.stage] = (n, parity)
            if stop:
                for _ in range(WRITERS):
                    self.targets[num_dq % RING] = (-1, -1)
                    num_dq += 1
            elif flags:
                self.targets[num_dq % RING] = (n, num_dq)
                num_dq += 1
            if flags:
                self._fetch(self.q, q.stage, n, self.q_full[q.stage])
            else:
                self.q_full[q.stage].arrive()
            q.advance()
            if first and flags:
                for name in ("k", "v"):
                    full, empty = getattr(self, f"{name}_full"), getattr(self, f"{name}_empty")
                    yield empty.passed(parity ^ 1)
                    attribute = "keys" if name == "k" else "values"
                    setattr(self, attribute, LOADING)
                    full.arrive(copies=1)
                    self._spawn("copy", self._copy(lambda a=attribute, t=tile: setattr(self, a, t), full))
                parity ^= 1

    def consumer(self, warp: int) -> Iterator:
        group = warp // 4
        q, d_out = Cursor(Q_STAGES), Cursor(DO_STAGES)
        num_dq = 0
        storing = f"store {group}"

        def take() -> Iterator:
            yield self.q_full[q.stage].passed(q.parity)
            n, parity = self.entry_at[q.stage]
            current.update(n=n, parity=parity)

        def entry() -> tuple:
            return self.entries[current["n"]]

        def room() -> Callable[[], bool]:
            last = (num_dq - 1) % 2**32
            return self.dq_empty[last % WRITERS].passed(last // WRITERS % 2)

        def send(n: int) -> Iterator:
            nonlocal num_dq
            assert self.readers.get("dq", 0) == 0, "dQ is overwritten while it is read"
            assert self.readers.get(storing, 0) == 0, "dK is overwritten while it is stored"
            self.dq[warp] = n
            yield lambda: True
            self.dq_full[num_dq % WRITERS].arrive()
            num_dq += 1

        def products(n: int, tile: int, seen: tuple[bool, bool]) -> Iterator:
            halves = [h for h in (0, 1) if seen[h]]
            buffer = d_out.stage
            for _ in range(2):  # when issued, and when waited for
                for half in halves:
                    assert self.ds[buffer][4 * half : 4 * half + 4] == [n] * 4, "dS of another block"
                assert self.keys == tile, "K of another tile"
                yield from self._pause()

        current: dict[str, int] = {}
        yield from take()
        while not entry()[4]:
            tile, seen, _, _, _ = entry()
            if any(seen):
                yield (
                    lambda: self.readers.get(storing, 0) == 0 or warp % 4 != 0
                )  # thread 0 waits for its stores
                yield self.consumers.join()
                yield self.k_full.passed(current["parity"])
                yield self.v_full.passed(current["parity"])
                more = True
                while more:
                    if entry()[1][group]:
                        yield self.do_full[d_out.stage].passed(d_out.parity)
                        owes = False
                        while True:
                            n, (_, seen, _, last, _) = current["n"], entry()
                            assert self.q[q.stage] == n
                            assert self.keys == tile
                            assert self.values == tile
                            assert self.d_out[d_out.stage] == n
                            yield from self._pause()
                            if owes:
                                self.q_empty[q.previous()].arrive()
                            yield from self._pause()
                            assert self.q[q.stage] == n
                            assert self.d_out[d_out.stage] == n
                            assert self.readers.get(f"store {0 if d_out.stage == 0 else 1}", 0) == 0
                            self.ds[d_out.stage][warp] = n
                            yield self.consumers.join()
                            yield from products(n, tile, seen)
                            stage = q.stage
                            if not last:
                                q.advance()
                                yield from take()
                            yield room()
                            assert self.q[stage] == n
                            assert self.d_out[d_out.stage] == n
                            self.do_empty[d_out.stage].arrive()
                            d_out.advance()
                            if last:
                                yield from send(n)
                                more = False
                                break
                            if not entry()[1][group]:
                                yield from send(n)
                                assert self.q[stage] == n
                                self.q_empty[stage].arrive()
                                break
                            yield from send(n)
                            yield self.do_full[d_out.stage].passed(d_out.parity)
                            owes = True
                    else:
                        n, (_, seen, _, last, _) = current["n"], entry()
                        yield self.consumers.join()
                        yield from products(n, tile, seen)
                        self.do_empty[d_out.stage].arrive()
                        d_out.advance()
                        yield room()
                        yield from send(n)
                        if last:
                            more = False
                        else:
                            self.q_empty[q.stage].arrive()
                            q.advance()
                            yield from take()
                self.k_empty.arrive()
                self.v_empty.arrive()
            else:
                self.do_empty[d_out.stage].arrive()
                d_out.advance()
            self.q_empty[q.stage].arrive()
            q.advance()
            yield lambda: self.readers.get(storing, 0) == 0 or warp % 4 != 0
            yield room()
            yield self.consumers.join()
            assert self.readers.get(storing, 0) == 0
            assert self.readers.get("dq", 0) == 0
            self.ds[group][warp], self.dq[warp] = ("dv", tile), ("dk", tile)
            yield self.outputs[group].join()
            if warp % 4 == 0:
                self.readers[storing] = self.readers.get(storing, 0) + 1
                self._spawn("store", self._store(group, tile, storing))
            yield from take()
        yield lambda: self.readers.get(storing, 0) == 0 or warp % 4 != 0
        yield room()
        for barrier in self.dq_full:
            barrier.arrive()

    def _store(self, group: int, tile: int, storing: str) -> Iterator:
        yield from self._pause()
        part = slice(4 * group, 4 * group + 4)
        assert self.dq[part] == [("dk", tile)] * 4, "dK overwritten"
        assert self.ds[group][part] == [("dv", tile)] * 4, "dV overwritten"
        self.stored.append((tile, group))
        self.readers[storing] -= 1

    def writer(self, writer: int) -> Iterator:
        n = writer
        while True:
            yield self.dq_full[writer].passed(n // WRITERS % 2)
            block, number = self.targets[n % RING]
            if block < 0:
                return
            assert number == n, "the target of another block"
            for _ in range(self.rng.randrange(self.turns_held + 1)):  # its turn has not come
                yield lambda: True
            self.readers["dq"] = self.readers.get("dq", 0) + 1
            yield from self._pause()
            assert self.dq == [block] * WARPS, "dQ of another block"
            self.sent.append(block)
            self.readers["dq"] -= 1
            self.dq_empty[writer].arrive()
            for _ in range(self.rng.randrange(self.turns_held + 1)):  # the addition is not there yet
                yield lambda: True
            n += WRITERS


def random_tiles(rng: random.Random) -> list[list[tuple[bool, bool]]]:
    kinds = [(True, True), (True, False), (False, True)]
    return [[rng.choice(kinds) for _ in range(rng.choice([0, 1, 2, 3, 7]))] for _ in range(rng.randrange(6))]


@pytest.mark.parametrize("turns_held", [0, 40])
@pytest.mark.parametrize("seed", range(100))
def test_every_block_is_added_once_and_every_tile_stored_in_any_interleaving(
    seed: int, turns_held: int
) -> None:
    tiles = random_tiles(random.Random(seed))
    machine = Machine(tiles, seed, turns_held)
    machine.run()
    blocks = [n for n, entry in enumerate(machine.entries) if any(entry[1])]
    assert sorted(machine.sent) == blocks
    assert sorted(machine.stored) == [(tile, group) for tile in range(len(tiles)) for group in (0, 1)]
