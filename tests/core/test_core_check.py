"""Checks of single and many integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fm3_core import MaskError, PartitionError
from fm3_core.check import require_int, require_ints


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3), np.int64(3)])
def test_an_integer_of_any_kind_becomes_a_python_int(value):
    assert type(require_int("x", value)) is int
    assert require_int("x", value, minimum=3, maximum=3) == 3


@pytest.mark.parametrize("value", [True, np.True_, 3.0, np.float32(3), "3", None, [3], np.array([3])])
def test_what_is_no_integer_is_refused_with_its_type(value):
    with pytest.raises(MaskError, match=rf"x must be an integer, got .*\({type(value).__name__}\)"):
        require_int("x", value)


@pytest.mark.parametrize(
    ("value", "bounds", "message"),
    [
        (-1, {}, "x must be >= 0, got -1"),
        (0, {"minimum": 1}, "x must be >= 1, got 0"),
        (5, {"maximum": 4}, "x must be in 0..4, got 5"),
        (0, {"maximum": -1}, "x must be in 0..-1, which holds no number, got 0"),
        (2**80, {"maximum": 4}, "x must be in 0..4, got 1208925819614629174706176"),
    ],
)
def test_a_number_out_of_bounds_is_refused_with_the_rule(value, bounds, message):
    with pytest.raises(PartitionError) as caught:
        require_int("x", value, error=PartitionError, **bounds)
    assert str(caught.value) == message


def _taken(values):
    """Return the integers that are taken, or the text of the refusal."""
    try:
        taken = require_ints("x", values, maximum=6)
    except MaskError as refused:
        return str(refused)
    assert taken.dtype == np.int64
    return taken.tolist()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(-3, 9)), st.sampled_from([np.int8, np.int64, list, tuple]))
def test_many_integers_are_taken_iff_each_is(values, form):
    given_values = form(values) if form in (list, tuple) else np.array(values, dtype=form)
    wrong = [i for i, value in enumerate(values) if not 0 <= value <= 6]
    many = f"({len(wrong)} of {len(values)} are wrong)"
    refusal = f"x[{wrong[0]}] must be in 0..6, got {values[wrong[0]]} {many}" if wrong else None
    assert _taken(given_values) == (refusal or values)


def test_many_integers_are_copied():
    values = np.arange(3)
    require_ints("x", values)[0] = 7
    assert values[0] == 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, 2.5], "x[1] must be an integer, got 2.5 (float)"),
        ([1, None], "x[1] must be an integer, got None (NoneType)"),
        ([True, False], "x[0] must be an integer, got True (bool)"),
        (np.array([1.0]), "x[0] must be an integer, got np.float64(1.0) (float64)"),
        ("12", "x must be a sequence of integers, got '12'"),
        (["1"], "x[0] must be an integer, got '1' (str)"),
        (7, "x must be a sequence of integers, got 7"),
        (np.zeros((2, 2), dtype=int), "x must be a sequence of integers, got int64 (2, 2)"),
        ([[1, 2], [3]], None),
        (
            np.array([2**64 - 1], dtype=np.uint64),
            "x[0] must be in 0..9223372036854775807, got 18446744073709551615 (1 of 1 are wrong)",
        ),
        ([2**70], None),
        ({3, 4}, "x must be a sequence of integers, got {3, 4}"),
    ],
)
def test_what_is_no_sequence_of_integers_is_refused(values, message):
    with pytest.raises(MaskError) as caught:
        require_ints("x", values)
    assert str(caught.value) == (message or str(caught.value))
    assert str(caught.value).startswith("x")
