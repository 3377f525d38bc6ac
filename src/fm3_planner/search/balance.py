"""Phases 1 and 3: lower the largest load among ranks that may exchange items."""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from fm3_planner.search.chance import Chance
from fm3_planner.search.placement import Budget, Layout, Placement

LIGHTEST_IN_CYCLES = 8
"""How many of the lightest ranks are tried in exchanges around three ranks."""


def deal(layout: Layout, weights: list[int], ranks: range, items: list[int]) -> None:
    """Deal the items of the slots of `ranks` anew.

    The heaviest that is left goes to the least loaded rank with room, ties to the smaller number. Items of a
    rank end up ascending.
    """
    per_rank = layout.slots_per_rank
    slots = slice(ranks.start * per_rank, ranks.stop * per_rank)
    chunks = sorted(item for item in items[slots] if item < layout.num_chunks)
    blanks = sorted(item for item in items[slots] if item >= layout.num_chunks)
    num_full = len(ranks) - len(blanks)  # ranks that will have no blank
    dealt: list[list[int]] = [[] for _ in ranks]
    loads = [0 for _ in ranks]
    for chunk in sorted(chunks, key=lambda chunk: -weights[chunk]):
        with_room = [
            place
            for place, owned in enumerate(dealt)
            if len(owned) < per_rank - 1 or (len(owned) == per_rank - 1 and num_full)
        ]
        lightest = min(with_room, key=loads.__getitem__)
        dealt[lightest].append(chunk)
        loads[lightest] += weights[chunk]
        num_full -= len(dealt[lightest]) == per_rank
    left = iter(blanks)
    items[slots] = [
        item
        for owned in dealt
        for item in (sorted(owned) if len(owned) == per_rank else [*sorted(owned), next(left)])
    ]


def balance(placement: Placement, ranks: range, target: int, budget: Budget) -> None:
    """Exchange items of the heaviest of `ranks` with others of them until its load is at most `target`.

    Stops, too, where no exchange lowers it or the budget is spent. Tried in this order: one item for one,
    with any rank; two for two and, where ranks have 6 or 7 slots, three for three, with the lightest rank
    that helps (together the best re-split of two ranks, up to 7 slots); one item each around a cycle of the
    rank and two of the eight lightest. Cells are ranks.
    """
    per_rank = placement.layout.slots_per_rank
    while budget.is_left:
        heaviest = max(ranks, key=placement.loads.__getitem__)
        if placement.loads[heaviest] <= target:
            return
        if _exchange_one(placement, ranks, heaviest, budget):
            continue
        others = sorted((rank for rank in ranks if rank != heaviest), key=placement.loads.__getitem__)
        if per_rank >= 4 and _exchange_groups(placement, heaviest, others, 2, budget):
            continue
        if per_rank in (6, 7) and _exchange_groups(placement, heaviest, others, 3, budget):
            continue
        if not _exchange_around_three(placement, heaviest, others[:LIGHTEST_IN_CYCLES], budget):
            return


def balance_with_mixes(placement: Placement, target: int, mixes: int, chance: Chance, budget: Budget) -> None:
    """Balance all ranks, then again and again mix the heaviest with two random ranks and balance anew.

    Keeps what is not worse; until the largest load is at most `target`, `mixes` went by, or the budget is
    spent.
    """
    num_ranks = placement.layout.num_ranks
    balance(placement, range(num_ranks), target, budget)
    if num_ranks < 3:
        return
    least, best = max(placement.loads), list(placement.item_at)
    for _ in range(mixes):
        if least <= target or not budget.is_left:
            return
        heaviest = max(range(num_ranks), key=placement.loads.__getitem__)
        second = (heaviest + 1 + chance.below(num_ranks - 1)) % num_ranks
        third = (heaviest + 1 + chance.below(num_ranks - 1)) % num_ranks
        slots = [
            slot
            for rank in (heaviest, second, third)
            for slot in placement.slots_of[rank]
            if not placement.is_blank(placement.item_at[slot])
        ]
        for left in range(len(slots), 1, -1):
            placement.swap(slots[left - 1], slots[chance.below(left)])
        balance(placement, range(num_ranks), target, budget)
        load = max(placement.loads)
        if load <= least:
            least, best = load, list(placement.item_at)
        else:
            placement.set(best)


def _exchange_one(placement: Placement, ranks: range, heaviest: int, budget: Budget) -> bool:
    """Swap one item of the heaviest rank so that the larger of both loads is smallest."""
    per_rank = placement.layout.slots_per_rank
    budget.spent += (len(ranks) - 1) * per_rank * per_rank
    first = ranks.start * per_rank
    items = np.array(placement.item_at[first : ranks.stop * per_rank]).reshape(len(ranks), per_rank)
    weights = np.array(placement.weights)[items]
    blank = items >= placement.layout.num_chunks
    loads = np.array([placement.loads[rank] for rank in ranks])[:, None, None]
    own = heaviest - ranks.start
    load = placement.loads[heaviest]

    moved = weights[own][None, :, None] - weights[:, None, :]
    larger = np.maximum(load - moved, loads + moved)
    room = np.array([placement.blank_room[rank] for rank in ranks])
    gives, takes = blank[own][None, :, None], blank[:, None, :]
    larger[(gives & ~takes) & (room == 0)[:, None, None]] = load
    larger[(~gives & takes) & np.bool_(room[own] == 0)] = load
    larger[own] = load
    at = int(larger.argmin())
    if larger.flat[at] >= load:
        return False
    rank, place, other = np.unravel_index(at, larger.shape)
    placement.swap(heaviest * per_rank + int(place), first + int(rank) * per_rank + int(other))
    return True


def _exchange_groups(
    placement: Placement, heaviest: int, others: list[int], size: int, budget: Budget
) -> bool:
    """Exchange `size` items of the heaviest rank for as many of the lightest rank with which that helps.

    With many items a rank there are too many groups to try them, and swaps of one for one are fine enough.
    """
    moves = comb(placement.layout.slots_per_rank, size) ** 2
    if not budget.affords(moves):
        return False
    groups = list(combinations(range(placement.layout.slots_per_rank), size))
    own_weights, own_blanks = _sums(placement, heaviest, groups)
    load = placement.loads[heaviest]
    for rank in others:
        if not budget.affords(moves):
            return False
        budget.spent += moves
        weights, blanks = _sums(placement, rank, groups)
        moved = own_weights[:, None] - weights[None, :]
        larger = np.maximum(load - moved, placement.loads[rank] + moved)
        received = blanks[None, :] - own_blanks[:, None]
        too_many = (received > placement.blank_room[heaviest]) | (-received > placement.blank_room[rank])
        larger[too_many] = load
        at = int(larger.argmin())
        if larger.flat[at] >= load:
            continue
        own, other = divmod(at, len(groups))
        for own_place, other_place in zip(groups[own], groups[other], strict=True):
            placement.swap(
                placement.slots_of[heaviest][own_place],
                placement.slots_of[rank][other_place],
            )
        return True
    return False


def _sums(
    placement: Placement, rank: int, groups: list[tuple[int, ...]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return weight and number of blanks of each group of a rank's places."""
    slots = placement.slots_of[rank]
    weights = [placement.weight_at(slot) for slot in slots]
    blanks = [placement.is_blank(placement.item_at[slot]) for slot in slots]
    return (
        np.array([sum(weights[place] for place in group) for group in groups], dtype=np.int64),
        np.array([sum(blanks[place] for place in group) for group in groups], dtype=np.int64),
    )


def _exchange_around_three(placement: Placement, heaviest: int, others: list[int], budget: Budget) -> bool:
    """Give an item of the heaviest rank to a second rank, one of its to a third, one of its back."""
    per_rank = placement.layout.slots_per_rank
    load = placement.loads[heaviest]
    weights = {rank: _weights_at(placement, rank) for rank in (heaviest, *others)}
    for second in others:
        for third in others:
            if second == third:
                continue
            if not budget.affords(per_rank**3):
                return False
            budget.spent += per_rank**3
            a = weights[heaviest][:, None, None]
            b, c = weights[second][None, :, None], weights[third][None, None, :]
            largest = np.maximum(
                np.maximum(load - a + c, placement.loads[second] + a - b), placement.loads[third] + b - c
            )
            largest[:, _blanks_at(placement, second), :] = load
            largest[:, :, _blanks_at(placement, third)] = load
            at = int(largest.argmin())
            if largest.flat[at] >= load:
                continue
            places = np.unravel_index(at, largest.shape)
            slot, second_slot, third_slot = (
                placement.slots_of[rank][int(place)]
                for rank, place in zip((heaviest, second, third), places, strict=True)
            )
            placement.swap(slot, second_slot)
            placement.swap(slot, third_slot)
            return True
    return False


def _weights_at(placement: Placement, rank: int) -> NDArray[np.int64]:
    return np.array([placement.weight_at(slot) for slot in placement.slots_of[rank]], dtype=np.int64)


def _blanks_at(placement: Placement, rank: int) -> NDArray[np.bool_]:
    return np.array([placement.is_blank(placement.item_at[slot]) for slot in placement.slots_of[rank]])
