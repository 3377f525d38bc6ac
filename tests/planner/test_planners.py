"""Each planner that ships does what its description says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fm3_core import PlanError
from fm3_planner import BruteForce, Contiguous, Lpt, Status, Striped, Zigzag, plan


def test_contiguous_gives_runs_and_the_first_ranks_one_more(make_problem):
    assert plan(make_problem([1] * 7, 3), Contiguous()).partition.chunks_by_rank == (
        (0, 1, 2),
        (3, 4),
        (5, 6),
    )


def test_striped_deals_round_robin(make_problem):
    assert plan(make_problem([1] * 7, 3), Striped()).partition.chunks_by_rank == ((0, 3, 6), (1, 4), (2, 5))


@pytest.mark.parametrize(
    ("num_chunks", "num_ranks", "chunks_by_rank"),
    [
        (8, 4, ((0, 7), (1, 6), (2, 5), (3, 4))),
        (8, 2, ((0, 1, 6, 7), (2, 3, 4, 5))),
        (4, 4, ((0,), (1,), (2,), (3,))),
        (7, 2, ((0, 1, 5, 6), (2, 3, 4))),
        (6, 2, ((0, 1, 5), (2, 3, 4))),
        (3, 1, ((0, 1, 2),)),
    ],
)
def test_zigzag_pairs_head_and_tail(make_problem, num_chunks, num_ranks, chunks_by_rank):
    assert (
        plan(make_problem([1] * num_chunks, num_ranks), Zigzag()).partition.chunks_by_rank == chunks_by_rank
    )


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
def test_zigzag_balances_one_causal_document_exactly(make_problem, num_ranks):
    weights = [2 * chunk + 1 for chunk in range(4 * num_ranks)]
    assert plan(make_problem(weights, num_ranks), "zigzag").status is Status.OPTIMAL


def test_hcc_ipo_is_the_default(make_problem):
    assert plan(make_problem([1, 2], 2)).stats.planner == "hcc_ipo"


def test_lpt_misses_an_optimum_that_brute_force_finds(make_problem):
    problem = make_problem([8, 7, 6, 5, 4, 2, 2, 2], 2)
    greedy, best = plan(problem, Lpt()), plan(problem, BruteForce())
    assert sorted(greedy.cost.loads) == [17, 19]
    assert best.cost.loads == (18, 18)
    assert (greedy.status, best.status) == (Status.FEASIBLE, Status.OPTIMAL)
    assert greedy.gaps.compute == pytest.approx(1 / 18)
    assert best.gaps.compute == 0.0


def test_lpt_breaks_ties_by_chunk_then_by_rank(make_problem):
    assert plan(make_problem([5] * 6, 3), "lpt").partition.chunks_by_rank == ((0, 3), (1, 4), (2, 5))


def test_lpt_keeps_equal_counts_though_one_rank_is_light(make_problem):
    assert plan(make_problem([100, 1, 1, 1], 2), "lpt").cost.loads == (101, 2)


def test_lpt_with_a_count_that_does_not_divide_fills_the_longer_ranks_only_as_far_as_they_go(make_problem):
    partition = plan(make_problem([9, 1, 1, 1, 1, 1, 1], 3), "lpt").partition
    assert sorted(len(chunks) for chunks in partition.chunks_by_rank) == [2, 2, 3]


def test_one_giant_chunk_is_optimal_and_says_so(make_problem):
    result = plan(make_problem([1000, 1, 1, 1, 1, 1], 3))
    assert (result.cost.compute, result.status) == (1001, Status.OPTIMAL)


def test_brute_force_refuses_more_chunks_than_it_can_try(make_problem):
    with pytest.raises(
        PlanError, match="brute_force tries every placement of at most 10 chunks, the problem has 11"
    ):
        plan(make_problem([1] * 11, 2), "brute_force")


@pytest.mark.parametrize(
    ("num_chunks", "num_ranks", "num_placements"),
    [(10, 5, 945), (10, 2, 126), (6, 3, 15), (5, 3, 15), (4, 4, 1)],
)
def test_brute_force_tries_every_placement_once_up_to_the_order_of_ranks(
    make_problem, num_chunks, num_ranks, num_placements
):
    assert plan(make_problem([1] * num_chunks, num_ranks), "brute_force").stats.moves == num_placements


def test_brute_force_proves_optimality_where_no_simple_bound_reaches(make_problem):
    problem = make_problem([10, 9, 3, 3, 3, 0], 2)
    result = plan(problem, "brute_force")
    assert plan(problem, "lpt").bounds.compute == (14, "average: a total of 28 on 2 ranks")
    assert result.bounds.compute == (15, "enumeration: the best of all 10 placements")
    assert (result.cost.compute, result.status) == (15, Status.OPTIMAL)


def test_brute_force_gives_the_simple_reason_where_one_suffices(make_problem):
    result = plan(make_problem([3, 3, 3, 2, 2, 2], 2), "brute_force")
    assert result.bounds.compute == (8, "average: a total of 15 on 2 ranks")


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_planner_beats_brute_force_and_lpt_stays_within_twice_its_load(small_problems, data):
    problem = data.draw(small_problems)
    best = plan(problem, "brute_force")
    others = [plan(problem, name).cost.compute for name in ("contiguous", "striped", "zigzag", "lpt")]
    assert best.status is Status.OPTIMAL
    assert best.cost.compute <= min(others)
    assert others[-1] <= 2 * best.cost.compute
