"""Layers that wait for each other: the load is the sum over groups of the largest load."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fm3_core import PlanError, patterns
from fm3_planner import (
    Contiguous,
    CostWeights,
    GroupSwaps,
    PlanProblem,
    Status,
    Zigzag,
    check_plan,
    lower_bounds,
    plan,
)

GROUPS = np.array([[9, 1, 1, 9], [1, 9, 9, 1]])


@pytest.fixture(scope="module")
def crossed(make_problem):
    """Chunks that weigh 10 each, in one group or in the other."""
    return make_problem(GROUPS.sum(axis=0), 2, groups=GROUPS)


def test_the_load_is_the_sum_of_maxima_and_not_the_largest_sum(crossed):
    apart = plan(crossed, "zigzag")
    assert apart.partition.chunks_by_rank == ((0, 3), (1, 2))
    assert apart.cost.loads == (20, 20)
    assert apart.cost.compute == 18 + 18
    assert plan(crossed, "contiguous").cost.compute == 10 + 10


def test_the_bounds_of_groups_add_up_where_that_is_more(make_problem):
    groups = np.array([[8, 0, 0, 0], [0, 0, 0, 8]])
    bound = lower_bounds(make_problem(groups.sum(axis=0), 2, groups=groups)).compute
    assert bound == (16, "groups: the bounds of 2 groups of layers add up")


def test_brute_force_balances_every_group(crossed):
    result = plan(crossed, "brute_force")
    check_plan(crossed, result)
    assert (result.cost.compute, result.status) == (20, Status.OPTIMAL)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_plan_has_at_least_the_largest_sum_and_passes(make_problem, data):
    num_chunks = data.draw(st.integers(2, 9))
    rows = data.draw(st.integers(1, 3))
    groups = np.random.default_rng(data.draw(st.integers(0, 999))).integers(0, 50, (rows, num_chunks))
    problem = make_problem(groups.sum(axis=0), 2, groups=groups)
    result = plan(problem, "lpt")
    check_plan(problem, result)
    assert result.cost.compute >= max(result.cost.loads)
    assert result.bounds.compute.value <= plan(problem, "brute_force").cost.compute


def test_one_group_is_the_same_as_none(make_problem):
    weights = [5, 4, 3, 2]
    alone, grouped = make_problem(weights, 2), make_problem(weights, 2, groups=np.array([weights]))
    assert plan(alone) == plan(grouped)


def test_problems_of_several_masks_take_either_objective():
    layers = [(patterns.causal(64), 3, CostWeights()), (patterns.sliding_window(64, 7), 5, CostWeights())]
    arguments = {"chunk_size": 4, "num_ranks": 4}
    summed = PlanProblem.from_masks(layers, **arguments)
    waiting = PlanProblem.from_masks(layers, **arguments, compute="sum_of_maxima")
    assert summed.weights_by_group is None
    assert waiting.groups.shape == (2, 16)
    assert waiting.groups.sum(axis=0).tolist() == summed.weights.tolist()
    assert plan(waiting, "striped").cost.compute >= plan(summed, "striped").cost.compute


def test_another_objective_is_refused():
    with pytest.raises(PlanError, match="compute must be one of largest_sum, sum_of_maxima, got 'mean'"):
        PlanProblem.from_masks(
            [(patterns.causal(8), 1, CostWeights())], chunk_size=2, num_ranks=2, compute="mean"
        )


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([], "weights_by_group must have at least one group, got none"),
        ([[1, 2, 3]], r"weights_by_group\[0\] must have shape \[2\], one value a chunk, got \[3\]"),
        ([[1, 2], [0, -1]], r"weights_by_group\[1\]\[1\] must be an integer in 0.."),
        ([[1, 2], [0, 1]], "weights_by_group of chunk 1 sum to 3, the chunk's weight is 2"),
        (7, "weights_by_group must be a matrix of integers, got 7"),
    ],
)
def test_groups_that_do_not_fit_the_weights_are_refused(make_problem, groups, message):
    with pytest.raises(PlanError, match=message):
        make_problem([1, 2], 2, groups=groups)


def test_an_overhead_of_row_blocks_is_part_of_every_chunk():
    plain = CostWeights(full_forward=1, partial_forward=1, full_backward=0, partial_backward=0)
    with_rows = CostWeights(
        full_forward=1,
        partial_forward=1,
        full_backward=0,
        partial_backward=0,
        row_block_forward=100,
        block_rows=4,
    )
    arguments = {"chunk_size": 8, "num_ranks": 2, "query_heads": 3}
    mask = patterns.causal(20)
    more = PlanProblem.from_mask(mask, cost=with_rows, **arguments).weights
    same = CostWeights(full_forward=1, partial_forward=1, full_backward=0, partial_backward=0, block_rows=4)
    base = PlanProblem.from_mask(mask, cost=same, **arguments).weights
    assert (more - base).tolist() == [600, 600, 300]
    assert PlanProblem.from_mask(mask, cost=plain, **arguments).weights.tolist() == [3, 6, 9]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_group_swaps_end_where_no_swap_helps(make_problem, data):
    num_chunks, num_ranks = data.draw(st.integers(3, 9)), data.draw(st.integers(2, 3))
    groups = np.random.default_rng(data.draw(st.integers(0, 999))).integers(0, 50, (2, num_chunks))
    problem = make_problem(groups.sum(axis=0), num_ranks, groups=groups)
    result = plan(problem, GroupSwaps(start=Contiguous()))
    check_plan(problem, result)
    owner = result.partition.owner.tolist()
    swapped = [_swapped(owner, one, other) for one in range(num_chunks) for other in range(one)]
    assert result.cost.compute <= plan(problem, "contiguous").cost.compute
    assert result.cost.compute <= min(_load(groups, other, num_ranks) for other in swapped)


def _swapped(owner, one, other):
    changed = list(owner)
    changed[one], changed[other] = owner[other], owner[one]
    return changed


def _load(groups, owner, num_ranks):
    of_ranks = [
        [sum(w for w, of in zip(weights, owner, strict=True) if of == rank) for rank in range(num_ranks)]
        for weights in groups.tolist()
    ]
    return sum(max(loads) for loads in of_ranks)


def test_group_swaps_balance_what_the_sums_hide(crossed):
    result = plan(crossed, GroupSwaps(start=Zigzag()))
    assert plan(crossed, Zigzag()).cost.compute == 36
    assert (result.cost.compute, result.status) == (20, Status.OPTIMAL)


def test_group_swaps_stop_at_their_limit(crossed):
    assert plan(crossed, GroupSwaps(start=Zigzag(), max_swaps=0)).cost.compute == 36
    with pytest.raises(PlanError, match="max_swaps must be >= 0, got -1"):
        GroupSwaps(max_swaps=-1)
