"""Argument checks whose messages name the object, the value and the rule."""

from __future__ import annotations

import numbers
from typing import Any

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
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise error(f"{name} must be an integer, got {value!r} ({type(value).__name__})")
    number = int(value)
    if number < minimum or (maximum is not None and number > maximum):
        rule = f">= {minimum}" if maximum is None else f"in {minimum}..{maximum}"
        raise error(f"{name} must be {rule}, got {number}")
    return number
