"""What a search may do."""

from __future__ import annotations

from dataclasses import dataclass

SLACK_UNIT = 10**9
"""Slack is counted in parts of this."""


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Targets and budgets of a search.

    Attributes:
        target: phase 1 stops at a largest load of this, a lower bound.
        compute_moves: exchanges that phase 1 may compute, and phase 3.
        mixes: times that phase 1 leaves a placement that no exchange improves.
        slack: phase 2 keeps the largest load within 1 + slack / 10^9 times that of phase 1.
        traffic_moves: exchanges that the annealing of phase 2 may compute, but for the last repair.
        runs: annealing runs that this allows where none needs a repair.
        longest_run: neighbouring chunks that annealing swaps at once, at most.
    """

    target: int
    compute_moves: int
    mixes: int
    slack: int = 0
    traffic_moves: int = 0
    runs: int = 0
    longest_run: int = 1
