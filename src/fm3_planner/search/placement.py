"""Who owns what while a search is running: cells of slots that hold chunks, and their loads."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The ranks and nodes, and the slots that the ranks give.

    Every rank has as many slots, and slots of a node are side by side. Where the ranks do not divide the
    chunks, blanks of no weight and no need fill the slots that are left; a rank holds at most one, so that
    counts of chunks differ by at most one.
    """

    num_chunks: int
    num_ranks: int
    ranks_per_node: int

    @property
    def slots_per_rank(self) -> int:
        """Slots of a rank: the most chunks that it may own."""
        return -(-self.num_chunks // self.num_ranks)

    @property
    def num_slots(self) -> int:
        """Slots of all ranks."""
        return self.num_ranks * self.slots_per_rank

    @property
    def num_nodes(self) -> int:
        """Nodes, an uneven last one counted."""
        return -(-self.num_ranks // self.ranks_per_node)

    def ranks_of(self, node: int) -> range:
        """Return the ranks of a node."""
        first = node * self.ranks_per_node
        return range(first, min(first + self.ranks_per_node, self.num_ranks))

    def slots_of(self, node: int) -> range:
        """Return the slots of a node."""
        ranks = self.ranks_of(node)
        return range(ranks.start * self.slots_per_rank, ranks.stop * self.slots_per_rank)

    def numbered(self) -> list[int]:
        """Return the items of each slot, chunks ascending, blanks in the last slots of the last ranks."""
        blanks = iter(range(self.num_chunks, self.num_slots))
        chunks = iter(range(self.num_chunks))
        first_with_blank = self.num_ranks - (self.num_slots - self.num_chunks)
        return [
            next(blanks if rank >= first_with_blank and place == self.slots_per_rank - 1 else chunks)
            for rank in range(self.num_ranks)
            for place in range(self.slots_per_rank)
        ]

    def head_and_tail(self) -> list[int]:
        """Return items of each slot: chunks from the head and from the tail of the sequence on each rank."""
        items, per_rank = self.numbered(), self.slots_per_rank
        head, tail = 0, self.num_chunks
        for first in range(0, self.num_slots, per_rank):
            count = per_rank - (items[first + per_rank - 1] >= self.num_chunks)
            in_head = -(-count // 2)
            tail -= count - in_head
            items[first : first + count] = [
                *range(head, head + in_head),
                *range(tail, tail + count - in_head),
            ]
            head += in_head
        return items


class Placement:
    """Items on slots.

    Attributes:
        layout: the ranks and nodes.
        weights: [slots] by item: chunks, then blanks, which weigh 0.
        item_at: [slots].
        cell_of: [slots]. Cells are ranks, or whole nodes where it does not matter yet which rank of a node
            owns what.
        slots_of: [cells], the slots of each.
        node_of: [cells].
        blank_room: [cells], blanks that the cell may still take.
        loads: [cells].
    """

    def __init__(self, layout: Layout, weights: list[int], items: list[int], *, ranks_per_cell: int) -> None:
        """Make cells of one rank, or of the ranks of a node."""
        self.layout = layout
        self.weights = weights
        firsts = [rank * layout.slots_per_rank for rank in range(0, layout.num_ranks, ranks_per_cell)]
        ends = [*firsts[1:], layout.num_slots]
        self.slots_of = [range(first, end) for first, end in zip(firsts, ends, strict=True)]
        self.node_of = [rank // layout.ranks_per_node for rank in range(0, layout.num_ranks, ranks_per_cell)]
        self.cell_of = [cell for cell, slots in enumerate(self.slots_of) for _ in slots]
        self.set(items)

    def set(self, items: list[int]) -> None:
        """Place items anew."""
        self.item_at = list(items)
        self.loads = [sum(self.weights[items[slot]] for slot in slots) for slots in self.slots_of]
        self.blank_room = [
            len(slots) // self.layout.slots_per_rank - sum(self.is_blank(items[slot]) for slot in slots)
            for slots in self.slots_of
        ]

    def is_blank(self, item: int) -> bool:
        """Say whether an item is no chunk."""
        return item >= self.layout.num_chunks

    def weight_at(self, slot: int) -> int:
        """Return the weight of the item in a slot."""
        return self.weights[self.item_at[slot]]

    def may_swap(self, first: int, second: int) -> bool:
        """Say whether two slots may exchange their items: no cell may get a blank too many."""
        blank = self.is_blank(self.item_at[first])
        if blank == self.is_blank(self.item_at[second]):
            return True
        return self.blank_room[self.cell_of[second if blank else first]] > 0

    def swap(self, first: int, second: int) -> None:
        """Exchange the items of two slots."""
        first_cell, second_cell = self.cell_of[first], self.cell_of[second]
        first_item, second_item = self.item_at[first], self.item_at[second]
        moved = self.weights[first_item] - self.weights[second_item]
        self.loads[first_cell] -= moved
        self.loads[second_cell] += moved
        blanks = self.is_blank(first_item) - self.is_blank(second_item)
        self.blank_room[first_cell] += blanks
        self.blank_room[second_cell] -= blanks
        self.item_at[first] = second_item
        self.item_at[second] = first_item


@dataclass(kw_only=True)
class Budget:
    """Work in moves: exchanges whose outcome was computed."""

    limit: int
    spent: int = field(default=0)

    @property
    def is_left(self) -> bool:
        """Whether another exchange may be computed."""
        return self.spent < self.limit

    def affords(self, moves: int) -> bool:
        """Say whether a step of so many exchanges is within what is left."""
        return self.spent + moves <= self.limit
