"""Exact planners find the best plan, prove it or say how far it may be, and stop at their limits."""

from __future__ import annotations

import itertools
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fm3_core import Partition, PlanError, UnknownNameError
from fm3_planner import (
    Bound,
    Contiguous,
    CpSat,
    Figure,
    HccIpo,
    Ilp,
    Status,
    Stop,
    check_plan,
    plan,
    plan_cost,
)
from fm3_planner.exact.brute_force import placements
from fm3_planner.exact.search import with_slack

EXACT = [pytest.param(CpSat, id="cp_sat"), pytest.param(Ilp, id="ilp")]
every_exact = pytest.mark.parametrize("planner", EXACT)


def _all_costs(problem):
    """Return the cost of every placement, ranks of one node told apart from those of another."""
    flat = list(placements(problem))
    orders = _orders(problem)
    return [
        plan_cost(problem, _partition(problem, [order[rank] for rank in owners]))
        for owners in flat
        for order in orders
    ]


def _orders(problem):
    return list(itertools.permutations(range(problem.num_ranks)))


def _partition(problem, owners):
    chunks = tuple(
        tuple(chunk for chunk, owner in enumerate(owners) if owner == rank)
        for rank in range(problem.num_ranks)
    )
    return Partition(problem.num_tokens, problem.chunk_size, chunks)


@pytest.fixture(scope="module")
def tangled(make_problem):
    """A problem of 8 chunks on 2 nodes of 2 ranks where load, traffic of nodes and of ranks pull apart."""
    needs = np.tril(np.random.default_rng(11).random((8, 8)) < 0.5) | np.eye(8, dtype=bool)
    return make_problem(
        [31, 29, 23, 17, 13, 11, 7, 5], 4, 2, needs=needs, chunk_bytes=[12, 20, 16, 8, 24, 20, 4, 12]
    )


@pytest.fixture(scope="module")
def costs(tangled):
    return _all_costs(tangled)


def _middling(make_problem, num_chunks):
    rng = np.random.default_rng(3)
    needs = np.tril(rng.random((num_chunks, num_chunks)) < 0.4) | np.eye(num_chunks, dtype=bool)
    return make_problem(rng.integers(100, 10_000, num_chunks), 4, 2, needs=needs)


@pytest.fixture(scope="module")
def middling(make_problem):
    """A problem of 24 chunks on 4 ranks that takes a search."""
    return _middling(make_problem, 24)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_cp_sat_has_the_load_of_brute_force_and_proves_it(small_problems, data):
    problem = data.draw(small_problems)
    result = plan(problem, CpSat())
    check_plan(problem, result)
    assert result.cost.compute == plan(problem, "brute_force").cost.compute
    assert result.status is Status.OPTIMAL


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_ilp_has_the_load_of_brute_force(small_problems, data):
    problem = data.draw(small_problems)
    best = plan(problem, "brute_force").cost.compute
    result = plan(problem, Ilp(start=_Worst()))
    check_plan(problem, result)
    assert result.cost.compute == best


class _Worst:
    """Heavy chunks together: a start that leaves work to the solver."""

    def assign(self, problem):
        per_rank, more = problem.chunks_per_rank
        order = np.argsort(-problem.weights, kind="stable").tolist()
        counts = [per_rank + (rank < more) for rank in range(problem.num_ranks)]
        ends = np.cumsum(counts)
        return [order[end - count : end] for count, end in zip(counts, ends, strict=True)]


@every_exact
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5, 3.0])
def test_node_traffic_is_the_least_of_all_placements_within_the_slack(planner, tangled, costs, epsilon):
    least_load = min(cost.compute for cost in costs)
    allowed = with_slack(least_load, epsilon)
    least = min(cost.node_traffic for cost in costs if cost.compute <= allowed)
    result = plan(tangled, planner(objective="node_traffic", epsilon=epsilon))
    check_plan(tangled, result)
    assert (result.cost.node_traffic, result.status) == (least, Status.PROVED)
    assert result.cost.compute <= allowed
    assert [goal.figure for goal in result.goals] == [Figure.COMPUTE, Figure.NODE_TRAFFIC]
    assert (result.goals[0].value, result.goals[0].allowed) == (least_load, allowed)


@every_exact
def test_compute_then_node_traffic_spends_no_load_whatever_epsilon_says(planner, tangled, costs):
    least_load = min(cost.compute for cost in costs)
    least = min(cost.node_traffic for cost in costs if cost.compute == least_load)
    result = plan(tangled, planner(objective="compute_then_node_traffic", epsilon=0.5))
    assert (result.cost.compute, result.cost.node_traffic) == (least_load, least)


@every_exact
def test_node_then_rank_traffic_is_least_in_that_order(planner, tangled, costs):
    allowed = with_slack(min(cost.compute for cost in costs), 0.2)
    within = [cost for cost in costs if cost.compute <= allowed]
    best = min((cost.node_traffic, cost.rank_traffic) for cost in within)
    result = plan(tangled, planner(objective="node_then_rank_traffic", epsilon=0.2))
    check_plan(tangled, result)
    assert (result.cost.node_traffic, result.cost.rank_traffic) == best
    assert result.status is Status.PROVED


@every_exact
def test_a_given_largest_load_takes_the_place_of_a_search_for_the_least(planner, tangled, costs):
    least = min(cost.node_traffic for cost in costs if cost.compute <= 41)
    result = plan(tangled, planner(objective="node_traffic", max_compute=41))
    check_plan(tangled, result)
    assert (result.cost.node_traffic, len(result.goals)) == (least, 1)
    assert result.cost.compute <= 41


@every_exact
def test_a_largest_load_that_no_plan_has_is_refused(planner, tangled):
    with pytest.raises(PlanError, match=r"no plan has a load of at most 30$"):
        plan(tangled, planner(objective="node_traffic", max_compute=30))


@every_exact
def test_receive_buffers_stay_below_their_limit(planner, tangled, costs):
    within = [cost for cost in costs if cost.buffer_bytes <= 60]
    result = plan(tangled, planner(max_buffer_bytes=60))
    check_plan(tangled, result)
    assert result.cost.buffer_bytes <= 60
    assert result.cost.compute == min(cost.compute for cost in within)


@every_exact
def test_buffers_that_no_plan_keeps_are_refused(planner, tangled):
    with pytest.raises(PlanError, match=r"no plan has buffers of at most 3 bytes$"):
        plan(tangled, planner(max_buffer_bytes=3))


@every_exact
def test_layers_that_wait_for_each_other_are_balanced_each(planner, make_problem):
    groups = np.random.default_rng(0).integers(0, 30, (2, 8))
    problem = make_problem(groups.sum(axis=0), 2, groups=groups)
    result = plan(problem, planner())
    check_plan(problem, result)
    assert result.cost.compute == plan(problem, "brute_force").cost.compute


@pytest.mark.parametrize(
    ("num_chunks", "planner"),
    [
        (24, CpSat(max_work=0.05, objective="node_traffic", epsilon=0.02)),
        (15, Ilp(max_nodes=1, objective="node_traffic", epsilon=0.02)),
    ],
    ids=["cp_sat", "ilp"],
)
def test_a_search_that_its_work_limit_stops_has_a_plan_a_bound_and_the_same_answer_again(
    make_problem, num_chunks, planner
):
    problem = _middling(make_problem, num_chunks)
    result = plan(problem, planner)
    check_plan(problem, result)
    open_goals = [goal for goal in result.goals if not goal.is_proved]
    assert result.status is Status.WORK_LIMIT
    assert all(goal.stop is Stop.WORK_LIMIT and 0 < goal.bound < goal.value for goal in open_goals)
    assert plan(problem, planner) == result


def test_a_search_that_the_clock_stops_says_that_it_may_not_repeat_itself(middling):
    result = plan(middling, Ilp(max_seconds=0.01, objective="node_traffic", epsilon=0.02))
    check_plan(middling, result)
    assert result.status is Status.CLOCK
    assert "another run may give another plan" in str(result.status)


@every_exact
def test_an_exact_plan_is_never_behind_its_start(planner, middling):
    limits = {"cp_sat": {"max_work": 0.01}, "ilp": {"max_nodes": 1}}
    result = plan(middling, planner(start=Contiguous(), **limits["cp_sat" if planner is CpSat else "ilp"]))
    assert result.cost.compute <= plan(middling, "contiguous").cost.compute


def test_where_a_simple_bound_is_reached_no_solver_is_asked(make_problem, monkeypatch):
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    result = plan(make_problem([5] * 8, 4), "cp_sat")
    assert result.status is Status.OPTIMAL
    assert result.goals[0].solver == "lower bound"


def test_the_proof_of_an_exact_planner_is_the_bound_of_its_plan(make_problem):
    result = plan(make_problem([10, 9, 3, 3, 3, 0], 2), "cp_sat")
    assert isinstance(result.bounds.compute, Bound)
    assert result.bounds.compute.value == 15
    assert result.bounds.compute.reason.startswith("solver: CP-SAT ")


@pytest.mark.parametrize(
    ("module", "planner", "message"),
    [
        ("ortools.sat.python", CpSat(), "planner cp_sat needs the package ortools.*pip install ortools"),
        ("pulp", Ilp(), "planner ilp needs the package pulp.*pip install pulp"),
        ("highspy", Ilp(solver="highs"), 'solver="highs" needs the package highspy.*pip install highspy'),
    ],
)
def test_a_solver_that_is_not_installed_is_named(middling, monkeypatch, module, planner, message):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr("fm3_planner.exact.pulp_ilp._highs_version", _no_highs)
    with pytest.raises(PlanError, match=message):
        plan(middling, planner)


def _no_highs():
    raise PlanError('planner ilp with solver="highs" needs the package highspy: pip install highspy')


@every_exact
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": -0.1}, "epsilon must be a finite number >= 0, got -0.1"),
        ({"epsilon": float("nan")}, "epsilon must be a finite number >= 0, got nan"),
        ({"epsilon": True}, "epsilon must be a finite number >= 0, got True"),
        ({"max_buffer_bytes": -1}, "max_buffer_bytes must be >= 0, got -1"),
        ({"max_compute": 1.5, "objective": "node_traffic"}, "max_compute must be an integer, got 1.5"),
        ({"max_compute": 3}, "max_compute=3 limits the load of plans of little traffic"),
        (
            {"max_compute": 3, "epsilon": 0.1, "objective": "node_traffic"},
            "max_compute=3 stands in place of epsilon, got epsilon=0.1",
        ),
    ],
)
def test_an_option_that_breaks_its_rule_is_refused_by_name(planner, options, message):
    with pytest.raises(PlanError, match=message):
        planner(**options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CpSat(max_work=0), "max_work must be a finite number > 0, got 0"),
        (lambda: Ilp(max_seconds=float("inf")), "max_seconds must be a finite number > 0, got inf"),
        (lambda: Ilp(max_nodes=0), "max_nodes must be >= 1, got 0"),
    ],
)
def test_a_limit_that_is_none_is_refused(make, message):
    with pytest.raises(PlanError, match=message):
        make()


@every_exact
def test_an_unknown_objective_lists_the_known_ones(planner):
    with pytest.raises(
        UnknownNameError, match="unknown objective 'speed'; known: compute, compute_then_node"
    ):
        planner(objective="speed")


@pytest.mark.skipif(find_spec("highspy") is None, reason="the package highspy is not installed")
def test_highs_proves_the_same_as_cp_sat(tangled):
    objective = {"objective": "node_then_rank_traffic", "epsilon": 0.2}
    result, other = plan(tangled, Ilp(solver="highs", **objective)), plan(tangled, CpSat(**objective))
    check_plan(tangled, result)
    assert [(goal.value, goal.bound) for goal in result.goals] == [
        (goal.value, goal.bound) for goal in other.goals
    ]


@every_exact
def test_an_exact_planner_crosses_nodes_no_more_than_hcc_ipo_with_the_same_slack(planner, middling):
    limits = {"cp_sat": {"max_work": 0.01}, "ilp": {"max_nodes": 1, "max_seconds": 0.1}}
    options = limits["cp_sat" if planner is CpSat else "ilp"]
    result = plan(middling, planner(objective="node_traffic", epsilon=0.05, **options))
    assert result.cost.node_traffic <= plan(middling, HccIpo(epsilon=0.05)).cost.node_traffic


def test_an_unknown_solver_lists_the_known_ones():
    with pytest.raises(UnknownNameError, match="unknown solver 'gurobi'; known: cbc, highs"):
        Ilp(solver="gurobi")


@every_exact
def test_more_chunks_than_an_exact_planner_takes_are_refused(planner, make_problem):
    with pytest.raises(PlanError, match="takes at most 128 chunks, the problem has 129"):
        plan(make_problem([1] * 129, 2), planner())


@every_exact
def test_numbers_that_are_too_large_for_the_solver_are_refused(planner, make_problem):
    weights = [2**61 + 1, 2**60 + 3, 2**59 + 7, 5, 3, 1, 2**58]
    with pytest.raises(PlanError, match=r"weights sum to .* is exact up to"):
        plan(make_problem(weights, 2), planner(start=_Worst()))


@pytest.mark.parametrize(
    ("value", "epsilon", "allowed"),
    [(100, 0.02, 102), (100, 0.29, 129), (99, 0.02, 100), (10**17, 0.05, 105 * 10**15), (0, 5.0, 0)],
)
def test_the_slack_is_the_decimal_that_is_written(value, epsilon, allowed):
    assert with_slack(value, epsilon) == allowed
