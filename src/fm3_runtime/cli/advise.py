"""`fm3 advise`: which chunk size, and what the others would cost."""

from __future__ import annotations

from typing import Annotated

import typer

from fm3_planner import CostWeights, StepSpeeds, advise_chunk_size
from fm3_planner.planning import DEFAULT_PLANNER
from fm3_runtime.cli import planner_option
from fm3_runtime.cli.cost_option import Cost, read_calibration
from fm3_runtime.cli.options import AsJson, Documents, Lengths, MaskName, Ranks, RanksPerNode, read_mask
from fm3_runtime.cli.output import console, count, format_bytes, format_seconds, new_table, print_json

_PICOSECONDS = 1e12


def advise(
    documents: Documents = None,
    glob: Annotated[str | None, typer.Option(help="Names of the files to take.")] = None,
    tokens: Annotated[
        int | None, typer.Option(help="Tokens of the sequence, 16384 by default.", min=1)
    ] = None,
    lengths: Lengths = None,
    mask: MaskName = "causal_document",
    ranks: Ranks = 4,
    ranks_per_node: RanksPerNode = None,
    planner: Annotated[str, typer.Option(help=planner_option.HELP)] = DEFAULT_PLANNER,
    rank_gigabytes: Annotated[int, typer.Option(help="GB/s that a rank receives in its node.", min=1)] = 400,
    node_gigabytes: Annotated[int, typer.Option(help="GB/s that it receives from other nodes.", min=1)] = 50,
    cost: Cost = None,
    query_heads: Annotated[int | None, typer.Option(help="Heads of q; the mask's by default.", min=1)] = None,
    kv_heads: Annotated[int | None, typer.Option(help="Heads of k and v; as many as of q.", min=1)] = None,
    head_dim: Annotated[int | None, typer.Option(help="Elements of a head, 128 by default.", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Choose a chunk size: small chunks balance better, large ones plan faster and cross nodes less.

    [bold]Example[/]

    fm3 advise --tokens 131072 --ranks 16 --ranks-per-node 8
    """
    column_mask, chosen = read_mask(mask, lengths, documents, glob, tokens)
    calibration = None if cost is None else read_calibration(cost)
    assumed = StepSpeeds()
    speeds = StepSpeeds(
        unit_femtoseconds=calibration.unit_femtoseconds if calibration else assumed.unit_femtoseconds,
        rank_bytes_per_second=rank_gigabytes * 10**9,
        node_bytes_per_second=node_gigabytes * 10**9,
    )
    advice = advise_chunk_size(
        column_mask,
        num_ranks=ranks,
        ranks_per_node=ranks_per_node,
        planner=planner_option.read_planner(planner),
        cost=calibration.cost if calibration else CostWeights(),
        speeds=speeds,
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
    )
    options = [
        {
            "chunk_size": option.chunk_size,
            "num_chunks": option.num_chunks,
            "compute": option.result.cost.compute,
            "compute_bound": option.result.bounds.compute.value,
            "node_traffic": option.result.cost.node_traffic,
            "planning_seconds": option.result.stats.planning_seconds,
            "predicted_seconds": option.predicted_picoseconds / _PICOSECONDS,
            "is_on_frontier": option.is_on_frontier,
        }
        for option in advice.options
    ]
    if as_json:
        print_json({"chunk_size": advice.chunk_size, "reason": advice.reason, "options": options})
        return
    console.print(
        f"[bold]{mask} over {count(len(chosen), 'document')}, {count(column_mask.num_rows, 'token')}[/]"
    )
    console.print(advice.reason)
    console.print()
    table = new_table("chunk", "chunks", "load", "gap", "nodes", "planning", "predicted", "frontier")
    for option in advice.options:
        result = option.result
        table.add_row(
            f"{option.chunk_size:,}",
            f"{option.num_chunks:,}",
            f"{result.cost.compute:,}",
            f"{result.gaps.compute:.2%}",
            format_bytes(result.cost.node_traffic),
            format_seconds(result.stats.planning_seconds),
            format_seconds(option.predicted_picoseconds / _PICOSECONDS),
            "yes" if option.is_on_frontier else "",
            style="bold green" if option.chunk_size == advice.chunk_size else None,
        )
    console.print(table)
    console.print(
        "[dim]predicted: compute of the slowest rank plus traffic, not overlapped, at these speeds[/]"
    )
