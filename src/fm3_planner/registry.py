"""The planners by name: those that ship, those of entry points, those that a user registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from fm3_core.registry import Registry
from fm3_planner.base import Planner
from fm3_planner.contiguous import Contiguous
from fm3_planner.exact.brute_force import BruteForce
from fm3_planner.exact.cp_sat import CpSat
from fm3_planner.exact.pulp_ilp import Ilp
from fm3_planner.group_swaps import GroupSwaps
from fm3_planner.hcc_ipo import HccIpo
from fm3_planner.ipo import Ipo
from fm3_planner.karmarkar_karp import KarmarkarKarp
from fm3_planner.lpt import Lpt
from fm3_planner.per_document_zigzag import PerDocumentZigzag
from fm3_planner.snake import Snake
from fm3_planner.striped import Striped
from fm3_planner.zigzag import Zigzag

Registered: TypeAlias = Planner | Callable[[], Planner]
"""A planner, or its class (or any callable) that makes one without arguments."""

planners: Registry[Registered] = Registry("planner", "fm3.planners")
"""Names of planners; `planners.register("mine", MyPlanner)` adds one; entry points of fm3.planners do too."""

planners.register("brute_force", BruteForce)
planners.register("contiguous", Contiguous)
planners.register("cp_sat", CpSat)
planners.register("group_swaps", GroupSwaps)
planners.register("hcc_ipo", HccIpo)
planners.register("ilp", Ilp)
planners.register("ipo", Ipo)
planners.register("karmarkar_karp", KarmarkarKarp)
planners.register("lpt", Lpt)
planners.register("per_document_zigzag", PerDocumentZigzag)
planners.register("snake", Snake)
planners.register("striped", Striped)
planners.register("zigzag", Zigzag)
