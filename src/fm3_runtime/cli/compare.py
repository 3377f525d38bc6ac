"""`fm3 compare`: several planners on one problem, side by side."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.progress import track

from fm3_core import PlanError
from fm3_planner import PlanProblem, PlanResult, planners
from fm3_planner import plan as solve
from fm3_runtime.cli.options import (
    AsJson,
    ChunkSize,
    Documents,
    Lengths,
    MaskName,
    Ranks,
    RanksPerNode,
    read_mask,
)
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
from fm3_runtime.context_parallel import default_chunk_size


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
    planner: Annotated[
        list[str] | None,
        typer.Option(help="A planner to compare; repeat it. By default all that take the problem."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare load balancers on one batch: largest load and its gap to the bound, traffic, buffers, time.

    [bold]Examples[/]

    fm3 compare

    fm3 compare --lengths 2538,1742,3912 --ranks 2 --chunk-size 1024 --planner lpt --planner zigzag
    """
    column_mask, chosen = read_mask(mask, lengths, documents, glob, tokens)
    size = chunk_size or default_chunk_size(column_mask.num_rows, ranks)
    problem = PlanProblem.from_mask(
        column_mask, chunk_size=size, num_ranks=ranks, ranks_per_node=ranks_per_node
    )
    names = list(dict.fromkeys(planner)) if planner else planners.names()
    for name in names:
        planners.get(name)
    results: dict[str, PlanResult] = {}
    refused: dict[str, str] = {}
    for name in track(names, "planning", console=messages, transient=True, disable=as_json):
        try:
            results[name] = solve(problem, planner=name)
        except PlanError as error:
            if planner:
                raise
            refused[name] = str(error)
    if as_json:
        print_json(
            {"plans": {name: plan_as_json(result) for name, result in results.items()}, "refused": refused}
        )
        return
    bounds = next(iter(results.values())).bounds
    console.print(
        f"[bold]{mask} over {count(len(chosen), 'document')}, {count(column_mask.num_rows, 'token')}[/], "
        f"{count(problem.num_chunks, 'chunk')} of {size} on {count(ranks, 'rank')} in "
        f"{count(problem.cluster.num_nodes, 'node')}"
    )
    console.print(f"no plan's largest load is below {bounds.compute.value:,}: {bounds.compute.reason}")
    console.print()
    table = new_table("planner", "load", "gap", "", "nodes", "ranks", "buffer", "time", "moves")
    worst = max(result.cost.compute for result in results.values()) or 1
    for name, result in sorted(results.items(), key=lambda item: (item[1].cost.compute, item[0])):
        cost = result.cost
        table.add_row(
            name,
            f"{cost.compute:,}",
            f"{result.gaps.compute:.2%}",
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
    for name, reason in refused.items():
        console.print(f"[dim]{name} left out: {reason}[/]")
