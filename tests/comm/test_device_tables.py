"""Tables of the pull kernel: carried out in Python, in any order of events, they bring every chunk."""

from __future__ import annotations

import importlib.util
import random

import numpy as np
import pytest

from fm3_comm.symmetric import nvshmem_library
from fm3_comm.symmetric.device_tables import PULLED, WORD_OF_RANK, GatherTables

SHAPES = [
    {"num_ranks": 4, "num_tokens": 26, "chunk_size": 3},
    {"num_ranks": 6, "num_tokens": 50, "chunk_size": 4, "ranks_per_node": 2, "route": "hierarchical"},
    {"num_ranks": 5, "num_tokens": 31, "chunk_size": 2, "ranks_per_node": 3, "route": "hierarchical"},
    {"num_ranks": 3, "num_tokens": 12, "chunk_size": 2, "density": 0.0},
    {"num_ranks": 1, "num_tokens": 12, "chunk_size": 2},
]


class Rank:
    """One rank's buffer and words, and what its kernels do, a step at a time."""

    def __init__(self, exchange, rank):
        self.tables = GatherTables(exchange, rank)
        self.rank = rank
        self.words = np.zeros(self.tables.num_words, dtype=np.uint64)
        self.slots = np.full((self.tables.num_slots, exchange.partition.chunk_size), -2, dtype=np.int64)
        self.ready = np.zeros(self.tables.num_slots, dtype=np.uint32)

    def steps(self, ranks, epoch):
        """Yield None where a kernel waits, else after each thing that it does."""
        tables = self.tables
        for _, word in tables.closed_by():
            while self.words[word] < epoch - 1:
                yield None
        tokens = tables.slot_tokens()
        self.slots[: tables.num_own] = np.where(
            tokens[: tables.num_own] < 0, -1, tokens[: tables.num_own] + 1000 * epoch
        )
        yield "copied"
        for child, word in tables.opened():
            ranks[child].words[word] = epoch
            yield "opened"
        left, readers = list(tables.pulled([0] * len(ranks))), tables.readers()
        while left:
            landed = [row for row in left if self.words[row["landed"]] >= epoch]
            if not landed:
                yield None
                continue
            row = landed[0]
            left = [other for other in left if other["slot"] != row["slot"]]
            source = ranks[row["source_rank"]].slots[row["source_slot"]]
            self.slots[row["slot"], : row["num_tokens"]] = source[: row["num_tokens"]]
            yield "pulled"
            self.ready[row["slot"]] = epoch
            for child, word in readers[row["first_reader"] : row["first_reader"] + row["num_readers"]]:
                ranks[child].words[word] = epoch
                yield "told"
        self.check(epoch)
        for parent, word in tables.closing():
            ranks[parent].words[word] = epoch
            yield "closed"

    def check(self, epoch):
        """Compare what is in the slots with what the tables say is there."""
        tokens = self.tables.slot_tokens()
        there = self.slots[: len(tokens)]
        assert np.array_equal(there[tokens >= 0], tokens[tokens >= 0] + 1000 * epoch)
        assert set(self.ready[self.tables.num_own : len(tokens)]) <= {epoch}


def _run(exchange, epochs, seed):
    draws = random.Random(seed)
    ranks = [Rank(exchange, rank) for rank in range(exchange.partition.num_ranks)]

    def all_epochs(rank):
        for epoch in range(1, epochs + 1):
            yield from rank.steps(ranks, epoch)

    running = [all_epochs(rank) for rank in ranks]
    waits = 0
    while running:
        one = draws.choice(running)
        step = next(one, "end")
        waits = waits + 1 if step is None else 0
        assert waits < 10_000, "a deadlock"
        if step == "end":
            running.remove(one)
    return ranks


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_in_any_order_of_events_three_gathers_bring_every_chunk_and_mix_none(make_case, shape, seed):
    exchange = make_case(**shape).exchange
    for rank in _run(exchange, 3, seed):
        received = set(exchange.gathered[rank.rank]) - set(exchange.partition.chunks_of(rank.rank))
        assert received <= set(rank.tables.slots[rank.tables.num_own :])
        assert set(exchange.gathered[rank.rank]) <= set(rank.tables.slots)


@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_overwriting_before_readers_have_closed_is_caught(make_case, shape, monkeypatch):
    exchange = make_case(**{**shape, "density": 1.0}).exchange
    monkeypatch.setattr(GatherTables, "closed_by", lambda self: [])
    wrong = 0
    for seed in range(10):
        try:
            _run(exchange, 3, seed)
        except AssertionError:
            wrong += 1
    assert wrong >= 5


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_slots_are_the_same_in_number_on_every_rank_and_own_ones_come_first(make_case, shape):
    exchange = make_case(**shape).exchange
    tables = [GatherTables(exchange, rank) for rank in range(exchange.partition.num_ranks)]
    assert len({table.num_slots for table in tables}) == len({table.num_words for table in tables}) == 1
    for rank, table in enumerate(tables):
        own = set(exchange.partition.chunks_of(rank))
        assert set(table.slots[: table.num_own]) <= own
        assert not own & set(table.slots[table.num_own :])


@pytest.mark.skipif(importlib.util.find_spec("fm3_comm._C") is None, reason="fm3_comm._C was not built")
def test_rows_have_the_sizes_that_the_kernels_read():
    sizes = nvshmem_library.load().row_sizes()
    assert sizes["PulledChunk"] == PULLED.itemsize
    assert sizes["Reader"] == sizes["Signal"] == WORD_OF_RANK.itemsize
