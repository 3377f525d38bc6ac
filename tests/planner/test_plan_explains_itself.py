"""A plan says in a few plain lines what it costs, what is known of the best, and what it took."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fm3_core import PlanError
from fm3_planner import Assignment, CpSat, Figure, Goal, Status, Stop, check_plan, plan

SENTENCES = [status.value for status in Status]


class _Says:
    def __init__(self, *goals):
        self.goals = goals

    def assign(self, problem):
        return Assignment(chunks_by_rank=[[0, 3], [1, 2]], goals=tuple(self.goals))


def _goal(**changes):
    fields = {
        "figure": Figure.COMPUTE,
        "value": 5,
        "bound": 5,
        "allowed": 5,
        "stop": Stop.PROVED,
        "solver": "a test",
    }
    return Goal(**(fields | changes))


@pytest.fixture(scope="module")
def problem(make_problem):
    needs = np.tril(np.ones((4, 4), dtype=bool))
    return make_problem([4, 3, 2, 1], 2, 1, needs=needs)


def test_every_line_says_what_it_is_about(problem):
    lines = plan(problem, "zigzag").explain().splitlines()
    assert lines[:5] == [
        "zigzag placed 4 chunks of 1 tokens on 2 ranks in 2 nodes, 2 chunks a rank.",
        "Compute: the slowest rank has 5 (rank 0 is the heaviest), which is the lower bound 5 (average: a "
        "total of 10 on 2 ranks).",
        "Between nodes: 30 bytes, 50.00% above the lower bound 20 (users: key chunks with more users than "
        "the 2 chunks of a node).",
        "Between ranks: 30 bytes; the largest receive buffer has 20.",
        f"Status: {Status.OPTIMAL}.",
    ]
    assert lines[5].endswith("ms and 4 moves.")


def test_the_goals_of_an_exact_search_are_told(problem):
    text = plan(problem, CpSat(objective="node_traffic", epsilon=0.5)).explain()
    assert "Goal 1: compute 5 (proved least, up to 7 allowed): its lower bound is reached." in text
    assert "Goal 2: node_traffic " in text


def test_a_gap_of_a_goal_is_told():
    goal = _goal(value=11, bound=10, allowed=11, stop=Stop.WORK_LIMIT)
    assert str(goal).startswith("compute 11 (at least 10, gap 10.00%): a test stopped at its work limit")
    assert _goal(bound=0).gap == float("inf")


@pytest.mark.parametrize("status", list(Status), ids=lambda status: status.name)
def test_a_status_is_a_sentence_of_its_own(status):
    assert SENTENCES.count(status.value) == 1
    assert ": " in str(status)


@pytest.mark.parametrize(
    ("goals", "status"),
    [
        ([_goal()], Status.OPTIMAL),
        ([_goal(bound=4, stop=Stop.WORK_LIMIT)], Status.WORK_LIMIT),
        ([_goal(bound=4, stop=Stop.CLOCK)], Status.CLOCK),
        ([_goal(), _goal(figure=Figure.NODE_TRAFFIC, value=30, bound=30, allowed=30)], Status.PROVED),
        (
            [_goal(), _goal(figure=Figure.NODE_TRAFFIC, value=30, bound=20, allowed=30, stop=Stop.CLOCK)],
            Status.CLOCK,
        ),
    ],
)
def test_the_status_follows_from_the_goals(problem, goals, status):
    result = plan(problem, _Says(*goals))
    check_plan(problem, result)
    assert result.status is status


@pytest.mark.parametrize(
    ("goals", "message"),
    [
        ([_goal(bound=6)], r"goals\[0\] must satisfy 0 <= bound <= value <= allowed, got bound=6"),
        ([_goal(value=4, bound=4, allowed=4)], r"goals\[0\] allows a compute of 4, but its plan has 5"),
        ([_goal(value=4, bound=4, allowed=9)], r"goals\[0\] says a compute of 4, but its plan has 5"),
        (["good"], r"goals must be a tuple of Goal, got \('good',\)"),
    ],
)
def test_goals_that_the_plan_does_not_keep_are_refused(problem, goals, message):
    with pytest.raises(PlanError, match=f"planner '_Says': {message}"):
        plan(problem, _Says(*goals))


@pytest.mark.parametrize(
    ("goals", "message"),
    [
        ((_goal(bound=6),), r"goals\[0\] must satisfy 0 <= bound"),
        ((_goal(value=4, bound=4, allowed=4),), r"goals\[0\].allowed is 4, the plan has 5"),
        ((_goal(value=4, bound=4, allowed=9),), r"goals\[0\].value is 4, derived anew it is 5"),
    ],
)
def test_check_plan_names_goals_that_the_plan_does_not_keep(problem, goals, message):
    result = plan(problem, "zigzag")
    with pytest.raises(PlanError, match=message):
        check_plan(problem, replace(result, goals=goals))
