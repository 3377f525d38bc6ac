"""A problem is plain integers; whatever is not is refused by name."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fm3_core import Cluster, ColumnMask, PlanError
from fm3_planner import PlanProblem

INT64_MAX = 2**63 - 1


def _fields(**changes):
    fields = {
        "weights": np.array([3, 1, 2, 5]),
        "needs": np.eye(4, dtype=bool),
        "chunk_bytes": np.array([8, 8, 8, 4]),
        "cluster": Cluster(2),
        "num_tokens": 7,
        "chunk_size": 2,
        "fingerprint": "abc",
    }
    return fields | changes


def test_a_valid_problem_has_its_numbers():
    problem = PlanProblem(**_fields())
    assert (problem.num_chunks, problem.num_ranks, problem.chunks_per_rank) == (4, 2, (2, 0))
    assert problem.weights.dtype == np.int64
    assert problem.chunk_bytes.tolist() == [8, 8, 8, 4]
    assert problem.fingerprint == "abc"


def test_fields_may_be_given_by_position_in_the_documented_order():
    problem = PlanProblem([1, 2], np.eye(2, dtype=bool), [4, 4], Cluster(2), 2, 1, "f")
    assert (problem.weights.tolist(), problem.chunk_size, problem.fingerprint) == ([1, 2], 1, "f")


def test_small_unsigned_and_signed_integers_become_int64():
    problem = PlanProblem(
        **_fields(weights=np.array([1, 2, 3, 4], np.uint8), chunk_bytes=np.zeros(4, np.int16))
    )
    assert (problem.weights.dtype, problem.chunk_bytes.dtype) == (np.int64, np.int64)


def test_a_problem_is_frozen_and_keeps_no_reference_to_the_callers_arrays():
    weights, needs = np.array([3, 1, 2, 5]), np.eye(4, dtype=bool)
    problem = PlanProblem(**_fields(weights=weights, needs=needs))
    weights[0], needs[0, 1] = 99, True
    assert problem.weights[0] == 3
    assert not problem.needs[0, 1]
    with pytest.raises(dataclasses.FrozenInstanceError):
        problem.chunk_size = 1
    with pytest.raises(ValueError, match="read-only"):
        problem.weights[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        problem.needs[0, 0] = False


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"weights": [3, -1, 2, -5]},
            r"weights\[1\] must be an integer in 0..\d+, got -1 \(2 of 4 are wrong\)",
        ),
        ({"weights": [3, 1.0, 2, 5]}, r"weights\[1\] must be an integer .*, got 1.0 \(1 of 4"),
        ({"weights": [3, float("nan"), 2, 5]}, r"weights\[1\] must be an integer .*, got nan"),
        ({"weights": [3, True, 2, 5]}, r"weights\[1\] must be an integer .*, got True"),
        (
            {"weights": [3, 2**63, 2, 5]},
            r"weights\[1\] must be an integer in 0..9223372036854775807, got 92233",
        ),
        ({"weights": np.array([1.0, 2, 3, 4])}, "weights must be integers, got an array of float64"),
        ({"weights": np.array([1, 0, 1, 1], bool)}, "weights must be integers, got an array of bool"),
        ({"weights": np.array([1, 2, 3, 2**63], np.uint64)}, r"weights\[3\] must be an integer in 0"),
        ({"weights": [1, 2, 3]}, r"weights must have shape \[4\], one value a chunk, got \[3\]"),
        (
            {"weights": np.ones((2, 2), int)},
            r"weights must have shape \[4\], one value a chunk, got \[2, 2\]",
        ),
        ({"weights": 7}, "weights must be a vector of integers, got 7"),
        ({"weights": []}, r"weights must have shape \[4\], one value a chunk, got \[0\]"),
        ({"chunk_bytes": [8, 8, -8, 4]}, r"chunk_bytes\[2\] must be an integer in 0"),
        ({"chunk_bytes": [8, 8, 8]}, r"chunk_bytes must have shape \[4\], one value a chunk, got \[3\]"),
        ({"needs": np.eye(4, dtype=int)}, "needs must be bool, got int64"),
        ({"needs": np.ones((4, 3), bool)}, r"needs must have shape \[4, 4\], got \[4, 3\]"),
        (
            {"needs": [[True], [True, False]]},
            r"needs must be a bool matrix \[4, 4\], got rows of unequal length",
        ),
        ({"cluster": 2}, "cluster must be a Cluster, got int"),
        ({"num_tokens": 0}, "num_tokens must be >= 1, got 0"),
        ({"num_tokens": 7.0}, r"num_tokens must be an integer, got 7.0 \(float\)"),
        ({"chunk_size": 0}, "chunk_size must be >= 1, got 0"),
        ({"chunk_size": True}, r"chunk_size must be an integer, got True \(bool\)"),
        ({"fingerprint": 5}, "fingerprint must be a string, got 5"),
        ({"cluster": Cluster(5)}, "7 tokens in chunks of 2 are 4 chunks, fewer than the 5 ranks"),
    ],
)
def test_a_field_that_breaks_its_rule_is_refused_by_name(changes, message):
    with pytest.raises(PlanError, match=message):
        PlanProblem(**_fields(**changes))


def test_weights_whose_sum_overflows_int64_are_refused():
    with pytest.raises(PlanError, match=f"weights sum to {2 * INT64_MAX}, more than int64 holds"):
        PlanProblem(**_fields(weights=[INT64_MAX, INT64_MAX, 0, 0]))


def test_weights_whose_sum_just_fits_int64_are_planned_exactly():
    problem = PlanProblem(**_fields(weights=[INT64_MAX - 3, 1, 1, 1]))
    assert problem.weights.tolist() == [INT64_MAX - 3, 1, 1, 1]


def test_bytes_whose_traffic_overflows_int64_are_refused():
    with pytest.raises(PlanError, match=r"chunk_bytes sum to .* over 2 ranks, more than int64 holds"):
        PlanProblem(**_fields(chunk_bytes=[INT64_MAX // 2, 9, 0, 0]))


def test_a_mask_without_entries_or_heads_is_refused():
    nothing = np.zeros((0, 1, 8), dtype=np.int32)
    mask = ColumnMask(nothing, nothing, nothing, nothing, num_rows=8)
    with pytest.raises(PlanError, match="mask 0 has batch 0 and 1 heads; there is nothing to plan"):
        PlanProblem.from_mask(mask, chunk_size=2, num_ranks=2)
