"""A seeded scheduler that carries out non-blocking operations in the worst order that is allowed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

Action = Callable[[], None]

_LAZY_SHARE = 0.2
_LAZY_CHANCE = 0.02


@dataclass(eq=False)
class _Operation:
    owner: object
    pieces: list[Action]
    signal: Action | None
    is_lazy: bool


class AdversarialSchedule:
    """Operations under way, each in pieces and with a signal that comes last.

    Which operation makes its next step, and which of its pieces, is drawn at random; every fifth operation is
    lazy: of fifty draws it takes one. Nothing is dropped.

    Args:
        seed: of the draws.
    """

    def __init__(self, seed: int) -> None:
        """Start with nothing under way."""
        self.random = random.Random(seed)
        self._pending: list[_Operation] = []
        self._by_owner: Counter[object] = Counter()

    def __len__(self) -> int:
        """Operations under way."""
        return len(self._pending)

    def add(self, owner: object, pieces: list[Action], signal: Action | None) -> None:
        """Put an operation under way."""
        if pieces or signal is not None:
            is_lazy = self.random.random() < _LAZY_SHARE
            self._pending.append(_Operation(owner, pieces, signal, is_lazy))
            self._by_owner[owner] += 1

    def holds(self, owner: object) -> bool:
        """Say whether an operation of `owner` is under way."""
        return self._by_owner[owner] > 0

    def tick(self) -> None:
        """Make one step of some operation, or of none where a lazy one was drawn."""
        if self._pending:
            drawn = self.random.randrange(len(self._pending))
            if not self._pending[drawn].is_lazy or self.random.random() < _LAZY_CHANCE:
                self._step(drawn)

    def finish(self, owner: object) -> None:
        """Make all steps of `owner`'s operations, in a random order, others' steps among them."""
        while self.holds(owner):
            mine = [i for i, operation in enumerate(self._pending) if operation.owner == owner]
            self._step(self.random.choice(mine))
            if self.random.random() < 0.25:
                self.tick()

    def _step(self, index: int) -> None:
        operation = self._pending[index]
        if operation.pieces:
            operation.pieces.pop(self.random.randrange(len(operation.pieces)))()
        elif operation.signal is not None:
            operation.signal()
            operation.signal = None
        if not operation.pieces and operation.signal is None:
            self._pending[index] = self._pending[-1]
            self._pending.pop()
            self._by_owner[operation.owner] -= 1
