"""The search in C++ and its Python twin make the same decisions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fm3_core import PlanError
from fm3_planner import HccIpo, Ipo, read_instances
from fm3_planner.search import engine
from fm3_planner.search.chance import Chance

PLANBENCH = Path(__file__).parents[2] / "benchmarks" / "planbench" / "instances.json"
INSTANCES = {instance.name: instance for instance in read_instances(PLANBENCH)}

pytest.importorskip("fm3_planner._C", reason="the search in C++ was not built here")


def _same(problem, planner, **options):
    native, python = (planner(engine=name, **options).assign(problem) for name in ("native", "python"))
    assert native == python


@settings(max_examples=80, deadline=None)
@given(
    data=st.data(),
    epsilon=st.sampled_from([0.0, 0.01, 0.2, 3.0]),
    runs=st.integers(0, 2),
    traffic_moves=st.integers(0, 400),
    compute_moves=st.sampled_from([0, 50, 3000]),
)
def test_plans_and_moves_are_equal(problems, data, epsilon, runs, traffic_moves, compute_moves):
    options = {"runs": runs, "traffic_moves": traffic_moves, "compute_moves": compute_moves}
    _same(data.draw(problems), HccIpo, epsilon=epsilon, **options)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_plans_of_ipo_are_equal(problems, data):
    _same(data.draw(problems), Ipo, compute_moves=4000)


@pytest.mark.parametrize("per_rank", [3, 4, 5, 6, 7, 8, 9, 40, 100])
def test_plans_are_equal_for_every_kind_of_exchange(make_problem, per_rank):
    rng = np.random.default_rng(per_rank)
    weights = rng.integers(1, 10**6, 6 * per_rank - 2)
    needs = rng.random((len(weights), len(weights))) < 0.1
    problem = make_problem(weights, 6, 2, needs=needs, chunk_bytes=rng.integers(1, 5, len(weights)))
    _same(problem, HccIpo, runs=2, traffic_moves=3000)


def test_plans_are_equal_where_numbers_are_as_large_as_int64_holds(make_problem):
    rng = np.random.default_rng(0)
    weights = rng.integers(2**54, 2**57, 40)
    problem = make_problem(weights, 8, 4, chunk_bytes=rng.integers(2**50, 2**54, 40))
    _same(problem, HccIpo, runs=2, traffic_moves=2000, epsilon=1000.0)
    _same(problem, HccIpo, runs=2, traffic_moves=2000, epsilon=0.02)


@pytest.mark.parametrize("name", sorted(INSTANCES))
def test_plans_are_equal_on_planbench_with_a_small_budget(name):
    problem = INSTANCES[name].problem()
    _same(problem, HccIpo, epsilon=0.02, runs=1, traffic_moves=400, compute_moves=20 * problem.num_chunks)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(INSTANCES))
def test_plans_are_equal_on_planbench_with_the_budget_of_every_day(name):
    _same(INSTANCES[name].problem(), HccIpo)


def test_a_missing_extension_is_replaced_by_the_twin_and_named_where_it_was_asked_for(
    make_problem, monkeypatch
):
    monkeypatch.setattr(engine, "_native", lambda: None)
    problem = make_problem([3, 1, 2, 5], 2)
    assert Ipo().assign(problem) == Ipo(engine="python").assign(problem)
    with pytest.raises(PlanError, match=r"engine 'native' needs fm3_planner\._C, which this install"):
        Ipo(engine="native").assign(problem)


def test_the_extension_refuses_sizes_that_do_not_fit():
    names = ("target", "compute_moves", "mixes", "slack", "traffic_moves", "runs", "longest_run")
    options = dict.fromkeys(names, 0)
    native = engine._native()
    weights = np.ones(4, dtype=np.int64)
    with pytest.raises(ValueError, match="a chunk a rank"):
        native.search(weights=weights, needs=None, chunk_bytes=None, num_ranks=5, ranks_per_node=1, **options)
    with pytest.raises(ValueError, match="needs must be"):
        native.search(
            weights=weights,
            needs=np.ones((3, 3), dtype=bool),
            chunk_bytes=weights,
            num_ranks=2,
            ranks_per_node=1,
            **options,
        )


def test_chance_is_the_same_everywhere():
    chance = Chance(2026)
    assert [chance.next() for _ in range(3)] == [211544575, 513204273, 3420528506]
    assert [chance.below(10) for _ in range(6)] == [2, 7, 2, 0, 6, 6]
