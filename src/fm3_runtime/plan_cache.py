"""The last few plans, by the fingerprint of their mask."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PlanCache(Generic[T]):
    """Keeps the values that were asked for last.

    Args:
        capacity: values kept, at least 1.
    """

    def __init__(self, capacity: int) -> None:
        """Start empty."""
        assert capacity >= 1
        self._capacity = capacity
        self._values: OrderedDict[str, T] = OrderedDict()

    def get(self, key: str, make: Callable[[], T]) -> T:
        """Return the value kept under `key`, made now if there is none."""
        if key not in self._values:
            self._values[key] = make()
            while len(self._values) > self._capacity:
                self._values.popitem(last=False)
        self._values.move_to_end(key)
        return self._values[key]

    def __len__(self) -> int:
        """Count the values kept."""
        return len(self._values)
