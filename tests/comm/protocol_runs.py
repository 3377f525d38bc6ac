"""Sequences of operations under the simulated protocol, and their right results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from fm3_comm import ExchangeBackend, hops, loopback
from fm3_comm.symmetric import SymmetricOptions, simulate


def start_all(cases: Sequence, plan: str) -> Callable:
    """Return a rank's starts: for each letter g or r of `plan` the next case's gather or reduction."""

    def start(handle: ExchangeBackend) -> list:
        return [
            _START[letter](handle, cases[index % len(cases)], handle.rank)
            for index, letter in enumerate(plan)
        ]

    return start


def gathers(handle: ExchangeBackend, case, rank: int):
    """Start the gather of a case."""
    return handle.start_gather(case.exchange, *case.local(rank))


def reduces(handle: ExchangeBackend, case, rank: int):
    """Start the reduction of a case."""
    return handle.start_reduce(case.exchange, *case.partials(rank))


_START = {"g": gathers, "r": reduces}


def simulated(cases: Sequence, plan: str, seed: int, segments: int = 4, **options) -> list:
    """Run the plan under the adversarial scheduler; results by rank and operation."""
    return simulate(
        cases[0].num_ranks,
        start_all(cases, plan),
        seed=seed,
        options=SymmetricOptions(backward_segments=segments),
        **options,
    )


def by_loopback(cases: Sequence, plan: str) -> list:
    """Run the plan with messages in memory."""
    start = start_all(cases, plan)
    return loopback.run(cases[0].num_ranks, lambda handle: [p.wait() for p in start(handle)])


def differences(results: list, right: list) -> list[str]:
    """Name each operation whose result is not bitwise the right one, with the worst position."""
    wrong = []
    for rank, (mine, theirs) in enumerate(zip(results, right, strict=True)):
        for index, (pair, expected) in enumerate(zip(mine, theirs, strict=True)):
            for name, tensor, other in zip("kv", pair, expected, strict=True):
                if not torch.equal(tensor, other):
                    off = (tensor.double() - other.double()).abs()
                    wrong.append(f"rank {rank}, operation {index}, {name}: worst at {int(off.argmax())}")
    return wrong


def partners(case, rank: int) -> set[int]:
    """Ranks that a rank exchanges something with."""
    return {
        other
        for hop in hops(case.exchange)
        for other in (hop.source, hop.destination)
        if rank in (hop.source, hop.destination) and other != rank
    }
