"""Tables of results in Markdown, what each ablation costs, and how far the goals are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from context_parallel.method import PASSES
from context_parallel.variant import BALANCED, BASELINES, ablations
from kernel.results import Results
from kernel.table import NOTHING, markdown, number

DOCUMENT_MASKS = ("causal_document", "document", "prefix_lm_document")
GOAL_RANKS, GOAL_EFFICIENCY, GOAL_SPEEDUP, GOAL_SLOWER = 8, 0.60, 1.7, 1.02


def tables(results: Results, shape: Mapping[str, Any]) -> list[str]:
    """Return a table for each number of ranks and mask that the file has."""
    lines: list[str] = []
    for ranks, mask, records in cells(results, shape):
        lines += [f"### {mask}, {ranks} ranks, {records[0]['tokens']} tokens", ""]
        lines += [*markdown(HEAD, [row(record, records) for record in records]), ""]
        lines += [*ablation_table(records, ranks)]
    return [*lines, LEGEND] if lines else ["nothing was timed"]


HEAD = (
    "variant",
    "chunk",
    "TFLOP/s a GPU",
    "x best baseline",
    "ms",
    "exposed ms",
    "overlap efficiency",
    "MB sent",
)
LEGEND = (
    "Each cell: forward / backward. TFLOP/s on visible pairs; exposed: the pass beyond its computing alone; "
    "overlap efficiency: 1 - exposed / communication alone; MB sent by all ranks together."
)


def cells(results: Results, shape: Mapping[str, Any]) -> list[tuple[int, str, list[dict[str, Any]]]]:
    """Return (ranks, mask, records) of a shape, in the order in which they came."""
    groups: dict[tuple[int, int, str], list[dict[str, Any]]] = {}
    for record in results.content["results"]:
        if shape.items() <= record.items():
            groups.setdefault((record["ranks"], record["tokens"], record["cell"]), []).append(record)
    return [(ranks, mask, records) for (ranks, _, mask), records in sorted(groups.items(), key=_by_ranks)]


def _by_ranks(group: tuple[tuple[int, int, str], list[dict[str, Any]]]) -> tuple[int, int]:
    return group[0][:2]


def row(record: Mapping[str, Any], beside: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a record's row; ratios are to the best baseline of those beside it."""
    if "wrong" in record:
        return [record["engine"], NOTHING, f"WRONG: {record['wrong']}", *[NOTHING] * 5]
    found = [record["passes"][which] for which in PASSES]
    ratios = [speedup(record, beside, which) for which in PASSES]
    return [
        record["engine"],
        str(record["chunk_size"]),
        " / ".join(number(x["tflops"]) for x in found),
        " / ".join(NOTHING if x is None else f"{x:.2f}" for x in ratios),
        " / ".join(f"{1e3 * x['seconds']:.3g}" for x in found),
        " / ".join(f"{1e3 * x['exposed_seconds']:.3g}" for x in found),
        " / ".join(_share(x["overlap_efficiency"]) for x in found),
        " / ".join(f"{x['sent_bytes'] / 1e6:.4g}" for x in found),
    ]


def speedup(record: Mapping[str, Any], beside: Sequence[Mapping[str, Any]], which: str) -> float | None:
    """Return how many times as fast as the fastest baseline a pass is, None where none was timed."""
    baselines = [
        other["passes"][which]["seconds"]
        for other in beside
        if other["engine"] in BASELINES and "wrong" not in other
    ]
    return min(baselines) / record["passes"][which]["seconds"] if baselines else None


def ablation_table(records: Sequence[Mapping[str, Any]], ranks: int) -> list[str]:
    """Return lines: by backend the time and bytes without each idea, over those with all of them."""
    by_name = {record["engine"]: record for record in records if "wrong" not in record}
    rows = []
    for backend in dict.fromkeys(record["backend"] for record in by_name.values() if "backend" in record):
        lacking = {idea: by_name.get(variant.name) for idea, variant in ablations(backend, ranks).items()}
        whole = lacking.pop("")
        if whole is None:
            continue
        for idea, record in lacking.items():
            if record is not None:
                rows.append([idea, backend, *_over(record, whole)])
    if not rows:
        return []
    head = ["without", "backend", "time over that with it", "bytes", "bytes between nodes"]
    return [*markdown(head, rows), ""]


def _over(record: Mapping[str, Any], whole: Mapping[str, Any]) -> list[str]:
    mine, theirs = ([x["passes"][which] for which in PASSES] for x in (record, whole))
    both = list(zip(mine, theirs, strict=True))
    crossing, crossing_with = record["bytes_between_nodes"], whole["bytes_between_nodes"]
    return [
        " / ".join(f"{a['seconds'] / b['seconds']:.2f}" for a, b in both),
        " / ".join(_ratio(a["sent_bytes"], b["sent_bytes"]) for a, b in both),
        _ratio(crossing, crossing_with),
    ]


def _ratio(mine: float, theirs: float) -> str:
    return f"{mine / theirs:.2f}" if theirs else NOTHING


def _share(efficiency: float | None) -> str:
    return NOTHING if efficiency is None else f"{efficiency:.0%}"


def goals(results: Results, shape: Mapping[str, Any]) -> list[str]:
    """Return lines: overlap efficiency and speed at 8 ranks on document masks, and the usual plan's place."""
    lines = []
    for ranks, mask, records in cells(results, shape):
        right = [record for record in records if "wrong" not in record]
        usual = [r for r in right if r.get("planner") == BALANCED and r["overlap"] and r["pruning"]]
        usual = [r for r in usual if r["ranks_per_node"] is None]
        for which in PASSES:
            for record in usual:
                found = record["passes"][which]
                fastest = min(other["passes"][which]["seconds"] for other in right)
                slower = found["seconds"] / fastest
                said = [f"{slower:.3f} x the fastest ({_met(slower <= GOAL_SLOWER)} <= {GOAL_SLOWER})"]
                if ranks == GOAL_RANKS and mask in DOCUMENT_MASKS:
                    hidden, times = found["overlap_efficiency"], speedup(record, right, which)
                    if hidden is not None:
                        said.append(f"{hidden:.0%} hidden ({_met(hidden >= GOAL_EFFICIENCY)} >= 60%)")
                    if times is not None:
                        said.append(f"{times:.2f} x the best baseline ({_met(times >= GOAL_SPEEDUP)} >= 1.7)")
                lines.append(f"{mask}, {ranks} ranks, {which}, {record['engine']}: {', '.join(said)}")
    return lines


def _met(is_met: bool) -> str:
    return "met:" if is_met else "NOT met:"
