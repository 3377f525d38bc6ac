"""Improves the best plans known of each instance of a set, by every planner, within a limit of work.

Run in benchmarks: python -m planbench.best_known [--set NAME] [--work SECONDS] [--only TEXT] [--heuristics].
Values only get better and bounds only tighter; the file is written after each instance, so that a run can be
broken off.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from fm3_planner import (
    CpSat,
    Figure,
    Ilp,
    Planner,
    PlanProblem,
    PlanResult,
    plan,
    planners,
    read_instances,
)
from fm3_planner.exact.search import with_slack
from planbench.sets import SETS

FORMAT, VERSION = "fm3.best_known", 1
EPSILONS = (0.02, 0.05)
EXACT = ("brute_force", "cp_sat", "ilp")
Known = dict[str, Any]


def main() -> None:
    """Go over the instances and write what became better."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", choices=sorted(SETS), default="planbench", help="which instances")
    parser.add_argument("--work", type=float, default=8.0, help="deterministic seconds of each CP-SAT search")
    parser.add_argument("--only", default="", help="part of the names of the instances")
    parser.add_argument("--heuristics", action="store_true", help="ask no exact planner")
    arguments = parser.parse_args()
    work = 0.0 if arguments.heuristics else arguments.work
    files = SETS[arguments.set]
    known = read_best(files.best) if files.best.exists() else {}
    for instance in read_instances(files.instances):
        if arguments.only in instance.name:
            problem = instance.problem()
            entry = known.get(instance.name, {})
            if entry.get("digest") != digest(problem):
                entry = {"digest": digest(problem)}
            known[instance.name] = improved(problem, entry, work)
            write_best(files.best, known)
            print(instance.name, summary(known[instance.name]), flush=True)


def improved(problem: PlanProblem, entry: Known, work: float) -> Known:
    """Return what is known of a problem after another look."""
    compute, start = improved_compute(problem, entry.get("compute"), work)
    traffic: dict[str, Known] = {}
    if problem.cluster.num_nodes > 1:
        for epsilon in EPSILONS:
            old = entry.get("node_traffic", {}).get(str(epsilon))
            allowed = with_slack(compute["value"], epsilon)
            known = old if old and old["allowed"] == allowed else None
            new = improved_traffic(problem, known, allowed, epsilon, start, work)
            if new:
                traffic[str(epsilon)] = new
    share_what_is_known([traffic[str(epsilon)] for epsilon in EPSILONS if str(epsilon) in traffic])
    return {"digest": entry["digest"], "compute": compute, "node_traffic": traffic}


def share_what_is_known(tight_to_loose: list[Known]) -> None:
    """Use that a tight limit's plans are a loose one's too, and that bounds hold the other way round."""
    for tight, loose in pairwise(tight_to_loose):
        if tight["value"] < loose["value"]:
            loose |= {key: tight[key] for key in ("value", "by", "owner")}
        tight["bound"] = max(tight["bound"], loose["bound"])
        for entry in (tight, loose):
            entry["proved"] = entry["bound"] == entry["value"]


def improved_compute(problem: PlanProblem, old: Known | None, work: float) -> tuple[Known, PlanResult]:
    """Return the best load known, and the plan that has it."""
    results = [plan(problem, name) for name in heuristics()]
    if old:
        results.append(plan(problem, Given(old["owner"])))
    best = min(results, key=lambda result: result.cost.compute)
    bound = max(best.bounds.compute.value, old["bound"] if old else 0)
    by = old["by"] if old and best is results[-1] else best.stats.planner
    for name, planner in (
        ("ilp", Ilp(max_seconds=2 * work + 1, start=Given(owners(best)))),
        ("cp_sat", CpSat(max_work=work + 1, start=Given(owners(best)))),
    ):
        if not work or problem.num_chunks > planner.max_chunks or best.cost.compute == bound:
            break
        result = plan(problem, planner)
        bound = max(bound, result.bounds.compute.value)
        if result.cost.compute < best.cost.compute:
            best, by = result, name
    return known_value(best, best.cost.compute, bound, by), best


def improved_traffic(
    problem: PlanProblem, old: Known | None, allowed: int, epsilon: float, start: PlanResult, work: float
) -> Known | None:
    """Return the least node traffic known under a load of at most `allowed`; None where no plan is."""
    results = [start, *(plan(problem, planner) for planner in traffic_planners(epsilon))]
    if old:
        results.append(plan(problem, Given(old["owner"])))
    best = min(
        (result for result in results if result.cost.compute <= allowed),
        key=lambda result: result.cost.node_traffic,
    )
    bound = max(start.bounds.node_traffic.value, old["bound"] if old else 0)
    by = old["by"] if old and best is results[-1] else best.stats.planner
    if work and problem.num_chunks <= CpSat.max_chunks and best.cost.node_traffic > bound:
        search = CpSat(
            objective="node_traffic", max_compute=allowed, max_work=work, start=Given(owners(best))
        )
        result = plan(problem, search)
        (goal,) = (goal for goal in result.goals if goal.figure is Figure.NODE_TRAFFIC)
        bound = max(bound, goal.bound)
        if result.cost.node_traffic < best.cost.node_traffic:
            best, by = result, "cp_sat"
    return {"allowed": allowed} | known_value(best, best.cost.node_traffic, bound, by)


def traffic_planners(epsilon: float) -> list[str | Planner]:
    """Return planners whose plans may have little traffic within the load allowed."""
    found: list[str | Planner] = list(heuristics())
    if "hcc_ipo" in found:
        hcc_ipo: Any = planners.get("hcc_ipo")
        found += [hcc_ipo(epsilon=share * epsilon) for share in (1.0, 0.9, 0.5)]
        found += [hcc_ipo(epsilon=epsilon, runs=32, traffic_moves=1_000_000)]
    return found


def heuristics() -> list[str]:
    """Return the registered planners that are not exact."""
    return [name for name in planners.names() if name not in EXACT]


def known_value(best: PlanResult, value: int, bound: int, by: str) -> Known:
    """Return the entry of a figure."""
    assert bound <= value, f"a bound of {bound} above a plan of {value}"
    names = {"HccIpo": "hcc_ipo", "CpSat": "cp_sat", "Ilp": "ilp"}
    return {
        "value": value,
        "bound": bound,
        "proved": bound == value,
        "by": names.get(by, by),
        "owner": owners(best),
    }


def owners(result: PlanResult) -> list[int]:
    """Return the rank of each chunk of a plan."""
    return result.partition.owner.tolist()


class Given:
    """A planner that answers with a plan that is known."""

    def __init__(self, owner: list[int]) -> None:
        """Keep the rank of each chunk."""
        self.owner = owner

    def assign(self, problem: PlanProblem) -> list[list[int]]:
        """Return the chunks of each rank."""
        return [
            [chunk for chunk, owner in enumerate(self.owner) if owner == rank]
            for rank in range(problem.num_ranks)
        ]


def digest(problem: PlanProblem) -> str:
    """Return a digest of the numbers of a problem, so that a change of them is noticed."""
    content = problem.weights.tobytes() + problem.chunk_bytes.tobytes() + problem.needs.tobytes()
    return hashlib.sha256(content + repr(problem.cluster).encode()).hexdigest()[:16]


def read_best(path: Path) -> dict[str, Known]:
    """Return what is known, by the names of instances."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if (content["format"], content["version"]) != (FORMAT, VERSION):
        raise ValueError(f"{path} must be {FORMAT} version {VERSION}")
    known: dict[str, Known] = content["instances"]
    return known


def write_best(path: Path, known: dict[str, Known]) -> None:
    """Write what is known, an instance a line."""
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(known[name])}" for name in known)
    head = json.dumps({"format": FORMAT, "version": VERSION})[:-1]
    path.write_text(f'{head}, "instances": {{\n{lines}\n}}}}\n', encoding="utf-8")


def summary(entry: Known) -> str:
    """Return an entry in a few words."""
    words = [f"T {entry['compute']['value']} ({'proved' if entry['compute']['proved'] else 'open'})"]
    for epsilon, traffic in entry["node_traffic"].items():
        words.append(f"N@{epsilon} {traffic['value']} ({'proved' if traffic['proved'] else 'open'})")
    return ", ".join(words)


if __name__ == "__main__":
    main()
