"""What `start_gather` and `start_reduce` return."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from torch import Tensor

Arrived = TypeVar("Arrived")


class Assembly(Generic[Arrived]):
    """A Pending that waits for what arrives and puts it together, once.

    Args:
        arrive: blocks until everything is here.
        assemble: makes the result of them.
    """

    def __init__(
        self, arrive: Callable[[], Arrived], assemble: Callable[[Arrived], tuple[Tensor, Tensor]]
    ) -> None:
        """Hold both until `wait`."""
        self._todo: tuple[Callable[[], Arrived], Callable[[Arrived], tuple[Tensor, Tensor]]] | None = (
            arrive,
            assemble,
        )
        self._result: tuple[Tensor, Tensor] | None = None
        self._error: Exception | None = None
        self._lock = threading.Lock()

    def wait(self) -> tuple[Tensor, Tensor]:
        """Return the result; an error is raised again on every call."""
        with self._lock:
            if self._todo is not None:
                arrive, assemble = self._todo
                self._todo = None
                try:
                    self._result = assemble(arrive())
                except Exception as error:
                    self._error = error
            if self._error is not None:
                raise self._error
            assert self._result is not None
            return self._result
