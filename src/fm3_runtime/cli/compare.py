"""`fm3 compare`: several planners on one problem, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from fm3_core import MaskError, PlanError, UnknownNameError
from fm3_planner import CostWeights, HccIpo, PlanProblem, PlanResult, planners, tightest_bounds
from fm3_planner import plan as solve
from fm3_runtime.cli import planner_option
from fm3_runtime.cli.cost_option import Cost, cost_weights
from fm3_runtime.cli.options import AsJson, ChunkSize, Documents, Lengths, MaskName, Ranks, RanksPerNode
from fm3_runtime.cli.output import (
    bar,
    console,
    count,
    format_bytes,
    format_seconds,
    messages,
    new_table,
    print_json,
)
from fm3_runtime.cli.plan import plan_as_json
from fm3_runtime.cli.plan_source import PlanSource, problem_of_instance, problem_of_mask
from fm3_runtime.plan_pictures import save_frontier, save_load_bars, save_planning_times

EPSILONS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
TIMED_CHUNKS_PER_RANK = (2, 4, 8, 16, 32, 64)


def compare(
    documents: Documents = None,
    glob: Annotated[str | None, typer.Option(help="Names of the files to take.")] = None,
    tokens: Annotated[
        int | None, typer.Option(help="Tokens of the sequence, 16384 by default.", min=1)
    ] = None,
    lengths: Lengths = None,
    mask: MaskName = "causal_document",
    ranks: Ranks = 4,
    ranks_per_node: RanksPerNode = None,
    chunk_size: ChunkSize = None,
    cost: Cost = None,
    planner: Annotated[
        list[str] | None,
        typer.Option(
            help=f"To compare; repeat it. By default all that take the problem. {planner_option.HELP}"
        ),
    ] = None,
    instances: Annotated[
        Path | None, typer.Option(help="A file of frozen problems, benchmarks/planbench/instances.json say.")
    ] = None,
    instance: Annotated[str | None, typer.Option(help="The one to compare on, instead of a mask.")] = None,
    save_loads: Annotated[
        Path | None, typer.Option(help="Draw each plan's loads by rank into this .png or .svg file.")
    ] = None,
    save_tradeoff: Annotated[
        Path | None, typer.Option(help="Draw load against traffic, hcc_ipo over its epsilon.")
    ] = None,
    save_times: Annotated[
        Path | None, typer.Option(help="Draw planning time against the number of chunks; needs a mask.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare load balancers on one batch: largest load and its gap to the bound, traffic, buffers, time.

    [bold]Examples[/]

    fm3 compare

    fm3 compare --lengths 2538,1742,3912 --ranks 2 --chunk-size 1024 --planner lpt --planner zigzag

    fm3 compare --tokens 131072 --ranks 16 --ranks-per-node 8 --save-tradeoff tradeoff.png

    fm3 compare --ranks-per-node 2 --planner hcc_ipo --planner 'cp_sat(objective=node_traffic)'
    """
    if (instances is None) != (instance is None):
        raise PlanError("--instances and --instance go together: the file, and the name in it")
    if instances is not None and cost is not None:
        raise PlanError("an instance has cost weights of its own: leave out --cost")
    if instances is not None and instance is not None:
        source = problem_of_instance(instances, instance)
    else:
        source = problem_of_mask(
            mask, lengths, documents, glob, tokens,
            ranks=ranks, ranks_per_node=ranks_per_node, chunk_size=chunk_size, cost=cost_weights(cost),
        )  # fmt: skip
    names = list(dict.fromkeys(planner)) if planner else planners.names()
    results, refused = _solve_all(source.problem, names, asked_for=bool(planner), quiet=as_json)
    if save_loads is not None:
        save_load_bars(results, save_loads, source.title)
    if save_tradeoff is not None:
        frontier = {epsilon: solve(source.problem, HccIpo(epsilon=epsilon)) for epsilon in EPSILONS}
        others = {name: result for name, result in results.items() if name != "hcc_ipo"}
        save_frontier(others, frontier, save_tradeoff, source.title)
    if save_times is not None:
        save_planning_times(_times(source, names, cost_weights(cost)), save_times, source.title)
    if as_json:
        print_json(
            {
                "compute_bound": tightest_bounds(
                    result.bounds for result in results.values()
                ).compute._asdict(),
                "plans": {name: plan_as_json(result) for name, result in results.items()},
                "refused": refused,
            }
        )
        return
    _print_table(source, results)
    for name, reason in refused.items():
        console.print(f"[dim]{name} left out: {reason}[/]")
    for path in (save_loads, save_tradeoff, save_times):
        if path is not None:
            console.print(f"drawn into {path}", markup=False)


def _solve_all(
    problem: PlanProblem, names: list[str], *, asked_for: bool, quiet: bool
) -> tuple[dict[str, PlanResult], dict[str, str]]:
    """Return the plans by planner, and why planners that were not asked for by name are left out."""
    results: dict[str, PlanResult] = {}
    refused: dict[str, str] = {}
    if asked_for:
        for name in names:
            planner_option.read_planner(name)  # a wrong name is told before anything is planned
    for name in track(names, "planning", console=messages, transient=True, disable=quiet):
        try:
            results[name] = solve(problem, planner=planner_option.read_planner(name))
        except (PlanError, UnknownNameError) as error:
            if asked_for:
                raise
            refused[name] = str(error)
    return results, refused


def _print_table(source: PlanSource, results: dict[str, PlanResult]) -> None:
    problem, bounds = source.problem, tightest_bounds(result.bounds for result in results.values())
    console.print(
        f"[bold]{source.title}[/], {count(problem.num_chunks, 'chunk')} of {problem.chunk_size} on "
        f"{count(problem.num_ranks, 'rank')} in {count(problem.cluster.num_nodes, 'node')}"
    )
    console.print(f"no plan's largest load is below {bounds.compute.value:,}: {bounds.compute.reason}")
    console.print(
        f"none moves less than {format_bytes(bounds.node_traffic.value)} between nodes: "
        f"{bounds.node_traffic.reason}"
    )
    console.print()
    table = new_table("planner", "load", "gap", "", "nodes", "ranks", "buffer", "time", "moves")
    worst = max(result.cost.compute for result in results.values()) or 1
    for name, result in sorted(results.items(), key=lambda item: (item[1].cost.compute, item[0])):
        cost = result.cost
        table.add_row(
            name,
            f"{cost.compute:,}",
            f"{result.gaps_to(bounds).compute:.2%}",
            bar(cost.compute / worst, 8),
            format_bytes(cost.node_traffic),
            format_bytes(cost.rank_traffic),
            format_bytes(cost.buffer_bytes),
            format_seconds(result.stats.planning_seconds),
            f"{result.stats.moves:,}",
        )
    console.print(table)
    console.print(
        "[dim]load, buffer: the largest of a rank; nodes, ranks: bytes between them in a forward pass[/]"
    )


def _times(source: PlanSource, names: list[str], cost: CostWeights) -> dict[str, list[tuple[int, float]]]:
    """Return (chunks, planning seconds) of each planner for ever smaller chunks of the mask."""
    if source.mask is None:
        raise MaskError(
            "planning times are drawn over chunk sizes of a mask; this instance has plain weights"
        )
    tokens, cluster = source.mask.num_rows, source.problem.cluster
    lines: dict[str, list[tuple[int, float]]] = {name: [] for name in names}
    for per_rank in TIMED_CHUNKS_PER_RANK:
        size = -(-tokens // (per_rank * cluster.num_ranks))
        problem = PlanProblem.from_mask(
            source.mask,
            chunk_size=size,
            num_ranks=cluster.num_ranks,
            ranks_per_node=cluster.ranks_per_node,
            cost=cost,
        )
        for name, result in _solve_all(problem, names, asked_for=False, quiet=True)[0].items():
            lines[name].append((problem.num_chunks, result.stats.planning_seconds))
    return {name: line for name, line in lines.items() if line}
