"""The counts that the search keeps say what counting anew says, and its moves are bounded as it assumes."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from fm3_core import Partition
from fm3_planner import plan_cost
from fm3_planner.bounds import need_components
from fm3_planner.search.placement import Layout, Placement
from fm3_planner.search.traffic import Needs, Traffic


def _placement(problem):
    layout = Layout(
        num_chunks=problem.num_chunks,
        num_ranks=problem.num_ranks,
        ranks_per_node=problem.cluster.node_size,
    )
    weights = problem.weights.tolist() + [0] * (layout.num_slots - problem.num_chunks)
    return Placement(layout, weights, layout.numbered(), ranks_per_cell=1)


def _node_traffic(problem, placement):
    per_rank = placement.layout.slots_per_rank
    ranks = [
        placement.item_at[start : start + per_rank] for start in range(0, len(placement.item_at), per_rank)
    ]
    chunks = tuple(tuple(sorted(item for item in items if item < problem.num_chunks)) for items in ranks)
    return plan_cost(problem, Partition(problem.num_tokens, problem.chunk_size, chunks)).node_traffic


def _exchange(placement, traffic, first, second):
    """Swap two slots where that is allowed and crosses nodes; return the change, and its bound."""
    home, away = (placement.node_of[placement.cell_of[slot]] for slot in (first, second))
    if home == away or not placement.may_swap(first, second):
        return 0, 0
    leaving, coming = placement.item_at[first], placement.item_at[second]
    change = traffic.change(leaving, home, coming, away)
    bound = (
        traffic.change_of_leaving(leaving, home)
        + traffic.change_of_joining(leaving, away)
        + traffic.change_of_leaving(coming, away)
        + traffic.change_of_joining(coming, home)
    )
    traffic.exchange(leaving, home, coming, away, change)
    placement.swap(first, second)
    return change, bound


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_the_total_follows_every_exchange(problems, data):
    problem = data.draw(problems)
    placement = _placement(problem)
    traffic = Traffic(Needs(problem.needs, problem.chunk_bytes), placement)
    slots = st.integers(0, len(placement.item_at) - 1)
    pairs = data.draw(st.lists(st.tuples(slots, slots), max_size=6))
    changes = [_exchange(placement, traffic, first, second) for first, second in pairs]
    assert all(change >= bound for change, bound in changes)
    unit = max(math.gcd(*problem.chunk_bytes.tolist()), 1)
    assert traffic.total * unit == _node_traffic(problem, placement)
    assert placement.loads == [sum(map(placement.weight_at, slots)) for slots in placement.slots_of]


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_components_are_the_classes_of_the_need_relation(problems, data):
    problem = data.draw(problems)
    component_of = list(range(problem.num_chunks))
    for query, row in enumerate(problem.needs.tolist()):
        for key in (key for key, needed in enumerate(row) if needed):
            old, new = component_of[query], component_of[key]
            component_of = [new if component == old else component for component in component_of]
    expected = [
        [chunk for chunk, component in enumerate(component_of) if component == name]
        for name in dict.fromkeys(component_of)
    ]
    assert need_components(problem) == expected
