"""Lower bounds hold for every plan, are tight where they should be, and say why."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fm3_core import Partition
from fm3_planner import lower_bounds, plan, plan_cost


@pytest.mark.parametrize(
    ("weights", "num_ranks", "value", "reason"),
    [
        ([8, 7, 6, 5, 4, 2, 2, 2], 2, 18, "average: a total of 36 on 2 ranks"),
        ([1, 1, 1, 1, 1], 3, 2, "average: a total of 5 on 3 ranks"),
        ([9, 1, 1], 3, 9, "largest chunk: one chunk alone costs 9"),
        (
            [9, 1, 1, 1],
            2,
            10,
            "pigeonhole: one of 2 ranks owns 1 of the 1 largest chunks and 1 chunks or more",
        ),
        (
            [5, 5, 5, 0],
            2,
            10,
            "pigeonhole: one of 2 ranks owns 2 of the 3 largest chunks and 0 chunks or more",
        ),
        ([0, 0, 0], 2, 0, "average: a total of 0 on 2 ranks"),
    ],
)
def test_the_compute_bound_is_the_largest_and_gives_its_reason(
    make_problem, weights, num_ranks, value, reason
):
    bound = lower_bounds(make_problem(weights, num_ranks)).compute
    assert bound.value == value
    assert bound.reason.startswith(reason)


def test_pigeonhole_counts_the_chunks_that_every_rank_has_where_ranks_do_not_divide_chunks(make_problem):
    """With ceil(n / P) in place of floor the bound would be 43, above the optimum of 40."""
    result = plan(make_problem([21, 14, 29, 20, 20], 3), "brute_force")
    assert result.cost.compute == 40
    assert result.bounds.compute.value == 40


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_the_compute_bound_never_exceeds_the_optimum(small_problems, data):
    problem = data.draw(small_problems)
    assert lower_bounds(problem).compute.value <= plan(problem, "brute_force").cost.compute


def _least_node_traffic(problem):
    """Return the least traffic of all placements with equal counts, by trying them."""
    per_rank, ranks_with_more = problem.chunks_per_rank
    rank_of_place = [
        rank
        for extra in itertools.combinations(range(problem.num_ranks), ranks_with_more)
        for rank in range(problem.num_ranks)
        for _ in range(per_rank + (rank in extra))
    ]
    size = problem.num_chunks
    layouts = [rank_of_place[start : start + size] for start in range(0, len(rank_of_place), size)]
    owners = {owner for layout in layouts for owner in itertools.permutations(layout)}
    return min(
        plan_cost(
            problem,
            Partition(
                problem.num_tokens,
                problem.chunk_size,
                tuple(tuple(c for c in range(size) if owner[c] == r) for r in range(problem.num_ranks)),
            ),
        ).node_traffic
        for owner in sorted(owners)
    )


@pytest.mark.parametrize("seed", range(30))
def test_the_node_traffic_bound_never_exceeds_the_least_traffic_of_all_placements(make_problem, seed):
    rng = np.random.default_rng(seed)
    num_chunks = int(rng.integers(2, 6))
    num_ranks = int(rng.integers(2, num_chunks + 1))
    problem = make_problem(
        rng.integers(0, 9, num_chunks),
        num_ranks,
        int(rng.integers(1, num_ranks)),
        needs=rng.random((num_chunks, num_chunks)) < rng.choice([0.1, 0.3, 0.7]),
        chunk_bytes=rng.integers(0, 9, num_chunks),
    )
    assert lower_bounds(problem).node_traffic.value <= _least_node_traffic(problem)


def test_a_key_chunk_with_more_users_than_a_node_holds_must_cross(make_problem):
    needs = np.zeros((6, 6), dtype=bool)
    needs[:, 0] = True
    bound = lower_bounds(
        make_problem([1] * 6, 3, 1, needs=needs, chunk_bytes=[7, 1, 1, 1, 1, 1])
    ).node_traffic
    assert bound.value == 14
    assert bound.reason.startswith("users: key chunks with more users than the 2 chunks of a node")


def test_a_chain_of_chunks_longer_than_a_node_must_cross(make_problem):
    needs = np.eye(6, dtype=bool) | np.eye(6, k=-1, dtype=bool)
    bound = lower_bounds(make_problem([1] * 6, 3, 1, needs=needs)).node_traffic
    assert bound.value == 20
    assert bound.reason.startswith(
        "components: chunks connected by need are more than the 2 chunks of a node"
    )


def test_a_cheap_chunk_that_nobody_else_uses_does_not_weaken_the_bound_of_its_component(make_problem):
    needs = np.eye(4, dtype=bool) | np.eye(4, k=-1, dtype=bool)
    bound = lower_bounds(make_problem([1] * 4, 2, 1, needs=needs, chunk_bytes=[9, 9, 9, 1])).node_traffic
    assert bound.value == 9


def test_documents_that_fit_a_node_need_not_cross(make_problem):
    needs = np.kron(np.eye(2), np.ones((2, 2))).astype(bool)
    bound = lower_bounds(make_problem([1] * 4, 2, 1, needs=needs)).node_traffic
    assert bound.value == 0
    assert bound.reason.startswith("nothing must cross")


def test_on_one_node_nothing_crosses(make_problem):
    bound = lower_bounds(make_problem([1] * 4, 2, needs=np.ones((4, 4), dtype=bool))).node_traffic
    assert bound == (0, "one node: nothing can cross")
