"""All ranks' programs in one thread, in an order drawn from the in-process world's seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from torch import Tensor

from fm3_comm.backend import Pending
from fm3_comm.symmetric.backend import SymmetricBackend, SymmetricOptions
from fm3_comm.symmetric.in_process import InProcessMemory, InProcessWorld
from fm3_comm.symmetric.program import AnyOf, Event, Program
from fm3_core import ExchangeError

R = TypeVar("R")

_TICKS = 4
_TICKS_SHARE = 0.1


class Recorder:
    """A runner that keeps programs until `program` is run."""

    def __init__(self) -> None:
        """Keep nothing yet."""
        self.stopped: str | None = None
        self._recorded: list[tuple[Future[Any], Callable[[], Program[Any]]]] = []

    def start(self, what: str, program: Callable[[], Program[R]]) -> Future[R]:
        """Keep a program; its result will be in the future."""
        future: Future[R] = Future()
        self._recorded.append((future, program))
        return future

    def program(self) -> Program[None]:
        """Run what was kept, in order."""
        for future, program in self._recorded:
            result = yield from program()
            future.set_result(result)

    def stop(self, reason: str) -> None:
        """Refuse what comes later."""
        self.stopped = reason

    def close(self) -> None:
        """Nothing runs."""


def simulate(
    num_ranks: int,
    start: Callable[[SymmetricBackend], Sequence[Pending]],
    *,
    seed: int,
    options: SymmetricOptions = SymmetricOptions(),  # noqa: B008  frozen
    change: Callable[[Program[None]], Program[None]] = lambda program: program,
) -> list[list[tuple[Tensor, Tensor]]]:
    """Run the symmetric backend's protocol for P ranks in this thread, the same for the same seed.

    Args:
        num_ranks: P.
        start: starts a rank's operations, without waiting for them, and returns them.
        seed: of the order in which ranks and their non-blocking operations advance.
        options: of the backend.
        change: wraps each rank's program, to try other protocols.

    Returns:
        list: by rank, the result of each of its operations.
    """
    world = InProcessWorld(num_ranks, seed)
    recorders = [Recorder() for _ in range(num_ranks)]
    handles = [
        SymmetricBackend(memory, timeout_seconds=0.0, options=options, engine=lambda _, r=recorder: r)  # type: ignore[misc]
        for memory, recorder in zip(world.memories(), recorders, strict=True)
    ]
    started = [start(handle) for handle in handles]
    interleave(world, [change(recorder.program()) for recorder in recorders])
    return [[pending.wait() for pending in operations] for operations in started]


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
            for _ in range(draws.randint(1, max(_TICKS, int(_TICKS_SHARE * len(world.schedule))))):
                world.schedule.tick()
        else:
            ready = [other for other, event in waiting.items() if _reached(event, memories[other])]
            if not ready:
                texts = [_describe(other, event) for other, event in sorted(waiting.items())]
                raise ExchangeError("deadlock: " + "; ".join(texts))
            advance(draws.choice(ready))
    return [results[rank] for rank in range(len(programs))]


def _reached(event: Event, memory: InProcessMemory) -> bool:
    if isinstance(event, AnyOf):
        return event.reached(memory)
    return memory.is_quiet()


def _describe(rank: int, event: Event) -> str:
    if isinstance(event, AnyOf):
        return f"rank {rank} waits for " + " or ".join(until.what for until in event.untils[:3])
    return f"rank {rank} waits for its own operations"
