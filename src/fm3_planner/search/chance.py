"""The one source of chance: a 64-bit linear congruential generator, the same on every machine."""

from __future__ import annotations

_MULTIPLIER, _INCREMENT = 6364136223846793005, 1442695040888963407  # Knuth's MMIX


class Chance:
    """Numbers that follow from a seed."""

    def __init__(self, seed: int) -> None:
        """Start at a seed of 0..2^64-1."""
        self._state = seed

    def next(self) -> int:
        """Return the upper half of the next state, 0..2^32-1."""
        self._state = (self._state * _MULTIPLIER + _INCREMENT) & 0xFFFF_FFFF_FFFF_FFFF
        return self._state >> 32

    def below(self, limit: int) -> int:
        """Return a number of 0..limit-1."""
        return (self.next() * limit) >> 32
