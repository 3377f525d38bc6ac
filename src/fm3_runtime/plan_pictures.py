"""Plans as pictures: loads by rank, compute against traffic, planning time against chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fm3_planner import PlanResult, tightest_bounds
from fm3_runtime.picture import new_picture

_MEBIBYTE = 1 << 20


def save_load_bars(results: Mapping[str, PlanResult], path: Path, title: str) -> None:
    """Draw each planner's loads, a bar a rank, over the tightest lower bound of the largest.

    Args:
        results: plans of one problem, by planner.
        path: a .png or .svg file.
        title: written above.

    Raises:
        PictureError: see `new_picture`.
    """
    with new_picture(path, width=8, height=0.6 + 1.25 * len(results)) as figure:
        rows = figure.subplots(len(results), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        bounds = tightest_bounds(result.bounds for result in results.values())
        for axes, (name, result) in zip(rows, results.items(), strict=True):
            axes.bar(range(len(result.cost.loads)), result.cost.loads, color="#21618c", width=0.85)
            axes.axhline(bounds.compute.value, color="#f0a202", linewidth=1.2)
            gap = result.gaps_to(bounds).compute
            axes.set_ylabel(f"{name}\n+{gap:.2%}", rotation=0, ha="right", va="center")
            axes.set_yticks([])
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.spines[["top", "right", "left"]].set_visible(False)
        rows[-1].set_xlabel(
            "rank; the line is the lower bound of the largest load, +: how far the largest is above it"
        )
        figure.suptitle(title, fontsize=11)


def save_frontier(
    points: Mapping[str, PlanResult], frontier: Mapping[float, PlanResult], path: Path, title: str
) -> None:
    """Draw the largest load against the bytes between nodes: planners as points, hcc_ipo over its epsilon.

    Args:
        points: plans of one problem, by planner.
        frontier: plans of hcc_ipo for the same problem, by epsilon.
        path: a .png or .svg file.
        title: written above.

    Raises:
        PictureError: see `new_picture`.
    """
    with new_picture(path, width=8, height=5) as figure:
        axes = figure.add_subplot()
        bounds = tightest_bounds(result.bounds for result in (*points.values(), *frontier.values()))

        def place_of(result: PlanResult) -> tuple[float, float]:
            return 100 * result.gaps_to(bounds).compute, result.cost.node_traffic / _MEBIBYTE

        slacks = sorted(frontier)
        line = [place_of(frontier[slack]) for slack in slacks]
        axes.plot(*zip(*line, strict=True), "o-", color="#21618c", label="hcc_ipo")
        texts: dict[tuple[float, float], str] = {}
        for slack, place in zip(slacks, line, strict=True):
            texts[place] = f"{texts[place]}, {slack:g}" if place in texts else f"{slack:g}"
        for i, (place, text) in enumerate(texts.items()):
            axes.annotate(text, place, (4, 4 if i % 2 else -11), textcoords="offset points", fontsize=8)
        for i, (name, result) in enumerate(points.items()):
            axes.plot(*place_of(result), "sDv^<>Pph*X"[i % 11], markersize=7, label=name)
        bound = bounds.node_traffic.value / _MEBIBYTE
        axes.axhline(bound, color="#f0a202", linewidth=1.2, label="lower bound of traffic")
        axes.set_xscale("symlog", linthresh=1)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set(
            title=title,
            xlabel="largest load above its lower bound, percent (linear up to 1)",
            ylabel="between nodes, MiB in a forward pass",
        )
        axes.grid(alpha=0.25)
        figure.legend(loc="outside right upper", frameon=False, fontsize=8, title="numbers: epsilon")


def save_planning_times(seconds: Mapping[str, Sequence[tuple[int, float]]], path: Path, title: str) -> None:
    """Draw planning time against the number of chunks, both logarithmic.

    Args:
        seconds: for each planner (chunks, seconds), ascending.
        path: a .png or .svg file.
        title: written above.

    Raises:
        PictureError: see `new_picture`.
    """
    with new_picture(path, width=8, height=5) as figure:
        axes = figure.add_subplot()
        for i, (name, line) in enumerate(seconds.items()):
            axes.plot(
                [chunks for chunks, _ in line],
                [1e3 * time for _, time in line],
                marker="sDv^<>Pph*X"[i % 11],
                markersize=5,
                label=name,
            )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set(title=title, xlabel="chunks", ylabel="planning time, milliseconds")
        axes.grid(alpha=0.25)
        figure.legend(loc="outside right upper", frameon=False, fontsize=8)
