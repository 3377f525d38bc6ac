"""The figures of a plan: loads, traffic between nodes and ranks, buffers."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fm3_core import Partition
from fm3_planner import plan, plan_cost


def test_figures_of_a_plan_worked_by_hand(make_problem):
    needs = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1]], dtype=bool)
    problem = make_problem([4, 3, 2, 1], 4, 2, needs=needs, chunk_bytes=[100, 20, 3, 7])
    cost = plan_cost(problem, Partition(4, 1, ((0,), (1,), (2,), (3,))))
    assert cost.loads == (4, 3, 2, 1)
    assert cost.compute == 4
    # Chunk 0 is used by ranks 0, 1, 2 on nodes 0 and 1; chunk 1 by ranks 1 and 3, on nodes 0 and 1.
    assert cost.rank_traffic == 2 * 100 + 20
    assert cost.node_traffic == 100 + 20
    assert cost.buffer_bytes_by_rank == (0, 100, 100, 20)
    assert cost.buffer_bytes == 100


def test_a_chunk_that_several_ranks_of_a_node_need_crosses_once(make_problem):
    needs = np.zeros((4, 4), dtype=bool)
    needs[:, 0] = True
    problem = make_problem([1] * 4, 4, 2, needs=needs)
    cost = plan_cost(problem, Partition(4, 1, ((0,), (1,), (2,), (3,))))
    assert (cost.node_traffic, cost.rank_traffic) == (10, 30)


def test_an_owner_that_does_not_need_its_own_chunk_still_counts_as_a_place(make_problem):
    needs = np.array([[0, 1], [1, 0]], dtype=bool)
    cost = plan_cost(make_problem([1, 1], 2, 1, needs=needs), Partition(2, 1, ((0,), (1,))))
    assert (cost.node_traffic, cost.rank_traffic, cost.buffer_bytes_by_rank) == (20, 20, (10, 10))


def test_an_uneven_last_node_is_a_node(make_problem):
    problem = make_problem([1] * 5, 5, 2, needs=np.ones((5, 5), dtype=bool))
    cost = plan_cost(problem, Partition(5, 1, ((0,), (1,), (2,), (3,), (4,))))
    assert (cost.node_traffic, cost.rank_traffic) == (5 * 2 * 10, 5 * 4 * 10)


def test_loads_near_the_largest_int64_are_exact(make_problem):
    weights = [2**62, 2**62 - 1, 0, 0]
    cost = plan_cost(make_problem(weights, 2), Partition(4, 1, ((0, 1), (2, 3))))
    assert cost.compute == 2**63 - 1


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_receive_buffers_sum_to_the_rank_traffic_and_nodes_cross_no_more_than_ranks(problems, data):
    cost = plan(data.draw(problems)).cost
    assert sum(cost.buffer_bytes_by_rank) == cost.rank_traffic
    assert cost.node_traffic <= cost.rank_traffic
    assert max(cost.loads) == cost.compute


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_loads_sum_to_the_weights(problems, data):
    problem = data.draw(problems)
    assert sum(plan(problem, "striped").cost.loads) == sum(problem.weights.tolist())
