"""Phase 2, the plain half: swaps that lower the traffic at once."""

from __future__ import annotations

from fm3_planner.search.placement import Budget, Placement
from fm3_planner.search.traffic import Traffic


def descend(placement: Placement, traffic: Traffic, limit: int, budget: Budget) -> None:
    """Sweep over the slots and swap each with the slot of another node that lowers N most.

    Neither rank may end above `limit`. Stops when a sweep changes nothing or the budget is spent. Cells are
    ranks.
    """
    changed = True
    while changed and budget.is_left:
        changed = False
        least = _least_moves(placement, traffic)
        for slot in range(placement.layout.num_slots):
            if not budget.is_left:
                break
            changed |= _swap_best(placement, traffic, slot, limit, least, budget)


def _least_moves(placement: Placement, traffic: Traffic) -> list[list[int]]:
    """Return for each pair of nodes the least change that moving one item from one to the other makes.

    Two moves that meet change at least the sum of both, so that a pair of nodes whose sum is not below 0 need
    not be searched. As of the start of a sweep: what exchanges of this sweep open up is found by the next.
    """
    num_nodes = placement.layout.num_nodes
    least = [[0] * num_nodes for _ in range(num_nodes)]
    for slot, item in enumerate(placement.item_at):
        home = placement.node_of[placement.cell_of[slot]]
        leaving = traffic.change_of_leaving(item, home)
        if leaving:
            for away in range(num_nodes):
                if away != home:
                    change = leaving + traffic.change_of_joining(item, away)
                    least[home][away] = min(least[home][away], change)
    return least


def _swap_best(
    placement: Placement,
    traffic: Traffic,
    slot: int,
    limit: int,
    least: list[list[int]],
    budget: Budget,
) -> bool:
    rank, item = placement.cell_of[slot], placement.item_at[slot]
    home, weight, load = placement.node_of[rank], placement.weights[item], placement.loads[rank]
    leaving = traffic.change_of_leaving(item, home)
    best, best_slot = 0, -1
    for away in range(placement.layout.num_nodes):
        if away == home:
            continue
        if leaving + traffic.change_of_joining(item, away) + least[away][home] >= best:
            continue
        slots = placement.layout.slots_of(away)
        budget.spent += len(slots)
        for other in slots:
            moved = weight - placement.weight_at(other)
            if load - moved > limit or placement.loads[placement.cell_of[other]] + moved > limit:
                continue
            change = traffic.change(item, home, placement.item_at[other], away)
            if change < best and placement.may_swap(slot, other):
                best, best_slot = change, other
    if best_slot < 0:
        return False
    away = placement.node_of[placement.cell_of[best_slot]]
    traffic.exchange(item, home, placement.item_at[best_slot], away, best)
    placement.swap(slot, best_slot)
    return True
