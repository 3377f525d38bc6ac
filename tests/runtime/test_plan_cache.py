"""The plan cache keeps the values that were asked for last."""

from __future__ import annotations

import pytest

from fm3_runtime.plan_cache import PlanCache


def test_a_kept_value_is_not_made_again():
    cache: PlanCache[list[int]] = PlanCache(2)
    assert cache.get("a", lambda: [1]) is cache.get("a", lambda: [2])


def test_the_value_asked_for_longest_ago_leaves_first():
    cache: PlanCache[str] = PlanCache(2)
    cache.get("a", lambda: "first a")
    cache.get("b", lambda: "first b")
    cache.get("a", lambda: "never made")
    cache.get("c", lambda: "first c")
    assert len(cache) == 2
    assert cache.get("a", lambda: "second a") == "first a"
    assert cache.get("b", lambda: "second b") == "second b"


def test_a_maker_that_fails_leaves_nothing_behind():
    cache: PlanCache[str] = PlanCache(2)
    with pytest.raises(ZeroDivisionError):
        cache.get("a", lambda: str(1 // 0))
    assert len(cache) == 0
