"""Who computes what: places chunks of tokens on ranks and says how good the placement is; numpy only.

A `PlanProblem` holds plain integers, made by hand or from a mask. `plan` asks a planner for a placement,
checks it and returns a `PlanResult` with exact figures, lower bounds and their reasons. `check_plan` derives
all of it anew.
"""

from fm3_planner.advisor import ChunkAdvice, ChunkOption, StepSpeeds, advise_chunk_size, balanced_chunk_size
from fm3_planner.base import Assignment, Planner
from fm3_planner.bounds import Bound, Bounds, lower_bounds, tightest_bounds
from fm3_planner.calibrate import (
    Calibration,
    DirectionFit,
    TimedCell,
    cells_to_json,
    fit_cost_weights,
    read_cells,
)
from fm3_planner.check import check_plan
from fm3_planner.contiguous import Contiguous
from fm3_planner.cost import PlanCost, plan_cost
from fm3_planner.exact.brute_force import BruteForce
from fm3_planner.exact.cp_sat import CpSat
from fm3_planner.exact.pulp_ilp import Ilp
from fm3_planner.exact.search import Objective
from fm3_planner.goal import Figure, Goal, Stop
from fm3_planner.group_swaps import GroupSwaps
from fm3_planner.hcc_ipo import HccIpo
from fm3_planner.instance import Instance, read_instances
from fm3_planner.interchange import (
    contiguous_partition,
    exchange_split_sizes,
    load_balancer_indices,
    original_order,
    rank_major_order,
    redistribution_indices,
    redistribution_split_sizes,
    token_indices,
)
from fm3_planner.ipo import Ipo
from fm3_planner.karmarkar_karp import KarmarkarKarp
from fm3_planner.lpt import Lpt
from fm3_planner.per_document_zigzag import PerDocumentZigzag
from fm3_planner.planning import plan
from fm3_planner.problem import PlanProblem
from fm3_planner.registry import planners
from fm3_planner.relabel import relabel_plan, relabel_ranks
from fm3_planner.result import Gaps, PlanResult, PlanStats, Status
from fm3_planner.saved import (
    calibration_from_json,
    calibration_to_json,
    needs_from_hex,
    needs_to_hex,
    plan_from_json,
    plan_to_json,
    problem_from_json,
    problem_to_json,
)
from fm3_planner.snake import Snake
from fm3_planner.striped import Striped
from fm3_planner.topology import ClusterGraph, LinkLoad, LinkSpeeds
from fm3_planner.traffic import token_traffic, traffic_matrix
from fm3_planner.weights import CostWeights
from fm3_planner.zigzag import Zigzag

__all__ = [
    "Assignment",
    "Bound",
    "Bounds",
    "BruteForce",
    "Calibration",
    "ChunkAdvice",
    "ChunkOption",
    "ClusterGraph",
    "Contiguous",
    "CostWeights",
    "CpSat",
    "DirectionFit",
    "Figure",
    "Gaps",
    "Goal",
    "GroupSwaps",
    "HccIpo",
    "Ilp",
    "Instance",
    "Ipo",
    "KarmarkarKarp",
    "LinkLoad",
    "LinkSpeeds",
    "Lpt",
    "Objective",
    "PerDocumentZigzag",
    "PlanCost",
    "PlanProblem",
    "PlanResult",
    "PlanStats",
    "Planner",
    "Snake",
    "Status",
    "StepSpeeds",
    "Stop",
    "Striped",
    "TimedCell",
    "Zigzag",
    "advise_chunk_size",
    "balanced_chunk_size",
    "calibration_from_json",
    "calibration_to_json",
    "cells_to_json",
    "check_plan",
    "contiguous_partition",
    "exchange_split_sizes",
    "fit_cost_weights",
    "load_balancer_indices",
    "lower_bounds",
    "needs_from_hex",
    "needs_to_hex",
    "original_order",
    "plan",
    "plan_cost",
    "plan_from_json",
    "plan_to_json",
    "planners",
    "problem_from_json",
    "problem_to_json",
    "rank_major_order",
    "read_cells",
    "read_instances",
    "redistribution_indices",
    "redistribution_split_sizes",
    "relabel_plan",
    "relabel_ranks",
    "tightest_bounds",
    "token_indices",
    "token_traffic",
    "traffic_matrix",
]
