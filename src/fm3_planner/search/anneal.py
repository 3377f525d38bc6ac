"""Phase 2, the far-sighted half: random swaps that may raise traffic and loads for a while."""

from __future__ import annotations

from dataclasses import dataclass

from fm3_planner.search.chance import Chance
from fm3_planner.search.placement import Placement
from fm3_planner.search.traffic import Needs, Traffic

LEVELS = 64
DRAWS = 5
INT64_MAX = 2**63 - 1

# Quantiles of the exponential distribution, round(-256 ln((i + 1/2) / 64)): integers, as machines' logarithms
# differ.
# fmt: off
EXPONENTIAL = (
    1242, 961, 830, 744, 680, 628, 585, 549, 517, 488, 463, 439, 418, 398, 380, 363, 347, 332, 318, 304, 291,
    279, 268, 256, 246, 236, 226, 216, 207, 198, 190, 181, 173, 166, 158, 151, 144, 137, 130, 124, 117, 111,
    105, 99, 93, 87, 82, 76, 71, 66, 61, 56, 51, 46, 41, 36, 32, 27, 23, 19, 14, 10, 6, 2,
)
# fmt: on


@dataclass(frozen=True, kw_only=True)
class Cooling:
    """How hot a run starts and ends. An average chunk has the average bytes and weight.

    Attributes:
        start_temperature: in 1/256 of an average chunk's bytes.
        end_temperature: likewise.
        start_penalty: average chunks' bytes that an average chunk's weight above a limit costs.
        end_penalty: likewise.
    """

    start_temperature: int
    end_temperature: int
    start_penalty: int
    end_penalty: int


def anneal(
    placement: Placement,
    needs: Needs,
    limits: list[int],
    cooling: Cooling,
    moves: int,
    longest_run: int,
    chance: Chance,
) -> None:
    """Simulated annealing in integers.

    Each of `moves` picks a chunk at random and, in the node of a chunk that it is linked to, of five random
    partners for a swap the one that is best for the loads; it accepts what raises the cost with a chance that
    falls with the raise and, as the run cools, with time. Between nodes up to `longest_run` neighbours of
    both go along, each of which counts as a move. Cost: N, and a growing penalty for loads above `limits`,
    one a cell. Ends with the placement of the least N within the limits that it passed, or with its last one
    where there was none.
    """
    _Annealing(placement, needs, limits, longest_run, chance).run(cooling, moves)


class _Annealing:
    def __init__(
        self, placement: Placement, needs: Needs, limits: list[int], longest_run: int, chance: Chance
    ) -> None:
        self.placement = placement
        self.needs = needs
        self.limits = limits
        self.longest_run = longest_run
        self.chance = chance
        self.traffic = Traffic(needs, placement)
        self.slot_of = [0] * len(placement.item_at)
        for slot, item in enumerate(placement.item_at):
            self.slot_of[item] = slot
        num_chunks = placement.layout.num_chunks
        self.mean_weight = max(sum(placement.loads) // num_chunks, 1)
        self.mean_bytes = max(sum(needs.bytes) // num_chunks, 1)
        self.above = sum(max(load - limit, 0) for load, limit in zip(placement.loads, limits, strict=True))
        self.fine = 0  # costs are bytes times 2^fine, so that chunks of few bytes have fine costs
        while self.mean_bytes << self.fine < 65536:
            self.fine += 1
        self.least: int | None = None
        self.best: list[int] = []
        self._keep()

    def run(self, cooling: Cooling, moves: int) -> None:
        whole = (LEVELS - 1) ** 2
        left_moves = 0
        for level in range(LEVELS):
            # Temperature falls with the square of the time that is left, and the penalty rises likewise.
            left = (LEVELS - 1 - level) ** 2
            cooled = (cooling.start_temperature - cooling.end_temperature) * left // whole
            temperature = cooling.end_temperature + cooled
            penalty = cooling.end_penalty - (cooling.end_penalty - cooling.start_penalty) * left // whole
            heat = (temperature * self.mean_bytes) << self.fine
            price = min((penalty * self.mean_bytes << (self.fine + 32)) // self.mean_weight, INT64_MAX)
            left_moves += moves * (level + 1) // LEVELS - moves * level // LEVELS
            while left_moves > 0:
                left_moves -= self._try_swap(heat, price)
        if self.least is not None:
            self.placement.set(self.best)

    def _try_swap(self, heat: int, price: int) -> int:
        """Try one swap and return how many exchanges it computed.

        `heat` is the cost at the temperature times 2^8, `price` that of excess times 2^32.
        """
        placement, below = self.placement, self.chance.below
        item_at, cell_of, loads = placement.item_at, placement.cell_of, placement.loads
        first = below(len(item_at))
        item, cell = item_at[first], cell_of[first]
        home = placement.node_of[cell]
        begin, end = 0, len(item_at)
        if not placement.is_blank(item) and self.needs.linked[item]:
            linked = self.needs.linked[item]
            node = placement.node_of[cell_of[self.slot_of[linked[below(len(linked))]]]]
            if node == home and self.above == 0:
                return 1  # among its own, and nothing to repair
            if node != home:
                slots = placement.layout.slots_of(node)
                begin, end = slots.start, slots.stop

        load, limit, weight = loads[cell], self.limits[cell], placement.weights[item]
        more, second = INT64_MAX, -1
        for _ in range(DRAWS):
            candidate = begin + below(end - begin)
            its_cell = cell_of[candidate]
            if its_cell == cell:
                continue
            moved = weight - placement.weights[item_at[candidate]]
            its_load, its_limit = loads[its_cell], self.limits[its_cell]
            its_more = (
                max(load - moved - limit, 0)
                - max(load - limit, 0)
                + max(its_load + moved - its_limit, 0)
                - max(its_load - its_limit, 0)
            )
            if its_more < more and placement.may_swap(first, candidate):
                more, second = its_more, candidate
        if second < 0:
            return 1

        other, away = item_at[second], placement.node_of[cell_of[second]]
        if (
            self.longest_run > 1
            and away != home
            and not (placement.is_blank(item) or placement.is_blank(other))
        ):
            length = 1 + below(self.longest_run)
            if length > 1:
                return self._try_runs(item, home, other, away, length, heat, price)
        change = self.traffic.change(item, home, other, away) if away != home else 0
        cost = (change << self.fine) + (more * price >> 32)
        if not self._accepts(cost, heat):
            return 1
        if away != home:
            self.traffic.exchange(item, home, other, away, change)
        placement.swap(first, second)
        self.slot_of[item], self.slot_of[other] = second, first
        self.above += more
        self._keep()
        return 1

    def _try_runs(
        self, item: int, home: int, other: int, away: int, length: int, heat: int, price: int
    ) -> int:
        """Try one swap of two runs of neighbouring chunks, as far as both are wholly on their nodes.

        What a document gains by moving as a whole, its chunks one by one often lose.
        """
        above_before, total_before = self.above, self.traffic.total
        shared = 1
        while shared < length and self._is_on(item + shared, home) and self._is_on(other + shared, away):
            shared += 1
        for i in range(shared):
            self._exchange(item + i, home, other + i, away)
        change, more = self.traffic.total - total_before, self.above - above_before
        if self._accepts((change << self.fine) + (more * price >> 32), heat):
            self._keep()
        else:
            for i in reversed(range(shared)):
                self._exchange(item + i, away, other + i, home)
        return shared

    def _is_on(self, chunk: int, node: int) -> bool:
        placement = self.placement
        if chunk >= placement.layout.num_chunks:
            return False
        return placement.node_of[placement.cell_of[self.slot_of[chunk]]] == node

    def _exchange(self, chunk: int, home: int, other: int, away: int) -> None:
        """Exchange two chunks of two nodes."""
        placement, slot, other_slot = self.placement, self.slot_of[chunk], self.slot_of[other]
        cells = (placement.cell_of[slot], placement.cell_of[other_slot])
        self.above -= sum(max(placement.loads[cell] - self.limits[cell], 0) for cell in cells)
        self.traffic.exchange(chunk, home, other, away, self.traffic.change(chunk, home, other, away))
        placement.swap(slot, other_slot)
        self.slot_of[chunk], self.slot_of[other] = other_slot, slot
        self.above += sum(max(placement.loads[cell] - self.limits[cell], 0) for cell in cells)

    def _accepts(self, cost: int, heat: int) -> bool:
        return cost <= 0 or cost <= heat * EXPONENTIAL[self.chance.next() >> 26] >> 16

    def _keep(self) -> None:
        """Remember the placement if it is within the limits and the best so far."""
        if self.above == 0 and (self.least is None or self.traffic.total < self.least):
            self.least = self.traffic.total
            self.best = list(self.placement.item_at)
