"""Tables of the put and reduction kernels: carried out in Python, in any order, they add every partial."""

from __future__ import annotations

import importlib.util
import random

import numpy as np
import pytest

from fm3_comm.symmetric import nvshmem_library
from fm3_comm.symmetric.device_tables import GatherTables
from fm3_comm.symmetric.reduce_tables import PUT, SUMMED, ReduceTables

SHAPES = [
    {"num_ranks": 4, "num_tokens": 26, "chunk_size": 3},
    {"num_ranks": 6, "num_tokens": 50, "chunk_size": 4, "ranks_per_node": 2, "route": "hierarchical"},
    {"num_ranks": 8, "num_tokens": 90, "chunk_size": 4, "ranks_per_node": 4, "route": "hierarchical"},
    {"num_ranks": 5, "num_tokens": 31, "chunk_size": 2, "ranks_per_node": 3, "route": "hierarchical"},
    {"num_ranks": 3, "num_tokens": 12, "chunk_size": 2, "density": 0.0},
    {"num_ranks": 65, "num_tokens": 130, "chunk_size": 2, "density": 1.0},
    {"num_ranks": 1, "num_tokens": 12, "chunk_size": 2},
]
EPOCHS = 3


class Rank:
    """One rank's slots, words and flags, and what its kernels do, a step at a time.

    A partial is the list of (rank, epoch) that it is made of, in the order in which they were added.
    """

    def __init__(self, exchange, rank):
        self.exchange, self.rank = exchange, rank
        self.tables = ReduceTables(exchange, rank)
        self.chunks = GatherTables(exchange, rank).slots
        self.words = np.zeros(self.tables.num_words, dtype=object)
        self.flags = np.zeros(self.tables.num_flags, dtype=object)
        self.partials = [None] * len(self.chunks)
        self.contributions = [None] * self.tables.num_contributions

    def backward(self, epoch, draws):
        """Compute the partials of the chunks that this rank sees, in any order."""
        gathered = set(self.exchange.gathered[self.rank])
        slots = list(range(len(self.chunks)))
        draws.shuffle(slots)
        for slot in slots:
            yield "computed"
            self.partials[slot] = [(self.rank, epoch)] if self.chunks[slot] in gathered else []
            self.flags[slot] = epoch

    def puts(self, ranks, epoch):
        for row in self.tables.puts([0] * len(ranks)):
            target = ranks[row["target_rank"]]
            while self.flags[row["final_flag"]] < epoch or self.words[row["opened"]] < epoch:
                yield None
            target.contributions[row["contribution"]] = list(self.partials[row["slot"]])
            yield "put"
            assert not target.words[row["bits"]] >> (self.rank % 64) & 1
            target.words[row["bits"]] |= 1 << (self.rank % 64)
            yield "told"

    def sums(self, ranks, epoch):
        for child, word in self.tables.opens():
            ranks[child].words[word] = epoch
            yield "opened"
        expected, width = self.tables.expected(), -(-len(ranks) // 64)
        for row in self.tables.sums():
            while row["own_place"] >= 0 and self.flags[row["own_final"]] < epoch:
                yield None
            masks = [int(word) for word in expected[row["expected"] : row["expected"] + width]]
            while [int(w) for w in self.words[row["bits"] : row["bits"] + width]] != masks:
                yield None
            first, count = row["first_contribution"], row["num_contributions"]
            terms = [self.contributions[first + i] for i in range(count)]
            if row["own_place"] >= 0:
                terms.insert(row["own_place"], self.partials[row["slot"]])
            self.partials[row["slot"]] = [part for term in terms for part in term]
            yield "added"
            for i, mask in enumerate(masks):
                self.words[row["bits"] + i] -= mask
            self.flags[row["summed"]] = epoch

    def check(self, epoch):
        """Every rank that sees an own chunk has added to it once, in this epoch."""
        for chunk, partial in zip(self.chunks, self.partials, strict=True):
            if chunk in self.exchange.partition.chunks_of(self.rank):
                seers = [r for r, chunks in enumerate(self.exchange.gathered) if chunk in chunks]
                assert sorted(partial) == [(rank, epoch) for rank in seers], f"chunk {chunk}"


def _together(steps, draws):
    """Run a rank's kernels beside each other."""
    running = list(steps)
    while running:
        one = draws.choice(running)
        step = next(one, "end")
        if step == "end":
            running.remove(one)
        else:
            yield step


def _run(exchange, seed):
    draws = random.Random(seed)
    ranks = [Rank(exchange, rank) for rank in range(exchange.partition.num_ranks)]

    def all_epochs(rank):
        for epoch in range(1, EPOCHS + 1):
            kernels = (rank.backward(epoch, draws), rank.puts(ranks, epoch), rank.sums(ranks, epoch))
            yield from _together(kernels, draws)
            rank.check(epoch)

    running, waits = [all_epochs(rank) for rank in ranks], 0
    while running:
        one = draws.choice(running)
        step = next(one, "end")
        waits = waits + 1 if step is None else 0
        assert waits < 50_000, "a deadlock"
        if step == "end":
            running.remove(one)
    return ranks


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_in_any_order_of_events_three_reductions_add_every_partial_once(make_case, shape, seed):
    _run(make_case(**shape, seed=seed).exchange, seed)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_own_token_that_somebody_sees_has_a_place_and_no_two_share_one(make_case, shape):
    exchange = make_case(**shape).exchange
    partition = exchange.partition
    for rank in range(partition.num_ranks):
        rows, places = ReduceTables(exchange, rank).own_places()
        tokens = GatherTables(exchange, rank).slot_tokens().reshape(-1)
        assert np.array_equal(partition.token_index(rank)[rows], tokens[places])
        assert len(set(places.tolist())) == len(places)
        seen = {chunk for chunks in exchange.gathered for chunk in chunks}
        of_seen = sum(partition.chunk_length(c) for c in partition.chunks_of(rank) if c in seen)
        assert len(rows) >= of_seen


def _unopened(monkeypatch):
    monkeypatch.setattr(ReduceTables, "opens", lambda self: [])
    real = Rank.puts

    def puts(self, ranks, epoch):
        self.words[: len(ranks)] = epoch
        yield from real(self, ranks, epoch)

    monkeypatch.setattr(Rank, "puts", puts)


def _before_the_backward_kernel(monkeypatch):
    real = ReduceTables.sums

    def sums(self):
        rows, gathered = real(self), set(self.exchange.gathered[self.rank])
        slots = GatherTables(self.exchange, self.rank).slots
        for row in rows:
            if slots[row["slot"]] not in gathered:
                row["own_place"] = -1
        return rows

    monkeypatch.setattr(ReduceTables, "sums", sums)


def _relays_first(monkeypatch):
    real = ReduceTables._height
    monkeypatch.setattr(ReduceTables, "_height", lambda self, rank, chunk: -real(self, rank, chunk))


@pytest.mark.parametrize("plant", [_unopened, _before_the_backward_kernel, _relays_first])
def test_a_planted_mistake_is_found(make_case, monkeypatch, plant):
    plant(monkeypatch)
    wrong = 0
    for seed in range(12):
        try:
            _run(make_case(**SHAPES[2], seed=seed).exchange, seed)
        except AssertionError:
            wrong += 1
    assert wrong


@pytest.mark.skipif(importlib.util.find_spec("fm3_comm._C") is None, reason="fm3_comm._C was not built")
def test_rows_have_the_sizes_that_the_kernels_read():
    sizes = nvshmem_library.load().row_sizes()
    assert (sizes["PutChunk"], sizes["SummedChunk"]) == (PUT.itemsize, SUMMED.itemsize)
