"""The contract of every planner that is registered, those of entry points and users included.

Each rule is a function, so that planners that break it can show that it fails.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest

from fm3_core import Cluster, Fm3Error, PlanError
from fm3_planner import PlanProblem, check_plan, plan, planners


def _problem(weights, num_ranks, ranks_per_node=None, *, seed=0, density=0.3, tail=0, chunk_size=4):
    num_chunks = len(weights)
    rng = np.random.default_rng(seed)
    return PlanProblem(
        weights=weights,
        needs=np.tril(rng.random((num_chunks, num_chunks)) < density) | np.eye(num_chunks, dtype=bool),
        chunk_bytes=[64] * num_chunks,
        cluster=Cluster(num_ranks, ranks_per_node),
        num_tokens=num_chunks * chunk_size - tail,
        chunk_size=chunk_size,
    )


_RNG = np.random.default_rng(2024)
PROBLEMS = {
    "one chunk": _problem([3], 1),
    "one rank": _problem([3, 1, 2, 5, 4], 1),
    "as many ranks as chunks": _problem([3, 1, 2, 5], 4, 2),
    "all weights zero": _problem([0] * 6, 3),
    "all weights equal": _problem([7] * 8, 4, 2),
    "a rank without work": _problem([9, 0, 0, 0, 0, 0], 3),
    "counts that do not divide": _problem([21, 14, 29, 20, 20], 3),
    "an uneven last node": _problem([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 5, 2),
    "a short last chunk": _problem([4, 4, 4, 1], 2, tail=3),
    "weights near the largest integer": _problem([2**61, 2**61, 2**61, 2**61 - 1], 2),
    "nobody needs anybody": _problem([1, 2, 3, 4], 2, 1, density=0.0),
    "everybody needs all before": _problem([1, 2, 3, 4, 5, 6], 3, 1, density=1.0),
    "24 chunks on 4 ranks": _problem(_RNG.integers(0, 100, 24), 4, 2),
    "64 chunks on 8 ranks, one giant": _problem([10_000, *_RNG.integers(0, 100, 63)], 8, 4),
    "70 chunks on 32 ranks, few values": _problem(_RNG.integers(0, 3, 70), 32, 8, tail=1),
    "257 chunks on 64 ranks, causal": _problem(range(257), 64, 8, density=1.0),
}


def _fits(name, problem):
    return problem.num_chunks <= getattr(planners.get(name), "max_chunks", problem.num_chunks)


CASES = [
    pytest.param(name, problem, id=f"{name}-{title}")
    for name, (title, problem) in itertools.product(planners.names(), PROBLEMS.items())
    if _fits(name, problem)
]
every_case = pytest.mark.parametrize(("planner", "problem"), CASES)
every_planner = pytest.mark.parametrize("planner", planners.names())


def require_equal_counts(planner, problem):
    """A rank has floor or ceil of chunks / ranks; every chunk is owned once, ascending in its rank."""
    chunks_by_rank = plan(problem, planner).partition.chunks_by_rank
    counts = {len(chunks) for chunks in chunks_by_rank}
    assert counts <= {problem.num_chunks // problem.num_ranks, -(-problem.num_chunks // problem.num_ranks)}
    assert sorted(itertools.chain(*chunks_by_rank)) == list(range(problem.num_chunks))
    assert all(list(chunks) == sorted(chunks) for chunks in chunks_by_rank)


def require_repeatable(planner, problem):
    """The same integers give the same plan: asked again, after other problems, and from equal copies."""
    first = plan(problem, planner)
    plan(PROBLEMS["all weights equal"], planner)
    copy = PlanProblem(
        problem.weights.tolist(),
        problem.needs.tolist(),
        problem.chunk_bytes.tolist(),
        problem.cluster,
        problem.num_tokens,
        problem.chunk_size,
        problem.fingerprint,
    )
    assert plan(problem, planner) == first
    assert plan(copy, planner) == first


def require_above_bounds(planner, problem):
    """No figure is below its lower bound."""
    result = plan(problem, planner)
    assert result.cost.compute >= result.bounds.compute.value
    assert result.cost.node_traffic >= result.bounds.node_traffic.value


def require_checked(planner, problem):
    """Every figure is what the slow derivation says."""
    check_plan(problem, plan(problem, planner))


def require_arrays_untouched(planner, problem):
    """The problem is the same after planning as before."""
    before = [problem.weights.copy(), problem.needs.copy(), problem.chunk_bytes.copy()]
    plan(problem, planner)
    after = [problem.weights, problem.needs, problem.chunk_bytes]
    assert all(np.array_equal(old, new) for old, new in zip(before, after, strict=True))
    assert not any(array.flags.writeable for array in after)


@every_case
def test_counts_are_equal_and_every_chunk_is_owned_once(planner, problem):
    require_equal_counts(planner, problem)


@every_case
def test_the_same_integers_give_the_same_plan(planner, problem):
    require_repeatable(planner, problem)


@every_case
def test_no_figure_is_below_its_bound(planner, problem):
    require_above_bounds(planner, problem)


@every_case
def test_every_figure_is_derived_anew_alike(planner, problem):
    require_checked(planner, problem)


@every_case
def test_the_problem_is_left_as_it_was(planner, problem):
    require_arrays_untouched(planner, problem)


@every_planner
def test_one_rank_owns_everything(planner):
    result = plan(PROBLEMS["one rank"], planner)
    assert result.partition.chunks_by_rank == (tuple(range(5)),)
    assert (result.cost.compute, result.cost.rank_traffic, result.cost.node_traffic) == (15, 0, 0)


@every_planner
def test_more_ranks_than_chunks_is_a_clear_error(planner):
    with pytest.raises(PlanError, match="3 chunks, fewer than the 4 ranks"):
        plan(_problem([1, 2, 3], 4), planner)


@every_planner
def test_all_zero_weights_are_a_plan_of_no_work(planner):
    result = plan(PROBLEMS["all weights zero"], planner)
    assert (result.cost.loads, result.gaps.compute) == ((0, 0, 0), 0.0)


@every_planner
def test_a_rank_may_have_no_work_and_still_owns_its_chunks(planner):
    result = plan(PROBLEMS["a rank without work"], planner)
    assert sorted(result.cost.loads) == [0, 0, 9]
    assert [len(chunks) for chunks in result.partition.chunks_by_rank] == [2, 2, 2]


_PRINT_OWNERS = """
import numpy as np
from fm3_core import Cluster
from fm3_planner import PlanProblem, plan, planners
weights = np.random.default_rng(5).integers(0, 4, 10)
needs = np.tril(np.random.default_rng(6).random((10, 10)) < 0.4)
problem = PlanProblem(weights, needs, [8] * 10, Cluster(4, 2), 10, 1)
print([(name, plan(problem, name).partition.chunks_by_rank) for name in planners.names()])
"""


def _owners_in_a_process(hash_seed):
    environment = os.environ | {"PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _PRINT_OWNERS]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def test_the_plan_does_not_depend_on_the_process_or_its_hash_seed():
    assert _owners_in_a_process(1) == _owners_in_a_process(4242)


class _Duplicates:
    def assign(self, problem):
        return [[0, 1], [1, 2], [3, 4], [5, 0]]


class _Misses:
    def assign(self, problem):
        return [[0, 1], [2, 3], [4, 5], [6]]


class _Unsorted:
    def assign(self, problem):
        from fm3_planner import Assignment

        return Assignment(chunks_by_rank=[[0, 1], [3, 2], [4, 5], [6, 7]])


class _Uneven:
    def assign(self, problem):
        return [[0, 1, 2, 3, 4], [5], [6], [7]]


class _Drifts:
    """Answers another plan each time."""

    calls = itertools.count(1)

    def assign(self, problem):
        shift = next(self.calls)
        return np.roll(np.arange(8), shift).reshape(4, 2)


class _Writes:
    def assign(self, problem):
        problem.weights.flags.writeable = True
        problem.weights[0] += 1
        return np.arange(8).reshape(4, 2)


@pytest.mark.parametrize(
    ("planner", "message"),
    [
        (_Duplicates(), "planner '_Duplicates': chunk 1 is a duplicate: rank 0 has it and rank 1 again"),
        (_Misses(), "planner '_Misses': chunk 7 is missing: .*rank 3 has the fewest chunks"),
        (_Unsorted(), "planner '_Unsorted': rank 1 is unsorted: chunk 2 follows chunk 3"),
        (_Uneven(), "planner '_Uneven': rank 0 has 5 chunks"),
    ],
)
@pytest.mark.parametrize(
    "rule",
    [
        require_equal_counts,
        require_repeatable,
        require_above_bounds,
        require_checked,
        require_arrays_untouched,
    ],
)
def test_a_plug_in_with_a_wrong_answer_is_refused_by_name_under_every_rule(rule, planner, message):
    with pytest.raises(Fm3Error, match=message):
        rule(planner, PROBLEMS["all weights equal"])


def test_a_plug_in_that_drifts_is_caught():
    with pytest.raises(AssertionError):
        require_repeatable(_Drifts(), PROBLEMS["all weights equal"])


def test_a_plug_in_that_writes_into_the_problem_is_caught():
    problem = _problem([7] * 8, 4, 2)
    with pytest.raises((AssertionError, ValueError)):
        require_arrays_untouched(_Writes(), problem)
