"""Problems and plans survive JSON unchanged; what does not fit is refused with its reason."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fm3_core import PlanError
from fm3_planner import (
    CpSat,
    needs_from_hex,
    needs_to_hex,
    plan,
    plan_from_json,
    plan_to_json,
    problem_from_json,
    problem_to_json,
)


def _same(one, other):
    return problem_to_json(one) == problem_to_json(other)


def _changed(text, **fields):
    return json.dumps(json.loads(text) | fields)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_problem_comes_back_as_it_was(problems, data):
    problem = data.draw(problems)
    again = problem_from_json(problem_to_json(problem))
    assert np.array_equal(again.weights, problem.weights)
    assert np.array_equal(again.needs, problem.needs)
    assert np.array_equal(again.chunk_bytes, problem.chunk_bytes)
    assert (again.cluster, again.num_tokens, again.chunk_size, again.fingerprint) == (
        problem.cluster,
        problem.num_tokens,
        problem.chunk_size,
        problem.fingerprint,
    )


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_plan_comes_back_equal_and_passes_for_its_problem(problems, data):
    problem = data.draw(problems)
    result = plan(problem, data.draw(st.sampled_from(["contiguous", "lpt"])))
    again = plan_from_json(plan_to_json(result), problem)
    assert again == result
    assert again.stats.planning_seconds == result.stats.planning_seconds


def test_the_goals_of_an_exact_plan_come_back(make_problem):
    problem = make_problem([10, 9, 3, 3, 3, 0], 2, 1)
    result = plan(problem, CpSat(objective="node_traffic", epsilon=0.1))
    assert plan_from_json(plan_to_json(result), problem) == result


def test_groups_of_layers_come_back(make_problem):
    groups = np.array([[1, 2, 3, 4], [4, 3, 2, 1]])
    problem = make_problem([5, 5, 5, 5], 2, groups=groups)
    again = problem_from_json(problem_to_json(problem))
    assert np.array_equal(again.weights_by_group, groups)
    assert _same(again, problem)


@settings(max_examples=40, deadline=None)
@given(num_chunks=st.integers(1, 40), seed=st.integers(0, 1000))
def test_needs_survive_hexadecimal(num_chunks, seed):
    needs = np.random.default_rng(seed).random((num_chunks, num_chunks)) < 0.5
    assert np.array_equal(needs_from_hex(needs_to_hex(needs), num_chunks), needs)


def test_the_most_significant_bit_is_the_first_chunk():
    assert needs_to_hex(np.eye(9, dtype=bool))[:2] == ["8000", "4000"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "fm3.plan: version 2 cannot be read, this FM3 reads version 1"),
        (
            {"format": "fm3.problem"},
            'the text must be an object with "format": "fm3.plan", got \'fm3.problem\'',
        ),
        ({"status": "GREAT"}, "fm3.plan: field 'GREAT' is missing or unknown"),
        ({"cost": {"speed": 1}}, r"fm3.plan: .*unexpected keyword argument 'speed'"),
        ({"cost": 3}, "fm3.plan: 'int' object has no attribute 'items'"),
    ],
)
def test_a_plan_of_another_form_is_refused(make_problem, changes, message):
    text = plan_to_json(plan(make_problem([3, 1, 2, 5], 2)))
    with pytest.raises(PlanError, match=message):
        plan_from_json(_changed(text, **changes))


@pytest.mark.parametrize("text", ["", "{", "[1]", "null"])
def test_a_text_that_is_no_saved_plan_is_refused(text):
    with pytest.raises(PlanError, match=r"^fm3.plan: the text "):
        plan_from_json(text)


def test_a_plan_of_another_cluster_and_mask_is_refused_with_every_difference(make_problem):
    text = plan_to_json(plan(make_problem([3, 1, 2, 5], 2, fingerprint="one")))
    other = make_problem([3, 1, 2, 5], 4, 2, fingerprint="two")
    with pytest.raises(
        PlanError, match=r"its cluster is .*; its mask fingerprint is one, the problem's is two"
    ):
        plan_from_json(text, other)


def test_a_plan_whose_figures_were_changed_is_refused(make_problem):
    problem = make_problem([3, 1, 2, 5], 2)
    fields = json.loads(plan_to_json(plan(problem)))
    fields["cost"]["compute"] -= 1
    with pytest.raises(PlanError, match=r"cost.compute is 5, derived anew it is 6"):
        plan_from_json(json.dumps(fields), problem)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 0}, "fm3.problem: version 0 cannot be read"),
        ({"needs": ["80"]}, "needs must have 4 rows, one a chunk, got 1"),
        ({"needs": ["zz", "00", "00", "00"]}, r"needs\[0\] must be hexadecimal, got 'zz'"),
        ({"needs": ["8000", "00", "00", "00"]}, r"needs\[0\] must have 1 bytes for 4 chunks, got 2"),
        ({"weights": [1, 2, 3, -4]}, r"weights\[3\] must be an integer in 0.."),
        ({"weights": 7}, "fm3.problem: object of type 'int' has no len"),
    ],
)
def test_a_problem_that_is_none_is_refused(make_problem, changes, message):
    text = problem_to_json(make_problem([3, 1, 2, 5], 2))
    with pytest.raises(PlanError, match=message):
        problem_from_json(_changed(text, **changes))


def test_a_problem_without_a_field_is_refused_by_the_field(make_problem):
    fields = json.loads(problem_to_json(make_problem([3, 1], 2)))
    del fields["cluster"]
    with pytest.raises(PlanError, match="field 'cluster' is missing or unknown"):
        problem_from_json(json.dumps(fields))
