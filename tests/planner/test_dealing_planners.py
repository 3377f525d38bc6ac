"""Snake, balanced largest differencing and per-document zigzag: what they do, and how badly at worst."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fm3_core import patterns
from fm3_planner import KarmarkarKarp, PerDocumentZigzag, PlanProblem, Snake, Status, check_plan, plan

DEALING = ("karmarkar_karp", "per_document_zigzag", "snake")


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_plan_passes_the_check(problems, data):
    problem = data.draw(problems)
    check_plan(problem, plan(problem, data.draw(st.sampled_from(DEALING))))


def test_snake_deals_back_and_forth(make_problem):
    problem = make_problem([9, 8, 7, 6, 5, 4, 3, 2], 3)
    assert plan(problem, Snake()).partition.chunks_by_rank == ((0, 5, 6), (1, 4, 7), (2, 3))


def test_snake_breaks_ties_by_chunk(make_problem):
    assert plan(make_problem([1] * 6, 2), "snake").partition.chunks_by_rank == ((0, 3, 4), (1, 2, 5))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_loads_of_snake_differ_by_the_heaviest_chunk_at_most(problems, data):
    problem = data.draw(problems)
    loads = plan(problem, "snake").cost.loads
    assert max(loads) - min(loads) <= problem.weights.max()


def test_karmarkar_karp_evens_out_what_is_uneven_most(make_problem):
    """Groups [8 7], [6 5], [4 2], [2 2]: the third goes against the first, and what that leaves is least."""
    result = plan(make_problem([8, 7, 6, 5, 4, 2, 2, 2], 2), KarmarkarKarp())
    assert result.cost.loads == (18, 18)
    assert result.status is Status.OPTIMAL


def test_karmarkar_karp_with_a_count_that_does_not_divide_owns_one_less_somewhere(make_problem):
    result = plan(make_problem([9, 1, 1, 1, 1, 1, 1], 3), "karmarkar_karp")
    assert sorted(len(chunks) for chunks in result.partition.chunks_by_rank) == [2, 2, 3]


# Balanced LDM at its worst: `optimal` is a plan, (how many ranks, the chunks of each), whose largest load is
# that of one more rank with the heaviest chunk alone. Chunks of weight 0 fill the ranks up.
@pytest.mark.parametrize(
    ("per_rank", "heaviest", "optimal", "ratio"),
    [
        (3, 6, [(1, [2, 2, 2])], Fraction(4, 3)),
        (4, 12, [(2, [3, 3, 3, 3]), (5, [4, 4, 4])], Fraction(19, 12)),
        (
            5,
            60,
            [(3, [12] * 5), (11, [15] * 4), (29, [16, 16, 16, 12])],
            Fraction(103, 60),
        ),
        (
            6,
            360,
            [(4, [60] * 6), (19, [72] * 5), (71, [75] * 4 + [60]), (189, [76] * 3 + [72, 60])],
            Fraction(643, 360),
        ),
    ],
)
def test_karmarkar_karp_at_its_worst_is_that_far_above_the_optimum(
    make_problem, per_rank, heaviest, optimal, ratio
):
    ranks_full = [chunks for count, chunks in optimal for _ in range(count)]
    num_ranks = len(ranks_full) + 1
    weights = [heaviest, *(weight for chunks in ranks_full for weight in chunks)]
    weights += [0] * (per_rank * num_ranks - len(weights))
    assert max(map(sum, ranks_full)) <= heaviest
    problem = make_problem(weights, num_ranks, needs=np.eye(len(weights), dtype=bool))
    worst = plan(problem, "karmarkar_karp")
    assert Fraction(worst.cost.compute, heaviest) == ratio
    assert plan(problem, "ipo").cost.compute < worst.cost.compute


@pytest.mark.parametrize("num_ranks", [2, 3, 5, 8])
def test_lpt_at_its_worst_is_a_third_of_its_optimum_above_it_less_a_third_of_a_rank(make_problem, num_ranks):
    """Graham's weights, with chunks of weight 0 that fill the ranks to three chunks each."""
    weights = [*(2 * num_ranks - 1 - place // 2 for place in range(2 * num_ranks)), num_ranks]
    weights += [0] * (3 * num_ranks - len(weights))
    problem = make_problem(weights, num_ranks)
    optimum = 3 * num_ranks
    assert plan(problem, "ipo").cost.compute == optimum
    assert Fraction(plan(problem, "lpt").cost.compute, optimum) == Fraction(4, 3) - Fraction(1, 3 * num_ranks)


def test_documents_zigzag_one_by_one(make_problem):
    """Documents of 8 and 8 tokens on 2 ranks: each rank has head and tail of both."""
    problem = PlanProblem.from_mask(patterns.causal_document([8, 8]), chunk_size=1, num_ranks=2)
    partition = plan(problem, PerDocumentZigzag()).partition
    assert partition.chunks_by_rank[0] == (0, 1, 6, 7, 8, 9, 14, 15)
    assert plan(problem, "per_document_zigzag").status is Status.OPTIMAL


def test_documents_that_share_a_chunk_count_as_one():
    problem = PlanProblem.from_mask(patterns.causal_document([6, 10]), chunk_size=4, num_ranks=2)
    assert plan(problem, "per_document_zigzag").partition == plan(problem, "zigzag").partition


def test_on_one_causal_document_it_is_zigzag():
    problem = PlanProblem.from_mask(patterns.causal(96), chunk_size=2, num_ranks=4)
    assert plan(problem, "per_document_zigzag").partition == plan(problem, "zigzag").partition


def test_chunks_that_are_left_over_go_where_fewest_are(make_problem):
    needs = np.kron(np.eye(3), np.tril(np.ones((3, 3)))).astype(bool)
    partition = plan(make_problem([1] * 9, 2, needs=needs), "per_document_zigzag").partition
    assert partition.chunks_by_rank == ((0, 2, 3, 6, 8), (1, 4, 5, 7))
