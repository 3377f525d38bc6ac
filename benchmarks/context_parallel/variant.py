"""`Variant`: one way to share a sequence among ranks, and the lists of those that are compared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from context_parallel.job import has_segments

PLANNERS = ("contiguous", "zigzag", "lpt", "hcc_ipo")
BASELINES = ("all-gather zigzag", "ring zigzag")
BALANCED, UNBALANCED = "hcc_ipo", "contiguous"


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A step of this project with some of its ideas.

    Args:
        planner: a planner's name.
        backend: a backend's name.
        overlap: whether attention starts before all keys are here.
        pruning: whether only what a rank's rows see moves; without it all chunks go to all ranks.
        ranks_per_node: ranks of a pretended node, None where all are on one.
        route: a name in `fm3_comm.routes`.
        segments: of a reduction, None for the backend's own number.
    """

    planner: str
    backend: str
    overlap: bool = True
    pruning: bool = True
    ranks_per_node: int | None = None
    route: str = "flat"
    segments: int | None = None

    @property
    def name(self) -> str:
        """The choices in words."""
        words = [self.planner, self.backend]
        words += ["overlap" if self.overlap else "waiting", "pruned" if self.pruning else "everything"]
        words += [] if self.ranks_per_node is None else [f"nodes of {self.ranks_per_node}", self.route]
        words += [] if self.segments is None else [f"{self.segments} segment"]
        return " ".join(words)


def grid(planners: list[str], backends: list[str]) -> list[Variant]:
    """Return every planner with every backend, with overlap and pruning and without."""
    return [
        Variant(planner=planner, backend=backend, overlap=overlap, pruning=pruning)
        for backend, planner, overlap, pruning in product(backends, planners, (True, False), (True, False))
    ]


def ablations(backend: str, num_ranks: int) -> dict[str, Variant]:
    """Return by what is lacking ("" is nothing) a variant on two pretended nodes.

    Pretended nodes share one host: what a route saves between nodes is counted in bytes and hardly seen in
    time.

    Args:
        backend: the backend of all of them.
        num_ranks: ranks; half of them, rounded up, make a node.
    """
    whole = Variant(
        planner=BALANCED, backend=backend, ranks_per_node=-(-num_ranks // 2), route="hierarchical"
    )
    lacking = {
        "": whole,
        "hierarchical routing": replace(whole, route="flat"),
        "pruning": replace(whole, pruning=False),
        "balancing": replace(whole, planner=UNBALANCED),
    }
    return lacking | ({"segments": replace(whole, segments=1)} if has_segments(backend) else {})
