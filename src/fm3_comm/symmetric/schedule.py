"""A seeded scheduler that carries out non-blocking operations in the worst order that is allowed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

Action = Callable[[], None]

_LAZY_SHARE = 0.2
_LAZY_WEIGHT = 0.02


@dataclass
class _Operation:
    owner: object
    pieces: list[Action]
    signal: Action | None
    weight: float


class AdversarialSchedule:
    """Operations under way, each in pieces and with a signal that comes last.

    Which operation makes its next step, and which of its pieces, is drawn at random; every fifth operation is
    lazy: it is drawn fifty times less often. Nothing is dropped.

    Args:
        seed: of the draws.
    """

    def __init__(self, seed: int) -> None:
        """Start with nothing under way."""
        self.random = random.Random(seed)
        self._pending: list[_Operation] = []

    def __len__(self) -> int:
        """Operations under way."""
        return len(self._pending)

    def add(self, owner: object, pieces: list[Action], signal: Action | None) -> None:
        """Put an operation under way."""
        if pieces or signal is not None:
            weight = _LAZY_WEIGHT if self.random.random() < _LAZY_SHARE else 1.0
            self._pending.append(_Operation(owner, pieces, signal, weight))

    def holds(self, owner: object) -> bool:
        """Say whether an operation of `owner` is under way."""
        return any(operation.owner == owner for operation in self._pending)

    def tick(self) -> None:
        """Make one step of some operation."""
        if self._pending:
            weights = [operation.weight for operation in self._pending]
            self._step(self.random.choices(self._pending, weights)[0])

    def finish(self, owner: object) -> None:
        """Make all steps of `owner`'s operations, in a random order, others' steps among them."""
        while mine := [operation for operation in self._pending if operation.owner == owner]:
            self._step(self.random.choice(mine))
            if self.random.random() < 0.25:
                self.tick()

    def _step(self, operation: _Operation) -> None:
        if operation.pieces:
            operation.pieces.pop(self.random.randrange(len(operation.pieces)))()
        elif operation.signal is not None:
            operation.signal()
            operation.signal = None
        if not operation.pieces and operation.signal is None:
            self._pending.remove(operation)
