"""A result explains itself and compares by meaning."""

from __future__ import annotations

import math

import numpy as np

from fm3_core import patterns
from fm3_planner import Status, plan


def test_a_status_is_a_sentence():
    assert str(Status.OPTIMAL).startswith("optimal: the compute load equals its lower bound")
    assert str(Status.FEASIBLE).startswith("feasible: ")


def test_results_are_equal_whatever_time_planning_took(make_problem):
    problem = make_problem([3, 1, 2, 5], 2)
    assert plan(problem) == plan(problem)


def test_the_result_carries_cluster_and_fingerprint_of_its_problem(make_problem):
    problem = make_problem([3, 1, 2, 5], 2, 1, fingerprint="abc")
    result = plan(problem, "lpt")
    assert (result.cluster, result.fingerprint) == (problem.cluster, "abc")
    assert result.stats.moves == 4
    assert result.stats.planning_seconds >= 0


def test_the_gap_of_traffic_that_need_not_be_is_infinite(make_problem):
    needs = np.zeros((4, 4), dtype=bool)
    needs[1, 0] = needs[3, 2] = True
    gaps = plan(make_problem([1] * 4, 2, 1, needs=needs), "striped").gaps
    assert gaps.compute == 0.0
    assert math.isinf(gaps.node_traffic)


def test_a_plan_knows_which_masks_it_was_made_for(make_problem):
    small, large, other = patterns.causal(4), patterns.full(4), patterns.causal(5)
    result = plan(make_problem([1] * 4, 2, fingerprint=f"{small.fingerprint}+{large.fingerprint}"))
    assert result.was_made_for(small)
    assert result.was_made_for(large)
    assert not result.was_made_for(other)
