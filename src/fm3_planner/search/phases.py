"""The three phases: balance between ranks, traffic between nodes, balance inside each node."""

from __future__ import annotations

from fm3_planner.search.anneal import INT64_MAX, Cooling, anneal
from fm3_planner.search.balance import balance, balance_with_mixes, deal
from fm3_planner.search.chance import Chance
from fm3_planner.search.descent import descend
from fm3_planner.search.options import SLACK_UNIT, SearchOptions
from fm3_planner.search.placement import Budget, Layout, Placement
from fm3_planner.search.traffic import Needs, Traffic

SEED = 42
NODES = Cooling(start_temperature=400, end_temperature=80, start_penalty=2, end_penalty=32)
AGAIN = Cooling(start_temperature=200, end_temperature=80, start_penalty=8, end_penalty=32)
RANKS = Cooling(start_temperature=100, end_temperature=60, start_penalty=8, end_penalty=64)
REPAIR = Cooling(start_temperature=60, end_temperature=20, start_penalty=256, end_penalty=2048)


def search_in_python(
    layout: Layout, weights: list[int], needs: Needs | None, options: SearchOptions
) -> tuple[list[int], int]:
    """Place the chunks.

    Args:
        layout: the ranks and nodes.
        weights: [slots], those of blanks are 0.
        needs: None for phase 1 only.
        options: targets and budgets.

    Returns:
        The item of each slot, and the moves spent.
    """
    return _Search(layout, weights, needs, options).run()


class _Search:
    def __init__(
        self, layout: Layout, weights: list[int], needs: Needs | None, options: SearchOptions
    ) -> None:
        self.layout = layout
        self.weights = weights
        self.needs = needs
        self.options = options
        self.chance = Chance(SEED)
        self.placement = Placement(layout, weights, layout.numbered(), ranks_per_cell=1)
        self.moves = 0
        self.dealt: list[int] = []
        self.limit = 0
        self.inner_moves = 0
        self.run_moves = 0
        self.annealed = 0
        self.from_best = True
        self.best: list[int] = []
        self.least = (0, 0)

    def run(self) -> tuple[list[int], int]:
        items = self.layout.numbered()
        deal(self.layout, self.weights, range(self.layout.num_ranks), items)
        self.dealt = list(items)
        self.placement.set(items)
        budget = Budget(limit=self.options.compute_moves)
        balance_with_mixes(self.placement, self.options.target, self.options.mixes, self.chance, budget)
        self.moves = self.layout.num_chunks + budget.spent
        if self.needs is not None and self.layout.num_nodes > 1:
            self._lower_traffic(self.needs)
        return self.placement.item_at, self.moves

    def _lower_traffic(self, needs: Needs) -> None:
        load, runs = max(self.placement.loads), self.options.runs
        self.limit = min(load + load * self.options.slack // SLACK_UNIT, INT64_MAX)
        self.inner_moves = self.options.compute_moves // (runs + 1) // self.layout.num_nodes
        self._consider(needs)
        for start in (self.dealt, self.layout.head_and_tail()):
            self.placement.set(start)
            if max(self.placement.loads) <= self.limit:
                self._consider(needs)
        if runs == 0:
            self.placement.set(self.best)
            return
        allowed = self.options.traffic_moves
        self.run_moves = allowed // runs
        while self.annealed == 0 or self.annealed + self.run_moves <= allowed:
            if self.least[0] == 0 or self.run_moves == 0:
                break
            self._anneal_nodes(needs)
            if max(self.placement.loads) > self.limit:
                self._anneal_ranks(needs)
            if max(self.placement.loads) <= self.limit:
                self._consider(needs)
        self.moves += self.annealed
        self.placement.set(self.best)

    def _anneal_nodes(self, needs: Needs) -> None:
        """Decide which node owns what, and deal a node's chunks to its ranks.

        Every other run starts from the best placement so far, less hot.
        """
        layout = self.layout
        self.from_best = not self.from_best
        start = self.best if self.from_best else layout.numbered()
        nodes = Placement(layout, self.weights, start, ranks_per_cell=layout.ranks_per_node)
        limits = [min(self.limit * len(layout.ranks_of(node)), INT64_MAX) for node in range(layout.num_nodes)]
        cooling = AGAIN if self.from_best else NODES
        anneal(nodes, needs, limits, cooling, self.run_moves, self.options.longest_run, self.chance)
        self.annealed += self.run_moves
        items = nodes.item_at
        for node in range(layout.num_nodes):
            deal(layout, self.weights, layout.ranks_of(node), items)
        self.placement.set(items)
        self._balance_nodes(self.limit)

    def _anneal_ranks(self, needs: Needs) -> None:
        """Repair what nodes cannot see, ranks above the limit: at little traffic if that works."""
        limits = [self.limit] * self.layout.num_ranks
        for cooling in (RANKS, REPAIR):
            longest_run = self.options.longest_run
            anneal(self.placement, needs, limits, cooling, self.run_moves // 4, longest_run, self.chance)
            self.annealed += self.run_moves // 4
            self._balance_nodes(self.limit)
            if max(self.placement.loads) <= self.limit:
                return
        budget = Budget(limit=self.options.compute_moves)
        balance(self.placement, range(self.layout.num_ranks), self.limit, budget)
        self.moves += budget.spent

    def _balance_nodes(self, target: int) -> None:
        for node in range(self.layout.num_nodes):
            budget = Budget(limit=self.inner_moves)
            balance(self.placement, self.layout.ranks_of(node), target, budget)
            self.moves += budget.spent

    def _consider(self, needs: Needs) -> None:
        """Alternate swaps between nodes and balance inside them while N falls; keep the best outcome."""
        traffic = Traffic(needs, self.placement)
        budget = Budget(limit=self.options.traffic_moves // 2)
        before = traffic.total + 1
        while traffic.total < before:
            before = traffic.total
            descend(self.placement, traffic, self.limit, budget)
            self._balance_nodes(0)
        self.moves += budget.spent
        outcome = (traffic.total, max(self.placement.loads))
        if not self.best or outcome < self.least:
            self.least = outcome
            self.best = list(self.placement.item_at)
