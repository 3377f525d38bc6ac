"""The barriers of the backward kernel, by random interleavings of a model of its roles."""

from __future__ import annotations

import random

import pytest
from backward_machine import Device, Tile

MISTAKES = [
    "a place of the round before is taken",
    "a tile is counted once it is read",
    "additions before this one are not waited for",
    "dQ is sent without waiting for room",
    "entries without flags take room of dO",
    "keys are released before the last dQ",
    "one room for dS",
    "rows are released before dK",
    "stores are not waited for",
    "the first tile is the CTA's number",
]


def random_tiles(seed: int) -> list[Tile]:
    rng = random.Random(seed)
    kinds = [(True, True), (True, False), (False, True)]
    pairs, key_blocks, row_blocks = rng.randrange(1, 3), rng.randrange(5), 7

    def blocks() -> list[tuple[int, tuple[bool, bool]]]:
        rows = rng.sample(range(row_blocks), rng.choice([0, 1, 2, 3, 7]))
        return [(row, rng.choice(kinds)) for row in sorted(rows)]

    return [Tile(pair, place // 2, blocks()) for place in range(key_blocks) for pair in range(pairs)]


def run(seed: int, *, mistake: str = "") -> Device:
    rng = random.Random(1000 + seed)
    ctas = rng.choice([1, 2, 3, 5])
    device = Device(
        random_tiles(seed),
        seed,
        ctas=ctas,
        resident=rng.randrange(1, ctas + 1),
        slow_additions=rng.choice([0, 40]),
        stages=rng.choice([(3, 2), (4, 4)]),
        mistake=mistake,
    )
    device.run()
    return device


@pytest.mark.parametrize("seed", range(240))
def test_every_block_is_added_once_and_every_tile_stored_in_any_interleaving(seed: int) -> None:
    device = run(seed)
    expected: dict[tuple[int, int], list[int]] = {}
    for index, tile in enumerate(device.tiles):
        for row, _ in tile.blocks:
            expected.setdefault((tile.pair, row), []).append(index)
    assert device.additions == expected
    assert device.written == {(tile, group) for tile in range(len(device.tiles)) for group in (0, 1)}
    assert device.done == {tile.chunk for tile in device.tiles}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_model_finds_a_planted_mistake(mistake: str) -> None:
    def survives(seed: int) -> bool:
        try:
            run(seed, mistake=mistake)
        except AssertionError:
            return False
        return True

    assert not all(survives(seed) for seed in range(200)), f"no interleaving shows: {mistake}"
