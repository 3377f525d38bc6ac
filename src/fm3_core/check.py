"""Argument checks whose messages name the object, the value and the rule."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fm3_core.errors import Fm3Error, MaskError


def require_int(
    name: str,
    value: Any,
    *,
    minimum: int = 0,
    maximum: int | None = None,
    error: type[Fm3Error] = MaskError,
) -> int:
    """Return `value` as an int, or raise `error` naming it.

    Args:
        name: what the value is, as the caller calls it.
        value: a Python or numpy integer; bool and float are refused.
        minimum: smallest value allowed.
        maximum: largest value allowed, None for no limit.
        error: the class that is raised.
    """
    if type(value) is int and minimum <= value and (maximum is None or value <= maximum):
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise error(f"{name} must be an integer, got {value!r} ({type(value).__name__})")
    number = int(value)
    if number < minimum or (maximum is not None and number > maximum):
        raise error(f"{name} must be {_rule(minimum, maximum)}, got {number}")
    return number


def require_ints(
    name: str,
    values: Any,
    *,
    minimum: int = 0,
    maximum: int | None = None,
    error: type[Fm3Error] = MaskError,
) -> NDArray[np.int64]:
    """Return `values` as a new int64 array [values], or raise `error` naming the first that is wrong.

    Args:
        name: what the values are, as the caller calls them.
        values: a sequence or array of integers, any integer dtype; empty ones may have any dtype.
        minimum: smallest value allowed.
        maximum: largest value allowed, None for what int64 holds.
        error: the class that is raised.
    """
    array = as_array(name, values, error=error)
    if array.ndim != 1:
        raise error(f"{name} must be a sequence of integers, got {_kind(values, array)}")
    if not np.issubdtype(array.dtype, np.integer):
        for i, value in enumerate(values):
            require_int(f"{name}[{i}]", value, minimum=minimum, maximum=maximum, error=error)
        if array.size:
            raise error(f"{name} must be a sequence of integers, got {_kind(values, array)}")
    most = np.iinfo(np.int64).max if maximum is None else maximum
    wrong = np.flatnonzero((array < minimum) | (array > most))
    if wrong.size:
        i = int(wrong[0])
        rule = _rule(minimum, most if array[i] > most else maximum)
        raise error(f"{name}[{i}] must be {rule}, got {array[i]} ({wrong.size} of {array.size} are wrong)")
    return array.astype(np.int64)


def as_array(name: str, values: Any, *, error: type[Fm3Error] = MaskError) -> NDArray[Any]:
    """Return `values` as a numpy array; values that make none (rows of unequal lengths) raise `error`."""
    try:
        return np.asarray(values)
    except (ValueError, TypeError) as failure:
        raise error(f"{name} cannot be read as an array: {failure}") from failure


def _rule(minimum: int, maximum: int | None) -> str:
    if maximum is None:
        return f">= {minimum}"
    return (
        f"in {minimum}..{maximum}"
        if minimum <= maximum
        else f"in {minimum}..{maximum}, which holds no number"
    )


def _kind(values: Any, array: NDArray[Any]) -> str:
    return f"{array.dtype} {array.shape}" if isinstance(values, np.ndarray) else repr(values)[:80]
