"""The least largest load, from below: is there a plan of at most this load? Few patterns answer it."""

from __future__ import annotations

from dataclasses import dataclass

from fm3_planner.exact.patterns import pattern_model
from fm3_planner.exact.solver import Solver
from fm3_planner.goal import Stop
from fm3_planner.problem import PlanProblem


@dataclass(kw_only=True)
class Balance:
    """What is known of the least largest load of a problem, narrowed from both sides.

    Attributes:
        problem: what is to be placed; one group of weights.
        solver: what answers.
        least: no plan has a smaller load.
        value: the load of the best plan known.
        owner: rank of each chunk in a better plan than the one that was known before, None for none.
        spent: share of the solver's limit that was used.
        work: what the solver tried.
    """

    problem: PlanProblem
    solver: Solver
    least: int
    value: int
    owner: list[int] | None = None
    spent: float = 0.0
    work: int = 0

    def narrow(self, share: float) -> None:
        """Ask for larger loads, in growing steps while the answer is no, within `share` of the limit."""
        step = 1
        while self.least < self.value and self.spent < share:
            most = min(self.least + step, self.value) - 1
            patterns = pattern_model(self.problem, most)
            if patterns is None:
                if step == 1:
                    return
                step = 1
                continue
            if patterns.uses_every_weight:
                found = self.solver.solve(patterns.model, share - self.spent)
                self.spent += found.spent
                self.work += found.work
                if found.values is not None:
                    self._take(patterns.owners(found.values))
                    step = max(1, step // 2)
                    continue
                if found.stop is not Stop.PROVED:
                    return
            self.least = most + 1
            step *= 2

    def _take(self, owner: list[int]) -> None:
        loads = [0] * self.problem.num_ranks
        for chunk, rank in enumerate(owner):
            loads[rank] += int(self.problem.weights[chunk])
        assert max(loads) < self.value, "a pattern has a load above the one that was asked for"
        self.value, self.owner = max(loads), owner
