"""`check_plan` accepts what is right and names the first figure that is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fm3_core import Cluster, Partition, PlanError
from fm3_planner import Bound, Bounds, Status, check_plan, plan


@pytest.fixture(scope="module")
def problem(make_problem):
    needs = np.tril(np.random.default_rng(3).random((9, 9)) < 0.5)
    return make_problem([8, 7, 6, 5, 4, 2, 2, 2, 1], 4, 2, needs=needs, fingerprint="right")


@pytest.fixture(scope="module")
def result(problem):
    return plan(problem)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_every_plan_of_the_framework_passes(problems, data):
    problem = data.draw(problems)
    check_plan(problem, plan(problem, data.draw(st.sampled_from(["contiguous", "striped", "zigzag", "lpt"]))))


@pytest.mark.parametrize(
    "figure",
    ["compute", "loads", "node_traffic", "rank_traffic", "buffer_bytes", "buffer_bytes_by_rank"],
)
def test_each_wrong_figure_of_the_cost_is_named(problem, result, figure):
    wrong = np.add(getattr(result.cost, figure), 1)
    changed = replace(result, cost=replace(result.cost, **{figure: tuple(np.atleast_1d(wrong))}))
    with pytest.raises(PlanError, match=rf"^cost\.{figure} is .*, derived anew it is "):
        check_plan(problem, changed)


@pytest.mark.parametrize("name", ["compute", "node_traffic"])
def test_each_bound_that_is_too_small_is_named(problem, result, name):
    lower = Bound(getattr(result.bounds, name).value - 1, "wrong")
    with pytest.raises(PlanError, match=rf"^bounds\.{name} is .*, derived anew it is "):
        check_plan(problem, replace(result, bounds=replace(result.bounds, **{name: lower})))


def test_a_bound_above_the_plan_is_named(problem, result):
    bounds = replace(result.bounds, compute=Bound(result.cost.compute + 1, "a guess"))
    with pytest.raises(PlanError, match=r"bounds.compute is .*, above the plan's own load"):
        check_plan(problem, replace(result, bounds=bounds))


def test_a_claimed_proof_that_the_optimum_refutes_is_named(make_problem):
    problem = make_problem([8, 7, 6, 5, 4, 2, 2, 2], 2)
    result = plan(problem, "lpt")
    claimed = replace(
        result, bounds=replace(result.bounds, compute=Bound(19, "a guess")), status=Status.OPTIMAL
    )
    with pytest.raises(PlanError, match=r"bounds.compute is 19, a plan with load 18 exists"):
        check_plan(problem, claimed)


def test_a_bound_without_a_reason_is_named(problem, result):
    bounds = Bounds(
        compute=Bound(result.bounds.compute.value, ""),
        node_traffic=result.bounds.node_traffic,
    )
    with pytest.raises(PlanError, match=r"bounds.compute has no reason"):
        check_plan(problem, replace(result, bounds=bounds))


def test_a_wrong_status_is_named(make_problem):
    problem = make_problem([8, 7, 6, 5, 4, 2, 2, 2], 2)
    with pytest.raises(PlanError, match=r"^status is optimal"):
        check_plan(problem, replace(plan(problem, "lpt"), status=Status.OPTIMAL))


def test_a_plan_of_another_mask_is_refused_by_its_fingerprint(problem, result):
    with pytest.raises(PlanError, match="fingerprint is other, derived anew it is right"):
        check_plan(problem, replace(result, fingerprint="other"))


def test_a_plan_of_another_cluster_is_refused(problem, result):
    with pytest.raises(PlanError, match="cluster is Cluster"):
        check_plan(problem, replace(result, cluster=Cluster(4)))


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        (Partition(8, 1, ((0, 1), (2, 3), (4, 5), (6, 7))), "partition.num_tokens is 8"),
        (Partition(9, 2, ((0, 1), (2,), (3,), (4,))), "partition.chunk_size is 2"),
        (Partition(9, 1, ((0, 1, 2), (3, 4, 5), (6, 7, 8))), "number of ranks is 3"),
        (
            Partition(9, 1, ((0, 1, 2, 8), (3,), (4, 5), (6, 7))),
            "chunk counts of ranks differ by more than one",
        ),
        (Partition(9, 1, ((0, 1, 2), (3, 8), (4, 5), (6, 7))), "cost.loads is"),
    ],
)
def test_another_partition_is_refused(problem, result, partition, message):
    with pytest.raises(PlanError, match=message):
        check_plan(problem, replace(result, partition=partition))


def test_an_unsorted_partition_is_named_even_where_it_slipped_past_its_own_check(problem, result):
    partition = Partition(9, 1, result.partition.chunks_by_rank)
    backwards = tuple(chunks[::-1] for chunks in partition.chunks_by_rank)
    object.__setattr__(partition, "chunks_by_rank", backwards)
    with pytest.raises(PlanError, match="order of chunks of rank 0 is"):
        check_plan(problem, replace(result, partition=partition))


def test_negative_time_is_refused(problem, result):
    with pytest.raises(PlanError, match="stats must not be negative"):
        check_plan(problem, replace(result, stats=replace(result.stats, planning_seconds=-1.0)))
