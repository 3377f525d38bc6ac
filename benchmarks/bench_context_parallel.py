"""Attention shared by P ranks: planners, backends, overlap and pruning beside an all-gather and a ring.

First P ranks are compared with one on all twelve masks, forward and backward, in every variant: one that is
wrong anywhere gets no time. Then, for each mask that is timed: TFLOP/s a GPU on visible pairs, what of the
communication is exposed, overlap efficiency (1 - exposed / communication alone) and bytes moved, all variants
in turns within one run; and variants on two pretended nodes without hierarchical routing, pruning, balancing
or segments, each alone. Results of several runs, with other numbers of ranks say, are merged into one JSON
file; cells that it has are skipped.

Run: torchrun --standalone --nproc-per-node P benchmarks/bench_context_parallel.py [--json FILE]
     [--masks document ...] [--planners hcc_ipo ...] [--backends torch_dist ...] [--minutes 9]
  --train STEPS  instead: train a small model with one rank and with P, and compare the losses
  --device cpu   gloo and the engine "tiled", for which --tiny chooses small sizes
  --print        the tables of a file, nothing timed; needs no torchrun
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from context_parallel.all_gather import AllGather
from context_parallel.clock import JobClock
from context_parallel.job import Job, why_absent
from context_parallel.measure import measure
from context_parallel.method import PASSES, Method
from context_parallel.planned import Planned, between_nodes_bytes, planned_step
from context_parallel.ring import Ring
from context_parallel.table import goals, tables
from context_parallel.train import compare_training
from context_parallel.variant import PLANNERS, Variant, ablations, grid
from context_parallel.verify import OneRank
from fm3_comm import backends
from kernel.cell import Cell, Shape
from kernel.masks import MASKS
from kernel.results import Results

SCRATCH = Path(__file__).parent / "scratch"
TIMED = ("causal_document", "document", "prefix_lm_document", "causal")
ON_CPU = {"dtype": "float32", "engine": "tiled", "backends": ["torch_dist", "shm"]}
TINY = ON_CPU | {
    "device": "cpu", "tokens_per_rank": 128, "check_tokens": 64, "chunk_size": 16,
    "heads": 2, "kv_heads": 1, "dim": 16, "rounds": 1, "calls": 1, "pause_ms": 0.0,
    "json": SCRATCH / "context_parallel_tiny.json",
}  # fmt: skip

Make = Callable[[Job, Cell], Method]


def main(arguments: list[str] | None = None) -> None:
    """Verify, time and print what was asked for."""
    options = parse_options(arguments)
    shape = Shape(heads=options.heads, kv_heads=options.kv_heads, dim=options.dim,
                  dtype=getattr(torch, options.dtype))  # fmt: skip
    if options.print:
        return show(Results.read(options.json), shape)
    if "LOCAL_RANK" not in os.environ:
        print("ranks are started by torchrun --standalone --nproc-per-node P: nothing to time")
        return
    if options.device == "cuda" and torch.cuda.device_count() < int(os.environ["LOCAL_WORLD_SIZE"]):
        print("fewer CUDA devices than ranks: nothing to time (--tiny runs anywhere)")
        return
    job = Job.join(options.device, options.timeout)
    present = present_backends(job, options.backends)
    results = Results.read(options.json)
    if options.train:
        agree = train(job, options, present, results)
    else:
        agree = check_and_time(job, options, present, shape, results)
        if job.rank == 0:
            show(results, shape)
    job.leave()
    if not agree:
        raise SystemExit(1)


def parse_options(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, default=SCRATCH / "context_parallel.json")
    parser.add_argument("--masks", nargs="*", default=list(TIMED), choices=list(MASKS), help="timed")
    parser.add_argument("--check-masks", nargs="*", default=list(MASKS), choices=list(MASKS))
    parser.add_argument("--planners", nargs="*", default=list(PLANNERS))
    parser.add_argument("--backends", nargs="*", default=["torch_dist", "nvshmem"], choices=backends.names())
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--engine", default="hopper")
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], default="bfloat16")
    parser.add_argument("--tokens-per-rank", type=int, default=8192)
    parser.add_argument("--check-tokens", type=int, default=1024, help="a rank, in the first comparison")
    parser.add_argument("--heads", type=int, default=64)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--chunk-size", type=int, help="tokens; chosen for each mask by default")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each call; the median counts")
    parser.add_argument("--calls", type=int, default=4, help="calls of a turn")
    parser.add_argument("--pause-ms", type=float, default=20.0, help="idle before each turn")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no cell after this")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds that a rank waits for another")
    parser.add_argument("--again", action="store_true", help="time what the file has")
    parser.add_argument("--train", type=int, default=0, metavar="STEPS", help="compare losses instead")
    parser.add_argument("--tiny", action="store_true", help="small, on the CPU")
    parser.add_argument("--print", action="store_true", help="the file's tables")
    first = parser.parse_args(arguments)
    if first.tiny:
        parser.set_defaults(**TINY)
    elif first.device == "cpu":
        parser.set_defaults(**ON_CPU)
    return parser.parse_args(arguments)


def show(results: Results, shape: Shape) -> None:
    """Print tables and goals."""
    print("\n".join(["", *tables(results, shape.key), "", *goals(results, shape.key)]), flush=True)


def present_backends(job: Job, names: list[str]) -> list[str]:
    """Return those that every rank has; say why the others are not here."""
    present = []
    for name in names:
        reasons = [reason for reason in job.all(why_absent(name)) if reason is not None]
        if reasons:
            job.say(f"{name} is not here: {reasons[0]}")
        else:
            present.append(name)
    return present


def train(job: Job, options: argparse.Namespace, present: list[str], results: Results) -> bool:
    """Compare the losses of one rank and of P, keep and print them; return whether all agree."""
    found = compare_training(
        job, present, steps=options.train, tokens_per_rank=options.check_tokens,
        engine=options.engine, dtype=getattr(torch, options.dtype),
    )  # fmt: skip
    if job.rank == 0:
        results.content.setdefault("training", []).append({**facts_of_run(job), **found})
        results.write()
    losses = found["losses"]["one rank"]
    job.say(
        f"{options.train} steps of {found['tokens']} tokens, one rank: {losses[0]:.6f} -> {losses[-1]:.6f}"
    )
    for backend, agrees in found["agree"].items():
        job.say(
            f"{job.num_ranks} ranks, {backend}: {'agree' if agrees else 'DIFFER'}, farthest from float64 "
            f"{found['farthest'][backend]:.3g} of {found['farthest_allowed']:.3g} allowed"
        )
    return all(found["agree"].values()) and found["learnt"]


def facts_of_run(job: Job) -> dict[str, Any]:
    """Return device, versions and date."""
    on_gpu = job.device.type == "cuda"
    return {
        "gpu": torch.cuda.get_device_name() if on_gpu else "none",
        "torch": torch.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if on_gpu else "none",
        "date": time.strftime("%Y-%m-%d"),
        "ranks": job.num_ranks,
    }


def variants_of(options: argparse.Namespace, present: list[str], num_ranks: int) -> list[Variant]:
    """Return the grid and the ablations."""
    ablated = [variant for backend in present for variant in ablations(backend, num_ranks).values()]
    return [*grid(options.planners, present), *ablated]


def methods_of(options: argparse.Namespace, variants: list[Variant]) -> dict[str, Make]:
    """Return by name how each baseline and variant is made over a cell."""

    def planned(variant: Variant) -> Make:
        return lambda job, cell: Planned(
            cell, planned_step(job, variant, cell.mask, options.chunk_size), options.engine
        )

    return {
        "all-gather zigzag": lambda job, cell: AllGather(job, cell, options.engine),
        "ring zigzag": lambda job, cell: Ring(job, cell, options.engine),
        **{variant.name: planned(variant) for variant in variants},
    }


def check_and_time(
    job: Job, options: argparse.Namespace, present: list[str], shape: Shape, results: Results
) -> bool:
    """Compare everything with one rank, time what is right; return whether all was right."""
    start = time.monotonic()
    variants = variants_of(options, present, job.num_ranks)
    makes = methods_of(options, variants)
    wrong = check(job, options, shape, makes)
    for name in options.masks:
        tokens = options.tokens_per_rank * job.num_ranks
        key = {"cell": name, "tokens": tokens, **shape.key, "ranks": job.num_ranks}
        lacks = any(results.lacks({**key, "engine": method}, PASSES) for method in makes)
        if not job.agree(options.again or lacks):
            continue
        if job.agree(time.monotonic() - start > 60 * options.minutes):
            job.say(f"{options.minutes:g} minutes are over: the same command goes on from here")
            break
        if results.run < 0:
            results.begin(facts_of_run(job))
        time_cell(job, options, shape, key, variants, wrong, results)
    return not wrong


def check(job: Job, options: argparse.Namespace, shape: Shape, makes: dict[str, Make]) -> dict[str, str]:
    """Compare with one rank on short sequences of all masks; return what is wrong, by method."""
    wrong: dict[str, str] = {}
    for name in options.check_masks:
        cell = Cell.draw(name, options.check_tokens * job.num_ranks, shape_of_one(shape), str(job.device))
        _, found = right_methods(job, cell, makes, options.engine)
        job.say(f"{name:22s} {len(makes) - len(found)} of {len(makes)} right, {job.num_ranks} ranks")
        for method, why in found.items():
            job.say(f"  {method}: WRONG, {why}")
            wrong.setdefault(method, f"{name}: {why}")
    return wrong


def time_cell(
    job: Job,
    options: argparse.Namespace,
    shape: Shape,
    key: dict[str, Any],
    variants: list[Variant],
    wrong: dict[str, str],
    results: Results,
) -> None:
    """Compare with one rank at full length, time what is right and keep it.

    Args:
        job: the ranks.
        options: of the command line.
        shape: of the tensors.
        key: of the results, but for the method's name.
        variants: beside the baselines.
        wrong: what was wrong before, by method; what is wrong now is added.
        results: where rank 0 keeps figures.
    """
    name, makes = key["cell"], methods_of(options, variants)
    facts = {variant.name: dict(vars(variant)) for variant in variants}
    cell = Cell.draw(name, key["tokens"], shape_of_one(shape), str(job.device))
    todo = {method: make for method, make in makes.items() if method not in wrong}
    methods, found = right_methods(job, cell, todo, options.engine)
    wrong |= {method: f"{name}: {why}" for method, why in found.items()}
    clock = JobClock(
        job=job, rounds=options.rounds, calls=options.calls, pause_seconds=options.pause_ms / 1e3
    )
    timed = measure(job, cell, methods, clock)
    job.say(f"{name:22s} {len(timed)} of {len(makes)} timed")
    if job.rank != 0:
        return
    for method in makes:
        if method in wrong:
            results.keep({**key, "engine": method}, wrong=wrong[method])
            continue
        passes = timed[method]
        results.keep(
            {**key, "engine": method},
            tflops={which: passes[which]["tflops"] for which in PASSES},
            passes=passes,
            density=cell.density,
            chunk_size=methods[method].step.partition.chunk_size,
            bytes_between_nodes=between_nodes_bytes(methods[method]),
            **facts.get(method, {}),
        )


def shape_of_one(shape: Shape) -> Shape:
    """Return the same heads with one batch entry, however long."""
    return Shape(1, shape.heads, shape.kv_heads, shape.dim, shape.dtype)


def right_methods(
    job: Job, cell: Cell, makes: dict[str, Make], engine: str
) -> tuple[dict[str, Method], dict[str, str]]:
    """Return the methods whose results over a cell are one rank's, and what is wrong with the others."""
    one, methods, wrong = OneRank(cell, engine), {}, {}
    for name, make in makes.items():
        method, why = None, None
        try:
            method = make(job, cell)
            why = one.why_wrong(method)
        except Exception as failure:
            job.finish()  # raises again where the device is lost: then nothing can be compared
            why = f"{type(failure).__name__}: {(str(failure).splitlines() or [''])[0]}"
        said = [f"rank {rank}: {text}" for rank, text in enumerate(job.all(why)) if text is not None]
        if said or method is None:
            wrong[name] = said[0]
        else:
            methods[name] = method
    return methods, wrong


if __name__ == "__main__":
    main()
