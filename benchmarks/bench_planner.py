"""What planning takes and how good it is: the targets of this package, measured.

Run: python benchmarks/bench_planner.py [--json FILE] [--repeats N] [--exact]. Times are the best of several
repeats in milliseconds, and ratios to a yardstick of the same run (sorting 1M integers with numpy), so that
machines can be compared. Gaps and traffic are those of planbench (run_planbench.py). --exact asks the exact
planners too, which takes minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from fm3_core import ColumnMask, patterns
from fm3_core.workload import needs
from fm3_planner import (
    CostWeights,
    CpSat,
    Ilp,
    Instance,
    PlanProblem,
    Status,
    check_plan,
    plan,
    planners,
)
from fm3_planner.weights import chunk_weights
from planbench.best_known import heuristics
from run_planbench import (
    balance_rows,
    compute_summary,
    problems_of,
    traffic_rows,
    traffic_summary,
)

NUM_TOKENS = 1 << 20
CHUNK_SIZE = NUM_TOKENS // 2048
SIZES = ((64, 8), (512, 32), (2048, 256))


def main() -> None:
    """Run every measurement, print the tables and write the JSON file that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="file for the rows")
    parser.add_argument("--repeats", type=int, default=5, help="repeats; the best counts")
    parser.add_argument("--exact", action="store_true", help="ask the exact planners for proofs, for minutes")
    arguments = parser.parse_args()

    yardstick = best_of(arguments.repeats, lambda unsorted: np.sort(unsorted), _unsorted_integers())
    rows = [{"what": "yardstick: sort 1M integers", "milliseconds": yardstick}]
    rows += problem_rows(arguments.repeats)
    rows += [
        row
        for num_chunks, num_ranks in SIZES
        for row in planner_rows(arguments.repeats, num_chunks, num_ranks)
    ]
    for row in rows:
        row["yardsticks"] = row["milliseconds"] / yardstick
        gap = f"  compute gap {row['compute_gap']:7.2%}" if "compute_gap" in row else ""
        print(f"{row['what']:<58} {row['milliseconds']:10.3f} ms {row['yardsticks']:9.4f} x{gap}")
    targets = target_rows({row["what"]: row["milliseconds"] for row in rows}, exact=arguments.exact)
    print(f"\n{'target':<84} {'asked':>10} {'measured':>10}")
    for row in targets:
        kept = "kept" if row["is_kept"] else "MISSED"
        print(f"{row['what']:<84} {row['asked']:>10} {row['measured']:>10} {kept}")
    if arguments.json:
        content = {"machine": machine(), "targets": targets, "times": rows}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def target_rows(milliseconds: dict[str, float], *, exact: bool) -> list[dict[str, object]]:
    """Return each target with what was measured and whether it is kept."""
    rows = quality_rows("planbench") + quality_rows("held_out")
    for (num_chunks, num_ranks), most in zip(SIZES, (1, 10, 150), strict=True):
        measured = milliseconds[f"hcc_ipo: assign, n={num_chunks} P={num_ranks}"]
        rows.append(
            target(
                f"hcc_ipo: planning time, n={num_chunks} P={num_ranks}",
                f"{most} ms",
                f"{measured:.2f} ms",
                measured <= most,
            )
        )
    measured = milliseconds["PlanProblem.from_mask, both of them and the rest"]
    rows.append(
        target("problem of 2048 chunks from a 1M-token mask", "300 ms", f"{measured:.0f} ms", measured <= 300)
    )
    return rows + (exact_rows(problems_of("planbench")[0]) if exact else [])


def quality_rows(name: str) -> list[dict[str, object]]:
    """Return the targets of load and traffic on a set of instances."""
    problems, known = problems_of(name)
    loads = compute_summary(balance_rows(problems, known, ["hcc_ipo", "ipo"]))
    rows = []
    for planner, title in (("hcc_ipo", "hcc_ipo"), ("ipo", "ipo, its first phase")):
        for share, most in (("mean", 0.002), ("worst", 0.02)):
            measured = loads[planner][f"{share}_gap_to_best"]
            bound = f"{loads[planner][f'{share}_gap_to_bound']:.2%} to the bound"
            rows.append(
                target(
                    f"{name}, {title}: {share} compute gap to the best known ({bound})",
                    f"{most:.1%}",
                    f"{measured:.3%}",
                    measured <= most,
                )
            )
    for epsilon, summary in traffic_summary(traffic_rows(problems, known)).items():
        ratio, above = summary["mean_ratio_hcc_ipo"], summary["hcc_ipo_above_plain_swaps"]
        what = f"{name}, hcc_ipo at epsilon {epsilon}"
        rows += [
            target(f"{what}: traffic over the best known, mean", "1.15 x", f"{ratio:.3f} x", ratio <= 1.15),
            target(f"{what}: instances above plain swaps", "0", f"{above}", above == 0),
        ]
    return rows


def exact_rows(problems: list[tuple[Instance, PlanProblem]]) -> list[dict[str, object]]:
    """Return how many small instances each exact planner proves within ten seconds."""
    small = [problem for _, problem in problems if problem.num_ranks <= 8 and problem.num_chunks <= 32]
    rows = []
    for name, planner in (("cp_sat", CpSat()), ("ilp", Ilp(max_seconds=10.0))):
        proved = 0
        for problem in small:
            result = plan(problem, planner)
            proved += result.status is Status.OPTIMAL and result.stats.planning_seconds <= 10
        what = f"{name}: load proved within 10 s, of {len(small)} with P <= 8, n <= 32"
        rows.append(target(what, f"> {len(small) // 2}", f"{proved}", proved > len(small) // 2))
    return rows


def target(what: str, asked: str, measured: str, is_kept: bool) -> dict[str, object]:
    """Return a line of the table of targets."""
    return {"what": what, "asked": asked, "measured": measured, "is_kept": bool(is_kept)}


def machine() -> dict[str, object]:
    """Return what the figures depend on."""
    names = [
        line.split(":")[1].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    ]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def best_of(repeats: int, call: Callable[..., object], *arguments: object) -> float:
    """Return the fastest of several calls in milliseconds."""
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        call(*arguments)
        seconds.append(time.perf_counter() - started)
    return 1000 * min(seconds)


def problem_rows(repeats: int) -> list[dict[str, object]]:
    """Measure the problem of 2048 chunks from a 1M-token mask, and the two parts that are core's."""
    mask = document_mask()
    cost = CostWeights()
    weights = best_of(
        repeats, lambda: chunk_weights(mask, chunk_size=CHUNK_SIZE, cost=cost, query_heads=mask.heads)
    )
    needed = best_of(repeats, lambda: needs(mask, chunk_size=CHUNK_SIZE))
    whole = best_of(
        repeats,
        lambda: PlanProblem.from_mask(mask, chunk_size=CHUNK_SIZE, num_ranks=256, ranks_per_node=8),
    )
    return [
        {"what": "weights of 2048 chunks, 1M causal document", "milliseconds": weights},
        {"what": "needs of 2048 chunks, 1M causal document", "milliseconds": needed},
        {"what": "PlanProblem.from_mask, both of them and the rest", "milliseconds": whole},
    ]


def planner_rows(repeats: int, num_chunks: int, num_ranks: int) -> list[dict[str, object]]:
    """Measure every registered planner that handles the size, with figures and bounds, and check its plan."""
    problem = document_problem(num_chunks, num_ranks)
    rows: list[dict[str, object]] = []
    for name in heuristics():
        if num_chunks > getattr(planners.get(name), "max_chunks", num_chunks):
            continue
        result = plan(problem, name)
        check_plan(problem, result)
        assign = 1000 * min(plan(problem, name).stats.planning_seconds for _ in range(repeats))
        rows.append(
            {
                "what": f"{name}: assign, n={num_chunks} P={num_ranks}",
                "milliseconds": assign,
                "compute_gap": result.gaps.compute,
                "node_traffic": result.cost.node_traffic,
            }
        )
    whole = best_of(repeats, plan, problem)
    rows.append(
        {"what": f"plan with figures and bounds, n={num_chunks} P={num_ranks}", "milliseconds": whole}
    )
    return rows


def document_problem(num_chunks: int, num_ranks: int) -> PlanProblem:
    """Return the problem of the document mask cut into `num_chunks` chunks, at most 8 ranks a node."""
    return PlanProblem.from_mask(
        document_mask(),
        chunk_size=NUM_TOKENS // num_chunks,
        num_ranks=num_ranks,
        ranks_per_node=min(8, num_ranks // 2),
    )


def document_mask() -> ColumnMask:
    """Return a causal document mask of 1M tokens; lengths are log-normal, seeded."""
    lengths = np.random.default_rng(0).lognormal(8.5, 1.2, 4096).astype(np.int64) + 1
    kept = lengths[: int(np.searchsorted(np.cumsum(lengths), NUM_TOKENS))]
    return patterns.causal_document([*kept.tolist(), NUM_TOKENS - int(kept.sum())])


def _unsorted_integers() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 1 << 40, 1 << 20)


if __name__ == "__main__":
    main()
