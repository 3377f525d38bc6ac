"""Planners over planbench: load and traffic against the best values known, times and moves.

Run: python benchmarks/run_planbench.py [PLANNER ...] [--set NAME] [--only TEXT] [--json FILE] [--no-traffic].
By default all registered planners but the exact ones. Sets of instances are planbench and held_out, see
planbench/sets.py; the best values known, and whether they are proved, planbench/best_known.py improves.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from fm3_planner import Instance, PlanProblem, check_plan, plan, planners, read_instances
from planbench.best_known import Known, digest, heuristics, read_best
from planbench.sets import SETS
from planbench.swap_search import SwapSearch

EPSILONS = ("0.02", "0.05")
Row = dict[str, Any]


def main() -> None:
    """Run, print a line an instance and planner and the summary, write the JSON file that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("planners", nargs="*", help="names of planners")
    parser.add_argument("--set", choices=sorted(SETS), default="planbench", help="which instances")
    parser.add_argument("--only", default="", help="part of the names of the instances")
    parser.add_argument("--json", type=Path, help="file for rows and summary")
    parser.add_argument("--no-traffic", action="store_true", help="leave the comparison of traffic out")
    arguments = parser.parse_args()
    started = time.perf_counter()
    chosen, known = problems_of(arguments.set, only=arguments.only)
    rows = balance_rows(chosen, known, arguments.planners or heuristics())
    for row in rows:
        print(
            f"{row['instance']:<44} {row['planner']:<20} T {row['compute']:>9} {row['gap_to_best']:8.2%}  "
            f"{row['milliseconds']:9.2f} ms"
        )
    traffic = [] if arguments.no_traffic else traffic_rows(chosen, known)
    summary = {"compute": compute_summary(rows), "node_traffic": traffic_summary(traffic)}
    print(summary_text(summary))
    print(f"{len(chosen)} instances in {time.perf_counter() - started:.1f} s")
    if arguments.json:
        arguments.json.write_text(json_text(summary, rows, traffic), encoding="utf-8")


def problems_of(name: str, *, only: str = "") -> tuple[list[tuple[Instance, PlanProblem]], dict[str, Known]]:
    """Return the instances of a set with their problems, and what is known of them."""
    files = SETS[name]
    instances = [instance for instance in read_instances(files.instances) if only in instance.name]
    return [(instance, instance.problem()) for instance in instances], read_best(files.best)


def balance_rows(
    chosen: list[tuple[Instance, PlanProblem]], known: dict[str, Known], names: list[str]
) -> list[Row]:
    """Return what each planner makes of each instance that it handles."""
    rows = []
    for instance, problem in chosen:
        best = known[instance.name]
        assert best["digest"] == digest(problem), f"{instance.name} is another problem than is known"
        for name in names:
            if problem.num_chunks > getattr(planners.get(name), "max_chunks", problem.num_chunks):
                continue
            result = plan(problem, name)
            if problem.num_chunks <= 64:
                check_plan(problem, result)
            rows.append(
                {
                    "instance": instance.name,
                    "group": instance.group,
                    "chunks_per_rank": problem.num_chunks / problem.num_ranks,
                    "planner": name,
                    "compute": result.cost.compute,
                    "best_known": best["compute"]["value"],
                    "is_proved": best["compute"]["proved"],
                    "gap_to_best": gap(result.cost.compute, best["compute"]["value"]),
                    "gap_to_bound": result.gaps.compute,
                    "node_traffic": result.cost.node_traffic,
                    "rank_traffic": result.cost.rank_traffic,
                    "buffer_bytes": result.cost.buffer_bytes,
                    "milliseconds": 1000 * result.stats.planning_seconds,
                    "moves": result.stats.moves,
                    "status": result.status.name,
                }
            )
    return rows


def traffic_rows(chosen: list[tuple[Instance, PlanProblem]], known: dict[str, Known]) -> list[Row]:
    """Return node traffic of hcc_ipo and of plain swaps where the best value at a slack of load is known."""
    rows: list[Row] = []
    for instance, problem in chosen:
        for epsilon, best in known[instance.name]["node_traffic"].items():
            if problem.num_chunks > 128:
                continue
            hcc_ipo = plan(problem, with_epsilon(float(epsilon)))
            swaps = plan(problem, SwapSearch(start=planners.get("ipo")(), max_compute=best["allowed"]))
            rows.append(
                {
                    "instance": instance.name,
                    "epsilon": epsilon,
                    "allowed": best["allowed"],
                    "best_known": best["value"],
                    "is_proved": best["proved"],
                    "by": best["by"],
                    "hcc_ipo": hcc_ipo.cost.node_traffic,
                    "hcc_ipo_compute": hcc_ipo.cost.compute,
                    "plain_swaps": swaps.cost.node_traffic,
                    "hcc_ipo_milliseconds": 1000 * hcc_ipo.stats.planning_seconds,
                }
            )
    return rows


def with_epsilon(epsilon: float) -> Any:
    """Return hcc_ipo with a slack of load."""
    hcc_ipo: Any = planners.get("hcc_ipo")
    return hcc_ipo(epsilon=epsilon)


def compute_summary(rows: list[Row]) -> dict[str, Row]:
    """Return the gaps of each planner over the instances with four chunks a rank or more."""
    summary = {}
    for name in sorted({row["planner"] for row in rows}):
        mine = [row for row in rows if row["planner"] == name and row["chunks_per_rank"] >= 4]
        if not mine:
            continue
        to_best, to_bound = ([row[key] for row in mine] for key in ("gap_to_best", "gap_to_bound"))
        summary[name] = {
            "instances": len(mine),
            "mean_gap_to_best": float(np.mean(to_best)),
            "worst_gap_to_best": float(np.max(to_best)),
            "mean_gap_to_bound": float(np.mean(to_bound)),
            "worst_gap_to_bound": float(np.max(to_bound)),
            "worst_instance": mine[int(np.argmax(to_best))]["instance"],
            "total_milliseconds": sum(row["milliseconds"] for row in mine),
        }
    return summary


def traffic_summary(rows: list[Row]) -> dict[str, Row]:
    """Return by epsilon how hcc_ipo and plain swaps compare with the best traffic known, if that is any."""
    summary = {}
    for epsilon in EPSILONS:
        free = [row for row in rows if row["epsilon"] == epsilon and not row["best_known"]]
        mine = [row for row in rows if row["epsilon"] == epsilon and row["best_known"]]
        if mine:
            summary[epsilon] = {
                "instances": len(mine),
                "proved": sum(row["is_proved"] for row in mine),
                "mean_ratio_hcc_ipo": float(np.mean([row["hcc_ipo"] / row["best_known"] for row in mine])),
                "median_ratio_hcc_ipo": float(
                    np.median([row["hcc_ipo"] / row["best_known"] for row in mine])
                ),
                "worst_ratio_hcc_ipo": float(np.max([row["hcc_ipo"] / row["best_known"] for row in mine])),
                "mean_ratio_plain_swaps": float(
                    np.mean([row["plain_swaps"] / row["best_known"] for row in mine])
                ),
                "hcc_ipo_above_plain_swaps": sum(row["hcc_ipo"] > row["plain_swaps"] for row in mine),
                "worst_ratio_plain_swaps": float(
                    np.max([row["plain_swaps"] / row["best_known"] for row in mine])
                ),
                "hcc_ipo_above_allowed_load": sum(row["hcc_ipo_compute"] > row["allowed"] for row in mine),
                "nothing_must_cross": len(free),
                "hcc_ipo_crosses_for_nothing": sum(row["hcc_ipo"] > 0 for row in free),
            }
    return summary


def summary_text(summary: dict[str, dict[str, Row]]) -> str:
    """Return the summary as lines."""
    lines = [
        "",
        "load above the best known, instances with four chunks a rank or more (to the bound in brackets):",
    ]
    lines += [
        f"{name:<20} mean {row['mean_gap_to_best']:8.3%} ({row['mean_gap_to_bound']:.3%})  worst "
        f"{row['worst_gap_to_best']:8.3%} ({row['worst_gap_to_bound']:.3%})  {row['worst_instance']}"
        for name, row in summary["compute"].items()
    ]
    lines += [
        f"epsilon {epsilon}: hcc_ipo {row['mean_ratio_hcc_ipo']:.3f} x the best traffic known on average, "
        f"{row['median_ratio_hcc_ipo']:.3f} x the median, {row['worst_ratio_hcc_ipo']:.3f} x at worst; plain "
        f"swaps {row['mean_ratio_plain_swaps']:.3f} x and "
        f"{row['worst_ratio_plain_swaps']:.3f} x; above plain swaps on {row['hcc_ipo_above_plain_swaps']}, "
        f"above the load allowed on {row['hcc_ipo_above_allowed_load']} of {row['instances']} "
        f"({row['proved']} proved); crosses for nothing on {row['hcc_ipo_crosses_for_nothing']} of "
        f"{row['nothing_must_cross']}"
        for epsilon, row in summary["node_traffic"].items()
    ]
    return "\n".join(lines)


def json_text(summary: dict[str, dict[str, Row]], rows: list[Row], traffic: list[Row]) -> str:
    """Return summary and rows as JSON, one row a line."""
    lines = {
        name: ",\n".join(json.dumps(rounded(row)) for row in of)
        for name, of in (("rows", rows), ("traffic", traffic))
    }
    head = json.dumps({name: {key: rounded(row) for key, row in of.items()} for name, of in summary.items()})
    return f'{{"summary": {head},\n"rows": [\n{lines["rows"]}\n],\n"traffic": [\n{lines["traffic"]}\n]}}\n'


def rounded(row: Row) -> Row:
    """Return a row with floats of six significant digits."""
    return {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in row.items()}


def gap(value: int, best: int) -> float:
    """Return how far a value is above the best one."""
    return (value - best) / best if best else float(value > best)


if __name__ == "__main__":
    main()
