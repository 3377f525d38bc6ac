"""The comparison itself must fail when it should."""

from __future__ import annotations

import math

import pytest
import torch
from attention_compare import assert_near, difference

TRUTH = torch.tensor([[1.0, -math.inf], [3.0, 4.0]], dtype=torch.float64)
PLAIN = 0.001


def test_a_result_within_twice_the_plain_error_passes() -> None:
    assert difference("x", torch.tensor([[1.0, -math.inf], [3.0015, 4.0]]), TRUTH, PLAIN) is None


def test_a_result_beyond_it_fails_and_names_the_worst_position() -> None:
    message = difference("x", torch.tensor([[1.0, -math.inf], [3.5, 4.01]]), TRUTH, PLAIN)
    assert message is not None
    assert "x: error 0.5 at (1, 0)" in message
    assert "2 of 4 entries" in message


def test_an_oracle_that_is_nan_fails_even_where_the_result_is_nan_too() -> None:
    nan = torch.full((2, 2), math.nan)
    with pytest.raises(AssertionError, match=r"the oracle is NaN at \(0, 0\)"):
        assert_near("x", nan, nan, 1.0)


def test_a_result_that_is_nan_fails() -> None:
    message = difference("x", torch.tensor([[1.0, -math.inf], [math.nan, 4.0]]), TRUTH, PLAIN)
    assert message == "x: the result is NaN at (1, 0)"


@pytest.mark.parametrize("wrong", [math.inf, 0.0])
def test_infinities_must_agree_in_place_and_sign(wrong: float) -> None:
    message = difference("x", torch.tensor([[1.0, wrong], [3.0, 4.0]]), TRUTH, PLAIN)
    assert message is not None
    assert "infinities disagree at (0, 1)" in message


def test_an_infinite_result_where_the_oracle_is_finite_fails() -> None:
    message = difference("x", torch.tensor([[math.inf, -math.inf], [3.0, 4.0]]), TRUTH, PLAIN)
    assert message is not None
    assert "infinities disagree at (0, 0)" in message


def test_shapes_must_agree() -> None:
    assert difference("x", torch.zeros(2), TRUTH, PLAIN) == "x: shape (2,), the oracle's is (2, 2)"
