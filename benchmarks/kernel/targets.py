"""`Target`: a figure that the kernels are to reach, and how far a file of results is from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kernel.peers import (
    DIM_64,
    PASSES,
    SCORED_LENGTHS,
    USUAL,
    YARDSTICK,
    Rates,
    peer_figures,
    peer_rates,
    scaled,
)
from kernel.results import Results, geometric_mean, ratios
from kernel.table import best_here, length_name

NOISE = 0.03
"""A repeat moves figures by this much."""


@dataclass(frozen=True)
class Standing:
    """How far a target is: value, what it is of, and its worth; "not measured" where nothing was."""

    title: str
    aim: str
    value: str = "not measured"
    kind: str = ""
    worth: str = ""

    def line(self) -> str:
        """Return all of it in a line."""
        measured = f" {self.value} ({self.kind}): {self.worth}" if self.worth else f" {self.value}"
        return f"{self.title}{measured} ({self.aim})"


@dataclass(frozen=True, kw_only=True)
class Target:
    """A ratio to reach, on some cells.

    Attributes:
        what: the cells, in words.
        against: "best peer", or an engine's name in the same file.
        must: least ratio.
        reach: ratio to aim at, None where there is no other.
        masks: of the cells, None for all.
        lengths: of the cells.
        passes: each is a line of its own.
        mean: the geometric mean is meant, else the least ratio.
        shape: of the tensors.
        engine: whose.
    """

    what: str
    against: str
    must: float
    reach: float | None = None
    masks: tuple[str, ...] | None = None
    lengths: tuple[int, ...] = SCORED_LENGTHS
    passes: tuple[str, ...] = PASSES
    mean: bool = False
    shape: Mapping[str, Any] = field(default_factory=lambda: USUAL)
    engine: str = "fm3"

    def ratios(self, results: Results, which: str) -> Rates:
        """Return the ratios of a pass on the target's cells."""
        mine = results.rates(self.engine, which, self.shape)
        if self.against == "best peer":
            theirs = best_here(results, self.shape, which)
        else:
            theirs = results.rates(self.against, which, self.shape)
        return {
            cell: ratio
            for cell, ratio in ratios(mine, theirs).items()
            if cell[1] in self.lengths and (self.masks is None or cell[0] in self.masks)
        }

    def standing(self, results: Results, which: str) -> Standing:
        """Return the ratio of a pass, where it is least, and what that is worth."""
        found = self.ratios(results, which)
        title = f"{self.what}, {which}: {self.engine} / {self.against}"
        aim = f"must {self.must:.2f}" + (f", reach {self.reach:.2f}" if self.reach is not None else "")
        if not found:
            return Standing(title, aim)
        worst = min(found, key=found.__getitem__)
        value = geometric_mean(list(found.values())) if self.mean else found[worst]
        assert value is not None
        kind = f"mean of {len(found)}, least {found[worst]:.2f}" if self.mean else f"least of {len(found)}"
        kind += f" at {worst[0]} {length_name(worst[1])}{self._source(results, which, found)}"
        return Standing(title, aim, f"{value:.3f}", kind, verdict(value, self.must, self.reach))

    def _source(self, results: Results, which: str, found: Rates) -> str:
        """Return how many cells' peers were scaled, or how many have both engines timed in runs apart."""
        if self.against != "best peer":
            apart = _cells_apart(results, self, which, found)
            return f"; {apart} timed in runs apart" if apart else ""
        reference = set(peer_rates(self.shape, which, YARDSTICK)) & set(
            results.rates("flex", which, self.shape)
        )
        return f"; {len(reference & set(found))} scaled by FlexAttention here"


def _cells_apart(results: Results, target: Target, which: str, found: Rates) -> int:
    runs = [
        {
            (other["cell"], other["tokens"]): other["run"].get(which)
            for other in results.of_shape(engine, target.shape)
        }
        for engine in (target.engine, target.against)
    ]
    return sum(runs[0].get(cell) != runs[1].get(cell) for cell in found)


def verdict(value: float, must: float, reach: float | None) -> str:
    """Return what a ratio is worth; within the noise of what it must be is said as such."""
    if reach is not None and value >= reach:
        return "REACHED"
    if value >= must:
        return "met"
    return "within noise of must" if value >= must * (1 - NOISE) else "NOT MET"


TARGETS = (
    Target(what="every cell", against="flex", must=1.0),
    Target(what="full and causal", against="cudnn", must=1.0, masks=("full", "causal")),
    Target(what="all cells", against="best peer", must=0.95, reach=1.10, mean=True),
    *(
        Target(
            what="full 32K",
            against="best peer",
            must=0.97,
            reach=reach,
            masks=("full",),
            lengths=(32768,),
            passes=(which,),
        )
        for which, reach in (("forward", 740 / 706), ("backward", 660 / 629))
    ),
    Target(
        what="share question, window, causal document 8K",
        against="best peer",
        must=1.0,
        reach=1.25,
        masks=("share_question", "sliding_window", "causal_document"),
        lengths=(8192,),
    ),
    Target(what="random eviction", against="best peer", must=1.0, reach=1.3, masks=("random_eviction",)),
    Target(
        what="deterministic",
        against="any_order",
        must=0.80,
        reach=0.90,
        passes=("backward",),
        mean=True,
    ),
    Target(what="head dim 64", against="best peer", must=0.9, reach=1.05, shape=DIM_64),
)

PREPARED_WITHIN_US, PREPARED_REACH_US, PREPARED_TOKENS = 50, 20, 131072


def preparation(results: Results) -> Standing:
    """Return the longest time that preparing a mask of 128K tokens and one head takes."""
    times = [
        sum(other["prepare_seconds"].values()) * 1e6
        for other in results.of_shape("fm3", USUAL)
        if other["tokens"] == PREPARED_TOKENS and other.get("prepare_seconds") and other["mask_heads"] == 1
    ]
    title = "preparing a mask of 128K tokens and one head, for both passes, us"
    aim = f"must {PREPARED_WITHIN_US}, reach {PREPARED_REACH_US}"
    if not times:
        return Standing(title, aim)
    longest = max(times)
    word = verdict(PREPARED_REACH_US / longest, PREPARED_REACH_US / PREPARED_WITHIN_US, 1.0)
    return Standing(title, aim, f"{longest:.1f}", f"longest of {len(times)}", word)


def standings(results: Results) -> list[Standing]:
    """Return where every target stands, pass by pass."""
    found = [target.standing(results, which) for target in TARGETS for which in target.passes]
    return [*found, preparation(results)]


def peer_means(results: Results, shape: Mapping[str, Any]) -> list[str]:
    """Return a line a peer: the geometric means of fm3's ratios to it, each pass over the cells of both."""
    lines = []
    for peer in dict.fromkeys(name for engines in peer_figures(shape).values() for name in engines):
        parts = []
        for which in PASSES:
            yardstick = results.rates("flex", which, shape)
            theirs = scaled(peer_rates(shape, which, peer), shape, which, yardstick)
            found = ratios(results.rates("fm3", which, shape), theirs)
            mean = geometric_mean(list(found.values()))
            here = sum(cell in yardstick for cell in found)
            if mean is not None:
                parts.append(f"{which} {mean:.3f} over {len(found)} cells, {here} of them scaled")
        lines.append(f"fm3 / {peer}, published: " + ("; ".join(parts) or "not measured"))
    return lines


def summary(results: Results, shape: Mapping[str, Any]) -> list[str]:
    """Return lines: geometric means over each peer, then every target."""
    return [*peer_means(results, shape), "", *(standing.line() for standing in standings(results))]
