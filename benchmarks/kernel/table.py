"""Tables of results in Markdown: engines beside each other, and what each ablation costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernel.masks import MASKS
from kernel.peers import PASSES, Rates, best_rates, scaled
from kernel.results import Results, geometric_mean, ratios

NOTHING = "-"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table's lines."""
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def length_name(tokens: int) -> str:
    """Return 8192 as 8K."""
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else str(tokens)


def number(rate: float | None) -> str:
    """Return TFLOP/s with three digits or whole."""
    if rate is None:
        return NOTHING
    return f"{rate:.3g}" if rate < 10 else f"{rate:.0f}"


def cells_of(*rates: Rates) -> list[tuple[str, int]]:
    """Return (mask, tokens) of any of these, by length and then as the masks are listed."""
    order = list(MASKS)
    return sorted({cell for rate in rates for cell in rate}, key=lambda cell: (cell[1], order.index(cell[0])))


def best_here(results: Results, shape: Mapping[str, Any], which: str) -> Rates:
    """Return the best published figures, scaled by FlexAttention where it was timed."""
    return scaled(best_rates(shape, which), shape, which, results.rates("flex", which, shape))


def engines_table(results: Results, engines: Sequence[str], shape: Mapping[str, Any]) -> list[str]:
    """Return lines: the passes of each engine that somebody has, the best peer, and fm3's ratio to it.

    A peer's figure is the published one times FlexAttention here over FlexAttention there; where
    FlexAttention was not timed here the published figure stands, with an asterisk.
    """
    rates = {(engine, which): results.rates(engine, which, shape) for engine in engines for which in PASSES}
    shown = [which for which in PASSES if any(rates[engine, which] for engine in engines)]
    best = {which: best_here(results, shape, which) for which in shown}
    flex = results.rates("flex", "forward", shape)
    densities = {
        (other["cell"], other["tokens"]): other["density"]
        for engine in engines
        for other in results.of_shape(engine, shape)
        if "density" in other
    }

    def triple(of: Mapping[str, Rates], cell: tuple[str, int], *, ratio: bool = False) -> str:
        values = [of[which].get(cell) for which in shown]
        if values == [None] * len(shown):
            return NOTHING
        return " / ".join(NOTHING if x is None else f"{x:.2f}" if ratio else number(x) for x in values)

    product = {which: ratios(results.rates("fm3", which, shape), best[which]) for which in shown}
    rows = []
    for cell in cells_of(*rates.values()):
        figures = [triple({which: rates[engine, which] for which in shown}, cell) for engine in engines]
        mark = "" if cell in flex else "*"
        peer = triple(best, cell)
        rows.append(
            [
                cell[0],
                length_name(cell[1]),
                f"{densities[cell]:.3f}" if cell in densities else NOTHING,
                *figures,
                peer if peer == NOTHING else peer + mark,
                triple(product, cell, ratio=True),
            ]
        )
    head = ["mask", "tokens", "density", *engines, "best peer", "fm3 / best peer"]
    return [*markdown(head, rows), "", f"TFLOP/s on visible pairs, {' / '.join(shown)}; * as published"]


def ablation_rows(
    results: Results, lacks: Mapping[str, tuple[str, str]], shape: Mapping[str, Any]
) -> list[list[str]]:
    """Return a row an ablation: its forward speed over the kernel's, means by length, least and most."""
    mine = results.rates("fm3", "forward", shape)
    rows = []
    for name, (idea, instead) in lacks.items():
        found = ratios(results.rates(name, "forward", shape), mine)
        lengths = sorted({tokens for _, tokens in found})
        by_length = {n: [x for (_, tokens), x in found.items() if tokens == n] for n in lengths}
        means = [f"{length_name(n)} {geometric_mean(x):.3f} over {len(x)}" for n, x in by_length.items()]
        extremes = [
            f"{mask} {length_name(tokens)} {found[mask, tokens]:.2f}"
            for mask, tokens in (pick(found, key=found.__getitem__) for pick in (min, max) if found)
        ]
        rows.append([idea, f"{instead} (`{name}`)", ", ".join(means) or "not measured", ", ".join(extremes)])
    return rows


def ablations_table(
    results: Results, lacks: Mapping[str, tuple[str, str]], shape: Mapping[str, Any]
) -> list[str]:
    """Return lines: what the forward kernel keeps of its speed without each idea."""
    head = ["without", "instead", "speed kept, geometric mean", "least and most"]
    return markdown(head, ablation_rows(results, lacks, shape))
