"""All ranks' programs in one thread, in an order drawn from the in-process world's seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from fm3_comm.symmetric.in_process import InProcessMemory, InProcessWorld
from fm3_comm.symmetric.program import AnyOf, Event, Program
from fm3_core import ExchangeError

R = TypeVar("R")

_MOST_TICKS = 4


def interleave(world: InProcessWorld, programs: Sequence[Program[R]]) -> list[R]:
    """Run one program a rank to its end and return the results by rank; the same for the same seed.

    Args:
        world: whose memories the programs use.
        programs: one a rank.

    Raises:
        ExchangeError: a deadlock: it says what each rank waits for. Whatever a program raises.
    """
    draws = world.schedule.random
    memories = world.memories()
    results: dict[int, R] = {}
    waiting: dict[int, Event] = {}

    def advance(rank: int) -> None:
        try:
            waiting[rank] = next(programs[rank])
        except StopIteration as end:
            waiting.pop(rank, None)
            results[rank] = end.value

    for rank in draws.sample(range(len(programs)), len(programs)):
        advance(rank)
    while waiting:
        rank = draws.choice(list(waiting))
        if _reached(waiting[rank], memories[rank]):
            advance(rank)
        elif len(world.schedule):
            for _ in range(draws.randint(1, _MOST_TICKS)):
                world.schedule.tick()
        elif not any(_reached(event, memories[other]) for other, event in waiting.items()):
            raise ExchangeError("deadlock: " + "; ".join(_describe(r, e) for r, e in sorted(waiting.items())))
    return [results[rank] for rank in range(len(programs))]


def _reached(event: Event, memory: InProcessMemory) -> bool:
    if isinstance(event, AnyOf):
        return event.reached(memory)
    return memory.is_quiet()


def _describe(rank: int, event: Event) -> str:
    if isinstance(event, AnyOf):
        return f"rank {rank} waits for " + " or ".join(until.what for until in event.untils[:3])
    return f"rank {rank} waits for its own operations"
