"""`fm3 plan`: who owns which tokens, how good that is, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fm3_planner import PlanResult, plan_to_json
from fm3_planner import plan as solve
from fm3_planner.planning import DEFAULT_PLANNER
from fm3_runtime.cli import planner_option
from fm3_runtime.cli.cost_option import Cost, cost_weights
from fm3_runtime.cli.options import AsJson, ChunkSize, Documents, Lengths, MaskName, Ranks, RanksPerNode
from fm3_runtime.cli.output import (
    bar,
    console,
    count,
    format_bytes,
    format_seconds,
    new_table,
    print_json,
    write_text,
)
from fm3_runtime.cli.plan_source import problem_of_mask

CHUNKS_SHOWN = 12


def plan(
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
    planner: Annotated[str, typer.Option(help=planner_option.HELP)] = DEFAULT_PLANNER,
    save: Annotated[
        Path | None, typer.Option(help="Also write the plan as JSON, which `plan_from_json` reads.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Place the tokens of one batch on ranks, and print every figure with its bound.

    [bold]Examples[/]

    fm3 plan --lengths 2538,1742,3912 --ranks 4

    fm3 plan --tokens 131072 --ranks 16 --ranks-per-node 8 --mask document --planner zigzag
    """
    source = problem_of_mask(
        mask, lengths, documents, glob, tokens,
        ranks=ranks, ranks_per_node=ranks_per_node, chunk_size=chunk_size, cost=cost_weights(cost),
    )  # fmt: skip
    result = solve(source.problem, planner=planner_option.read_planner(planner))
    if save is not None:
        write_text(save, plan_to_json(result))
    if as_json:
        print_json(plan_as_json(result))
        return
    assert source.mask is not None
    console.print(f"[bold]{source.title}[/], density {source.mask.density:.4f}")
    console.print(
        f"{result.stats.planner}: {count(result.partition.num_chunks, 'chunk')} "
        f"of {result.partition.chunk_size} on {count(ranks, 'rank')} "
        f"in {count(result.cluster.num_nodes, 'node')}, "
        f"planned in {format_seconds(result.stats.planning_seconds)}"
    )
    console.print(str(result.status))
    console.print()
    _print_ranks(result)
    console.print()
    _print_figures(result)
    if save is not None:
        console.print(f"written into {save}", markup=False)


def _print_ranks(result: PlanResult) -> None:
    mean = sum(result.cost.loads) / len(result.cost.loads)
    table = new_table("rank", "tokens", "load", "", "receives", "chunks", text=("chunks",))
    for rank, load in enumerate(result.cost.loads):
        chunks = result.partition.chunks_of(rank)
        shown = " ".join(map(str, chunks[:CHUNKS_SHOWN])) + (" ..." if len(chunks) > CHUNKS_SHOWN else "")
        table.add_row(
            str(rank),
            f"{result.partition.num_tokens_of(rank):,}",
            f"{load / mean if mean else 1:.3f}",
            bar(load / max(result.cost.compute, 1), 8),
            format_bytes(result.cost.buffer_bytes_by_rank[rank]),
            shown,
        )
    console.print(table)
    console.print("[dim]load: of the ranks' mean, 1 is even[/]")


def _print_figures(result: PlanResult) -> None:
    cost, bounds, gaps = result.cost, result.bounds, result.gaps
    table = new_table(
        "figure",
        "value",
        "bound",
        "gap",
        "why no plan is below the bound",
        text=("why no plan is below the bound",),
    )
    table.add_row(
        "largest load (T)",
        f"{cost.compute:,}",
        f"{bounds.compute.value:,}",
        f"{gaps.compute:.2%}",
        bounds.compute.reason,
    )
    table.add_row(
        "between nodes (N)",
        format_bytes(cost.node_traffic),
        format_bytes(bounds.node_traffic.value),
        f"{gaps.node_traffic:.2%}",
        bounds.node_traffic.reason,
    )
    table.add_row("between ranks (C)", format_bytes(cost.rank_traffic), "", "", "")
    table.add_row("receive buffer (M)", format_bytes(cost.buffer_bytes), "", "", "")
    console.print(table)


def plan_as_json(result: PlanResult) -> dict[str, Any]:
    """Return a plan's figures as plain values."""
    cost, bounds, partition = result.cost, result.bounds, result.partition
    return {
        "planner": result.stats.planner,
        "status": str(result.status),
        "num_tokens": partition.num_tokens,
        "chunk_size": partition.chunk_size,
        "ranks_per_node": result.cluster.ranks_per_node,
        "chunks_by_rank": [list(chunks) for chunks in partition.chunks_by_rank],
        "loads": list(cost.loads),
        "compute": cost.compute,
        "compute_bound": {"value": bounds.compute.value, "reason": bounds.compute.reason},
        "node_traffic": cost.node_traffic,
        "node_traffic_bound": {"value": bounds.node_traffic.value, "reason": bounds.node_traffic.reason},
        "rank_traffic": cost.rank_traffic,
        "buffer_bytes": cost.buffer_bytes,
        "moves": result.stats.moves,
        "planning_seconds": result.stats.planning_seconds,
        "fingerprint": result.fingerprint,
    }
