"""Who computes what: places chunks of tokens on ranks and says how good the placement is; numpy only.

A `PlanProblem` holds plain integers, made by hand or from a mask. `plan` asks a planner for a placement,
checks it and returns a `PlanResult` with exact figures, lower bounds and their reasons. `check_plan` derives
all of it anew.
"""

from fm3_planner.base import Assignment, Planner
from fm3_planner.bounds import Bound, Bounds, lower_bounds
from fm3_planner.check import check_plan
from fm3_planner.contiguous import Contiguous
from fm3_planner.cost import PlanCost, plan_cost
from fm3_planner.exact.brute_force import BruteForce
from fm3_planner.exact.cp_sat import CpSat
from fm3_planner.exact.pulp_ilp import Ilp
from fm3_planner.exact.search import Objective
from fm3_planner.lpt import Lpt
from fm3_planner.planning import plan
from fm3_planner.problem import PlanProblem
from fm3_planner.registry import planners
from fm3_planner.result import Gaps, PlanResult, PlanStats, Status
from fm3_planner.stage import Figure, Stage, Stop
from fm3_planner.striped import Striped
from fm3_planner.weights import CostWeights
from fm3_planner.zigzag import Zigzag

__all__ = [
    "Assignment",
    "Bound",
    "Bounds",
    "BruteForce",
    "Contiguous",
    "CostWeights",
    "CpSat",
    "Figure",
    "Gaps",
    "Ilp",
    "Lpt",
    "Objective",
    "PlanCost",
    "PlanProblem",
    "PlanResult",
    "PlanStats",
    "Planner",
    "Stage",
    "Status",
    "Stop",
    "Striped",
    "Zigzag",
    "check_plan",
    "lower_bounds",
    "plan",
    "plan_cost",
    "planners",
]
