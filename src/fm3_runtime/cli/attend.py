"""`fm3 attend`: the main job, its progress and its report."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import torch.distributed
import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fm3_core import Partition
from fm3_planner.planning import DEFAULT_PLANNER
from fm3_runtime.attend import (
    ALLOWED_RATIO,
    AttendError,
    AttendOptions,
    ErrorFigures,
    RunOutput,
    make_yardstick,
    run_rank,
)
from fm3_runtime.cli.options import (
    DEFAULT_TOKENS,
    AsJson,
    ChunkSize,
    Documents,
    MaskName,
    RanksPerNode,
    Tokens,
    read_documents,
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
from fm3_runtime.launch import run_ranks
from fm3_runtime.named_masks import named_mask
from fm3_runtime.packing import PackedDocuments

DEFAULT_RANKS = 4
RANK_PHASES = ("planning", "forward", "backward", "gathering")
CHECK_PHASES = 3


def attend(
    documents: Documents = None,
    glob: Annotated[
        str | None,
        typer.Option(help="Names of the files to take. By default *.py of the standard library, else all."),
    ] = None,
    tokens: Tokens = DEFAULT_TOKENS,
    ranks: Annotated[
        int | None,
        typer.Option(
            help=f"Processes to start. By default {DEFAULT_RANKS}; under torchrun, its ranks.", min=1
        ),
    ] = None,
    mask: MaskName = "causal_document",
    heads: Annotated[int, typer.Option(help="Query heads.")] = 8,
    kv_heads: Annotated[int, typer.Option(help="Heads of K and V.")] = 2,
    head_dim: Annotated[int, typer.Option(help="Elements of a head.")] = 64,
    dtype: Annotated[str, typer.Option(help="float32, float64, bfloat16 or float16.")] = "float32",
    planner: Annotated[str, typer.Option(help="Name of the load balancer.")] = DEFAULT_PLANNER,
    chunk_size: ChunkSize = None,
    ranks_per_node: RanksPerNode = None,
    gradient_wire: Annotated[
        str, typer.Option(help="What partial dK and dV travel as: float32 or bfloat16.")
    ] = "float32",
    seed: Annotated[int, typer.Option(help="Of the embedding of bytes.")] = 0,
    check: Annotated[bool, typer.Option(help="Compare with one rank in float64.")] = True,
    as_json: AsJson = False,
) -> None:
    """Run attention, forward and backward, over real documents shared by several ranks.

    Packs text files by bytes into one sequence, masks it by document, plans who owns which tokens, runs the
    ranks and prints their loads, the bytes moved and pruned, the time, and the error against one rank in
    float64.

    [bold]Examples[/]

    fm3 attend

    fm3 attend --documents ~/texts --glob '*.txt' --tokens 65536 --ranks 8 --planner zigzag

    torchrun --nproc-per-node 4 -m fm3_runtime attend --json
    """  # fmt: skip
    options = AttendOptions(
        mask=mask, heads=heads, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype, planner=planner,
        chunk_size=chunk_size, ranks_per_node=ranks_per_node, gradient_wire=gradient_wire, seed=seed,
    )  # fmt: skip
    packed = read_documents(documents, glob, tokens)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=messages,
        transient=True,
        disable=as_json or not messages.is_terminal,
    ) as progress:
        phases = len(RANK_PHASES) + (CHECK_PHASES if check else 0) + 1
        task = progress.add_task("starting the ranks", total=phases)
        seen: set[str] = set()

        def advance(phase: str) -> None:
            if phase not in seen:
                seen.add(phase)
                progress.update(task, description=phase, advance=1)

        output = _run(packed, options, ranks, advance)
        if output is None:
            return
        errors = make_yardstick(packed, options, advance).errors_of(output.tensors) if check else None
    if as_json:
        print_json(_as_json(packed, options, output, errors))
    else:
        _print_report(packed, options, output, errors)
    if errors is not None and not errors.within_bounds:
        raise typer.Exit(1)


def _run(
    packed: PackedDocuments, options: AttendOptions, ranks: int | None, advance: Any
) -> RunOutput | None:
    """Join the ranks that torchrun started, or start some; None where another rank reports."""
    if not torch.distributed.is_torchelastic_launched():
        outputs = run_ranks(ranks or DEFAULT_RANKS, run_rank, packed, options, on_event=advance)
        output: RunOutput = outputs[0]
        return output
    torch.distributed.init_process_group("gloo")
    try:
        world = torch.distributed.get_world_size()
        if ranks is not None and ranks != world:
            raise AttendError(f"--ranks {ranks} does not fit: torchrun started {world} ranks")
        return run_rank(advance, packed, options)
    finally:
        torch.distributed.destroy_process_group()


def _print_report(
    packed: PackedDocuments, options: AttendOptions, output: RunOutput, errors: ErrorFigures | None
) -> None:
    plan, figures = output.plan, output.ranks
    mask = named_mask(options.mask, packed.lengths)
    console.print(
        f"[bold]{count(len(packed.lengths), 'document')}, "
        f"{count(mask.num_rows, 'token')}[/] "
        f"({escape(packed.names[0])} ... {escape(packed.names[-1])})"
    )
    if packed.skipped:
        console.print(
            f"[dim]{count(len(packed.skipped), 'file')} left out, the first: {escape(packed.skipped[0])}[/]"
        )
    console.print(
        f"mask {options.mask}, density {mask.density:.4f}, "
        f"{int(mask.visible_pairs().sum()):,} visible pairs; q {options.heads} x {options.head_dim}, "
        f"k and v {options.kv_heads} x {options.head_dim}, {options.dtype}"
    )
    console.print(
        f"plan {plan.stats.planner}: {count(plan.partition.num_chunks, 'chunk')} "
        f"of {plan.partition.chunk_size}; "
        f"largest load {plan.cost.compute:,}, bound {plan.bounds.compute.value:,} "
        f"({plan.bounds.compute.reason}), gap {plan.gaps.compute:.2%}"
    )
    console.print()
    mean = sum(rank.load for rank in figures) / len(figures)
    most = max(rank.load for rank in figures) or 1
    table = new_table("rank", "tokens", "load", "", "keys seen", "sent", "pruned", "forward", "backward")
    for rank in figures:
        table.add_row(
            str(rank.rank),
            f"{rank.tokens:,}",
            f"{rank.load / mean if mean else 1:.3f}",
            bar(rank.load / most, 8),
            f"{rank.gathered_tokens:,}",
            format_bytes(rank.sent_bytes),
            format_bytes(rank.pruned_bytes),
            format_seconds(rank.forward_seconds),
            format_seconds(rank.backward_seconds),
        )
    moved, pruned = sum(rank.sent_bytes for rank in figures), sum(rank.pruned_bytes for rank in figures)
    table.add_section()
    table.add_row(
        "all", f"{mask.num_rows:,}", "", "", "", format_bytes(moved), format_bytes(pruned),
        format_seconds(max(rank.forward_seconds for rank in figures)),
        format_seconds(max(rank.backward_seconds for rank in figures)),
    )  # fmt: skip
    console.print(table)
    console.print(
        "[dim]load: of the ranks' mean, 1 is even; keys seen: gathered for the rank's rows, own included[/]"
    )
    console.print()
    console.print(
        f"moved {format_bytes(moved)}, pruned {format_bytes(pruned)}: "
        f"{_share(pruned, moved + pruned)} of what an all-gather and a reduce-scatter of everything move"
    )
    if errors is not None:
        _print_errors(errors, len(figures), options.dtype)


def _print_errors(errors: ErrorFigures, num_ranks: int, dtype: str) -> None:
    console.print()
    table = new_table("error against float64", "out", "dq", "dk", "dv")
    table.add_row(
        f"{count(num_ranks, 'rank')}, {dtype}", *(f"{errors.ranks[name]:.2e}" for name in errors.ranks)
    )
    table.add_row(f"one rank, {dtype}", *(f"{errors.one_rank[name]:.2e}" for name in errors.one_rank))
    console.print(table)
    console.print(f"float64 itself against the dense definition on sampled rows: {errors.oracle_rows:.2e}")
    if errors.within_bounds:
        console.print(
            f"[green]within bounds[/]: no error is above {ALLOWED_RATIO:g} x the largest of one rank"
        )
    else:
        console.print(
            f"[bold red]out of bounds[/]: an error is above {ALLOWED_RATIO:g} x the largest of one rank"
        )


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "0 %"


def _as_json(
    packed: PackedDocuments, options: AttendOptions, output: RunOutput, errors: ErrorFigures | None
) -> dict[str, Any]:
    mask, plan = named_mask(options.mask, packed.lengths), output.plan
    partition: Partition = plan.partition
    return {
        "documents": len(packed.lengths),
        "tokens": mask.num_rows,
        "skipped": list(packed.skipped),
        "options": asdict(options),
        "density": mask.density,
        "visible_pairs": int(mask.visible_pairs().sum()),
        "fingerprint": mask.fingerprint,
        "plan": {
            "planner": plan.stats.planner,
            "chunk_size": partition.chunk_size,
            "chunks_by_rank": [list(chunks) for chunks in partition.chunks_by_rank],
            "compute": plan.cost.compute,
            "compute_bound": plan.bounds.compute.value,
            "planning_seconds": plan.stats.planning_seconds,
        },
        "ranks": [asdict(rank) for rank in output.ranks],
        "errors": None if errors is None else {**asdict(errors), "within_bounds": errors.within_bounds},
    }
