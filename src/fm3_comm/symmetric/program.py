"""Protocols as programs: generators that yield what they wait for.

A program never blocks. Who runs it decides how: `Engine` in a thread, with timeouts; `simulate` many
ranks in one thread, in an order drawn at random.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias, TypeVar

from fm3_comm.symmetric.memory import SymmetricBuffer, SymmetricMemory

R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class Until:
    """A word of this rank reaches a value.

    Args:
        buffer: where the word is.
        word: its number.
        value: the least value that will do, unsigned.
        peer: the rank that brings it there; this rank for what its own caller does.
        what: what that means, for messages.
    """

    buffer: SymmetricBuffer
    word: int
    value: int
    peer: int
    what: str

    def reached(self, memory: SymmetricMemory) -> bool:
        """Look at the word."""
        return memory.read(self.buffer, self.word) >= self.value


@dataclass(frozen=True, eq=False)
class AnyOf:
    """At least one of several is reached."""

    untils: tuple[Until, ...]

    def reached(self, memory: SymmetricMemory) -> bool:
        """Look at every word."""
        return any(until.reached(memory) for until in self.untils)


class Quiet(Enum):
    """What this rank has started is done."""

    QUIET = "quiet"


QUIET = Quiet.QUIET

Event: TypeAlias = AnyOf | Quiet
Program: TypeAlias = Generator[Event, None, R]
