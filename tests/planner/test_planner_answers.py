"""What the framework accepts from a planner, and that everything else is refused by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from fm3_core import Partition, PartitionError, PlanError, UnknownNameError
from fm3_planner import Assignment, Bound, Planner, Status, check_plan, plan, planners


@dataclass(frozen=True)
class Says:
    """A plug-in that answers what it is told to."""

    answer: Any

    def assign(self, problem):
        return self.answer


@pytest.fixture(scope="module")
def problem(make_problem):
    return make_problem([4, 3, 2, 1], 2)


@pytest.mark.parametrize(
    "answer",
    [
        [[0, 3], [1, 2]],
        [[3, 0], [2, 1]],
        ((3, 0), (2, 1)),
        np.array([[3, 0], [2, 1]]),
        [np.array([0, 3]), range(1, 3)],
        Assignment(chunks_by_rank=[[0, 3], [1, 2]]),
    ],
    ids=["lists", "lists in any order", "tuples", "matrix", "arrays and ranges", "assignment"],
)
def test_chunk_ids_by_rank_become_an_ascending_partition_with_figures(problem, answer):
    result = plan(problem, Says(answer))
    assert result.partition.chunks_by_rank == ((0, 3), (1, 2))
    assert result.cost.loads == (5, 5)
    assert result.status is Status.OPTIMAL
    assert result.stats.planner == "Says"
    check_plan(problem, result)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([[0, 1], [1, 2]], r"chunk 1 is a duplicate: rank 0 has it and rank 1 again \(1 duplicates\)"),
        ([[0, 0], [1, 2]], "chunk 0 is a duplicate: rank 0 has it and rank 0 again"),
        (
            [[0], [1, 2]],
            r"chunk 3 is missing: no rank of 0..1 has it; rank 0 has the fewest chunks, 1 \(1 of 4",
        ),
        ([[], []], r"chunk 0 is missing: .* \(4 of 4 chunks are missing\)"),
        (Assignment(chunks_by_rank=[[0, 3], [2, 1]]), "rank 1 is unsorted: chunk 1 follows chunk 2"),
        ([[0, 1], [2, 4]], "rank 1 has chunk 4, out of range; chunks are 0..3"),
        ([[0, -1], [1, 2]], "rank 0 has chunk -1, out of range; chunks are 0..3"),
        ([[0, 1.0], [2, 3]], "rank 0 has chunk 1.0; a chunk id is an integer"),
        ([[False, True], [2, 3]], "rank 0 has chunk False; a chunk id is an integer"),
        (np.array([[0.0, 1.0], [2.0, 3.0]]), "rank 0 has chunk .*0.0.*; a chunk id is an integer"),
        ([["0", "1"], [2, 3]], "rank 0 has chunk '0'; a chunk id is an integer"),
        ([[0, 1, 2, 3]], "chunks of 1 ranks were given, the problem has 2 ranks"),
        ([[0, 1], [2], [3]], "chunks of 3 ranks were given, the problem has 2 ranks"),
        ([[0, 1, 2], [3]], "rank 0 has 3 chunks; 4 chunks on 2 ranks are 2 each"),
        ([[0, 1, 2, 3], []], "rank 0 has 4 chunks; 4 chunks on 2 ranks are 2 each"),
        (None, "assign must return the chunk ids of each rank, got NoneType"),
        ([0, 1, 2, 3], "assign must return the chunk ids of each rank, got list"),
        (Assignment(chunks_by_rank=[[0, 3], [1, 2]], moves=-1), "moves must be an integer >= 0, got -1"),
        (Assignment(chunks_by_rank=[[0, 3], [1, 2]], moves=0.5), "moves must be an integer >= 0, got 0.5"),
        (
            Assignment(chunks_by_rank=[[0, 3], [1, 2]], compute_bound=Bound(5, "")),
            "compute_bound must be a Bound of an integer and a reason",
        ),
        (
            Assignment(chunks_by_rank=[[0, 3], [1, 2]], compute_bound=Bound(6, "a guess")),
            "its compute_bound says that no plan has a load below 6, but its own plan has 5",
        ),
    ],
)
def test_an_answer_that_breaks_a_rule_is_refused_with_planner_rank_and_chunk(problem, answer, message):
    with pytest.raises(PlanError, match=f"planner 'Says': {message}"):
        plan(problem, Says(answer))


def test_counts_that_differ_by_more_than_one_are_refused_where_ranks_do_not_divide_chunks(make_problem):
    with pytest.raises(PlanError, match="rank 1 has 3 chunks; 7 chunks on 4 ranks are 1 or 2 each"):
        plan(make_problem([1] * 7, 4), Says([[0, 1], [2, 3, 4], [5], [6]]))


@pytest.mark.parametrize("short_rank", range(3))
def test_any_rank_may_be_the_one_with_a_chunk_less(make_problem, short_rank):
    sizes = [1 if rank == short_rank else 2 for rank in range(3)]
    starts = np.cumsum([0, *sizes])
    answer = [range(starts[rank], starts[rank + 1]) for rank in range(3)]
    assert plan(make_problem([1] * 5, 3), Says(answer)).partition.num_tokens_of(short_rank) == 1


def test_a_partition_cannot_be_built_with_unsorted_chunks():
    with pytest.raises(PartitionError, match="rank 1: chunk 1 follows chunk 2"):
        Partition(4, 1, ((0, 3), (2, 1)))


def test_a_planner_that_writes_into_the_problem_is_stopped(problem):
    class Writes:
        def assign(self, problem):
            problem.weights[0] = 0

    with pytest.raises(ValueError, match="read-only"):
        plan(problem, Writes())


@pytest.mark.parametrize(("thing", "shown"), [(7, "7"), (Says, "Says"), (None, "None")])
def test_what_is_no_planner_is_refused(problem, thing, shown):
    with pytest.raises(
        PlanError, match=rf"planner must be a name or an object with assign\(problem\), got .*{shown}"
    ):
        plan(problem, thing)


def test_what_is_no_problem_is_refused():
    with pytest.raises(PlanError, match="problem must be a PlanProblem, got list"):
        plan([1, 2, 3])


def test_an_unknown_name_lists_the_known_ones(problem):
    with pytest.raises(
        UnknownNameError, match=r"unknown planner 'best'; known: .*contiguous, .*lpt, .*zigzag"
    ):
        plan(problem, "best")


def test_the_planners_that_ship_are_registered():
    assert {"brute_force", "contiguous", "lpt", "striped", "zigzag"} <= set(planners.names())


def test_a_registered_class_plans_by_its_name_until_it_is_unregistered(problem):
    class Mine:
        def assign(self, problem):
            return [[0, 2], [1, 3]]

    planners.register("mine", Mine)
    try:
        result = plan(problem, "mine")
        assert "mine" in planners.names()
    finally:
        planners.unregister("mine")
    assert (result.stats.planner, result.partition.chunks_by_rank) == ("mine", ((0, 2), (1, 3)))
    assert "mine" not in planners.names()


def test_a_registered_object_or_factory_plans_as_well(problem):
    planners.register("object", Says([[0, 3], [1, 2]]))
    planners.register("factory", lambda: Says([[0, 2], [1, 3]]))
    try:
        loads = [plan(problem, name).cost.loads for name in ("object", "factory")]
    finally:
        planners.unregister("object")
        planners.unregister("factory")
    assert loads == [(5, 5), (6, 4)]


def test_a_name_that_is_taken_is_refused():
    with pytest.raises(UnknownNameError, match="planner 'lpt' is registered already"):
        planners.register("lpt", Says)


def test_entry_points_of_the_group_are_planners(tmp_path, monkeypatch, problem):
    (tmp_path / "fm3_example_plugin.py").write_text(
        "class Backwards:\n    def assign(self, problem):\n        return [[2, 3], [0, 1]]\n"
    )
    info = tmp_path / "fm3_example_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fm3-example-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fm3.planners]\nbackwards = fm3_example_plugin:Backwards\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "backwards" in planners.names()
    try:
        assert plan(problem, "backwards").partition.chunks_by_rank == ((2, 3), (0, 1))
    finally:
        planners.unregister("backwards")


def test_a_planner_is_anything_with_assign():
    assert isinstance(Says(None), Planner)
    assert not isinstance(object(), Planner)
