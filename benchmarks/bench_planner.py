"""Times of planning: the problem from a 1M-token mask, and each planner at several sizes.

Run: python benchmarks/bench_planner.py [--json FILE]. Prints the best of several repeats in milliseconds and
as a ratio to a yardstick of the same run (sorting 1M integers with numpy), so that machines can be compared.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fm3_core import ColumnMask, patterns
from fm3_core.workload import needs
from fm3_planner import CostWeights, PlanProblem, check_plan, plan, planners
from fm3_planner.weights import chunk_weights

NUM_TOKENS = 1 << 20
CHUNK_SIZE = NUM_TOKENS // 2048
SIZES = ((64, 8), (512, 32), (2048, 256))


def main() -> None:
    """Run every measurement, print the table and write the JSON file that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="file for the rows")
    parser.add_argument("--repeats", type=int, default=5, help="repeats; the best counts")
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
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


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
    for name in planners.names():
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
    """Return the problem of the document mask cut into `num_chunks` chunks, 8 ranks a node."""
    return PlanProblem.from_mask(
        document_mask(),
        chunk_size=NUM_TOKENS // num_chunks,
        num_ranks=num_ranks,
        ranks_per_node=min(8, num_ranks),
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
