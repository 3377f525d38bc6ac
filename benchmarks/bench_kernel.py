"""Attention kernels on one GPU, forward, backward and both together, beside FlexAttention, cuDNN and others.

For each of twelve masks at each length: TFLOP/s on visible pairs (4 a pair and element of the head dim
forward, 10 backward). Engines take turns, so that clock and heat are shared; an engine whose results are
wrong, or that raises, gets no time. Results are merged into a JSON file, and what it has is skipped: a run
can be cut into pieces, by --minutes for instance. Printed last: the table with its peers, and how far each
target is. 4096 tokens are timed and not scored.

Run: python benchmarks/bench_kernel.py [--json FILE] [--lengths 8192 32768] [--masks full ...]
     [--engines fm3 cudnn] [--passes forward backward both] [--minutes 9]
  --flex       also FlexAttention, which compiles for half a minute a mask
  --together   in a cell where one engine lacks a time, all that were asked for are timed again, in turns:
               ratios between engines are then of one run
  --ablations  also the forward kernel without one of its ideas: at run time, and builds of
               benchmarks/kernel_variants/build.py
  --external MODULE:FUNCTION   another engine: a function of kernel.cell.Cell, returning kernel.engines.Passes
  --build NAME=DIRECTORY       another build of fm3_kernels._C; the deterministic order is judged against
                               "any_order", a build whose sums of dQ come in any order
  --tiny       a few small cells on the CPU with engine "tiled": the benchmark's own machinery
  --print      the table and the targets of a file, nothing timed
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kernel.cell import Cell, Shape
from kernel.clock import Clock
from kernel.engines import PEERS, Engine, Passes, external
from kernel.masks import MASKS
from kernel.peers import PASSES, USUAL
from kernel.product import LACKS, PRODUCT, ablations, fm3, of_build
from kernel.results import Results
from kernel.table import ablations_table, engines_table, length_name, number
from kernel.targets import summary
from kernel.verify import Truth

SCRATCH = Path(__file__).parent / "scratch"
ENGINES = PRODUCT | PEERS
TINY = {
    "device": "cpu", "dtype": "float32", "engines": ["tiled"], "tokens": 256, "lengths": [128, 256],
    "heads": 2, "kv_heads": 1, "dim": 16, "rounds": 1, "budget_ms": 1.0, "pause_ms": 0.0,
    "json": SCRATCH / "tiny.json",
}  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    """Time what was asked for and print it, a line a cell, the table and the targets."""
    options = parse_options(arguments)
    results, shape = Results.read(options.json), shape_of(options)
    if not options.print:
        if options.device == "cuda" and not torch.cuda.is_available():
            print("no CUDA device here: nothing to time (--tiny runs anywhere)")
            return
        time_cells(options, results, shape)
    engines = [name for name in results.engines(shape.key) if name not in LACKS]
    print("\n".join(["", *engines_table(results, engines, shape.key), ""]))
    if any(name in LACKS for name in results.engines(shape.key)):
        print("\n".join([*ablations_table(results, LACKS, shape.key), ""]))
    print("\n".join(summary(results, shape.key)))


def parse_options(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, default=SCRATCH / "kernel.json")
    parser.add_argument("--lengths", type=int, nargs="*", default=[4096, 8192, 32768])
    parser.add_argument("--masks", nargs="*", default=list(MASKS), choices=list(MASKS))
    parser.add_argument("--engines", nargs="*", default=["fm3", "cudnn"], choices=list(ENGINES))
    parser.add_argument("--passes", nargs="*", default=list(PASSES), choices=PASSES)
    parser.add_argument("--flex", action="store_true", help="also FlexAttention")
    parser.add_argument("--ablations", action="store_true", help="also the kernel without one of its ideas")
    parser.add_argument("--variants", type=Path, default=SCRATCH / "variants", help="builds of ablations")
    parser.add_argument("--build", nargs="*", default=[], help="NAME=DIRECTORY of another extension")
    parser.add_argument("--external", nargs="*", default=[], help="MODULE:FUNCTION of another engine")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], default="bfloat16")
    parser.add_argument("--tokens", type=int, default=131072, help="over the batch")
    parser.add_argument("--heads", type=int, default=USUAL["heads"])
    parser.add_argument("--kv-heads", type=int, default=USUAL["kv_heads"])
    parser.add_argument("--dim", type=int, default=USUAL["dim"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget-ms", type=float, default=100.0, help="of each engine and pass")
    parser.add_argument("--pause-ms", type=float, default=50.0, help="idle before each measurement")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no cell after this")
    parser.add_argument("--again", action="store_true", help="time what the file has")
    parser.add_argument("--together", action="store_true", help="where one lacks a time, all take turns")
    parser.add_argument("--tiny", action="store_true", help="a few small cells on the CPU")
    parser.add_argument("--print", action="store_true", help="the file's table and targets")
    if parser.parse_args(arguments).tiny:
        parser.set_defaults(**TINY)
    return parser.parse_args(arguments)


def shape_of(options: argparse.Namespace) -> Shape:
    """Return the tensors that were asked for."""
    dtype = getattr(torch, options.dtype)
    return Shape(options.tokens, options.heads, options.kv_heads, options.dim, dtype)


def engines_of(options: argparse.Namespace) -> dict[str, Engine]:
    """Return the engines that were asked for."""
    names = [*options.engines, *(["flex"] if options.flex and "flex" not in options.engines else [])]
    chosen = {name: ENGINES[name] for name in names}
    for build in options.build:
        name, directory = build.split("=", 1)
        chosen[name] = of_build(Path(directory), fm3)
    if options.ablations:
        engines, absent = ablations(options.variants)
        chosen |= engines
        for line in absent:
            print(f"not built: {line}", flush=True)
    return chosen | {name: external(name) for name in options.external}


def time_cells(options: argparse.Namespace, results: Results, shape: Shape) -> None:
    """Time every cell that the file lacks, until the minutes are over."""
    start = time.monotonic()
    clock = Clock(
        rounds=options.rounds,
        budget_seconds=options.budget_ms / 1e3,
        pause_seconds=options.pause_ms / 1e3,
        device=options.device,
    )
    engines, said = engines_of(options), set[tuple[str, str]]()
    for tokens in options.lengths:
        for name in options.masks:
            todo = {}
            for engine, made in engines.items():
                reason = made.why_not(name, tokens)
                key = key_of(name, tokens, engine, shape)
                passes = options.passes if options.again else results.lacks(key, options.passes)
                if reason is None:
                    todo[engine] = passes
            if not any(todo.values()):
                continue
            if options.together:
                todo = dict.fromkeys(todo, options.passes)
            todo = {engine: passes for engine, passes in todo.items() if passes}
            if time.monotonic() - start > 60 * options.minutes:
                print(f"{options.minutes:g} minutes are over: the same command goes on from here", flush=True)
                return
            if results.run < 0:
                results.begin(facts_of_run(options.device, clock))
            cell = Cell.draw(name, tokens, shape, options.device)
            line = time_cell(cell, shape, {e: (engines[e], p) for e, p in todo.items()}, clock, results, said)
            print(line, flush=True)


def facts_of_run(device: str, clock: Clock) -> dict[str, Any]:
    """Return GPU, versions and date, and what a large matrix product reaches now."""
    facts: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name() if device == "cuda" else "none",
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }
    if device == "cuda":
        facts |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
        facts["cublas_8192_tflops"] = matrix_product_tflops(clock)
        print(f"cuBLAS 8192^3: {facts['cublas_8192_tflops']:.0f} TFLOP/s", flush=True)
    return facts


def key_of(name: str, tokens: int, engine: str, shape: Shape) -> dict[str, Any]:
    """Return what names a result."""
    return {"cell": name, "tokens": tokens, "engine": engine, **shape.key}


def time_cell(
    cell: Cell,
    shape: Shape,
    engines: dict[str, tuple[Engine, list[str]]],
    clock: Clock,
    results: Results,
    said: set[tuple[str, str]],
) -> str:
    """Verify every engine, time those that are right, keep the results and return a line.

    Args:
        cell: mask and tensors.
        shape: of the tensors.
        engines: each with the passes to time.
        clock: how.
        results: where they are kept.
        said: reasons that were printed before; an engine's are printed once.
    """
    truth, right = Truth(cell), {}
    line = f"{cell.name:22s} {length_name(cell.tokens):>4s}"
    for name, (engine, passes) in engines.items():
        key = key_of(cell.name, cell.tokens, name, shape)
        try:
            made = engine.passes(cell)
            wrong = None if isinstance(made, str) else why_wrong(truth, made, passes)
        except Exception as failure:
            if cell.q.is_cuda:
                torch.cuda.synchronize()  # raises again where the device is lost: then nothing can be timed
            made, wrong = "", first_line(failure)
        if wrong is not None:
            results.keep(key, wrong=wrong)
            line += f"  {name}: WRONG, {wrong}"
        elif isinstance(made, str):
            line += "" if (name, made) in said else f"  {name}: not here, {made}"
            said.add((name, made))
        else:
            right[name] = made, passes
    calls = {
        (name, which): call
        for name, (made, passes) in right.items()
        for which in passes
        if which not in made.untimed and (call := getattr(made, which)) is not None
    }
    seconds = clock.seconds(calls)
    for name, (made, passes) in right.items():
        mine = {which: seconds[name, which] for which in passes if (name, which) in seconds}
        tflops = {which: cell.tflops(which, spent) for which, spent in mine.items()}
        prepare_seconds, why_not = time_preparing(made, clock)
        results.keep(
            key_of(cell.name, cell.tokens, name, shape),
            tflops=tflops,
            missing=why_not
            | {
                which: made.untimed.get(which, "it has no such pass") for which in passes if which not in mine
            },
            cells=[
                cell.counted(which, mine[which], size) for which, size in made.blocks.items() if which in mine
            ],
            density=cell.density,
            mask_heads=cell.mask.heads,
            prepare_seconds=prepare_seconds,
        )
        line += f"  {name}: " + " / ".join(f"{number(rate)} {which}" for which, rate in tflops.items())
    return line


def why_wrong(truth: Truth, made: Passes, passes: list[str]) -> str | None:
    """Return what is wrong with an engine's results, or None."""
    out = made.forward()
    error = truth.forward_error(*(out if isinstance(out, tuple) else (out, None)))
    if not error <= 1:
        return f"output's error is {error:.3g} of what is allowed"
    for which in ("backward", "both"):
        call = getattr(made, which)
        if call is None or which not in passes or which in made.untimed:
            continue
        found = call()
        error = truth.gradient_error(found)
        if not error <= 1:
            return f"gradients' error ({which}) is {error:.3g} of what is allowed"
        if made.repeats_bits and not all(map(torch.equal, found, call())):
            return f"two passes ({which}) gave different bits"
    return None


def time_preparing(made: Passes, clock: Clock) -> tuple[dict[str, float], dict[str, str]]:
    """Return the seconds of what is done once a mask, and why something could not be timed."""
    seconds, why_not = {}, {}
    for what, call in made.prepare.items():
        try:
            seconds[what] = clock.seconds_on_device(call)
        except RuntimeError as failure:
            why_not[f"prepare {what}"] = first_line(failure)
    return seconds, why_not


def first_line(failure: Exception) -> str:
    """Return an error's kind and the first line of what it says."""
    return f"{type(failure).__name__}: {(str(failure).splitlines() or [''])[0]}"


def matrix_product_tflops(clock: Clock) -> float:
    """Return what a large matrix product reaches on this GPU now."""
    a, b = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
    return 2 * 8192**3 / clock.seconds({"": partial(torch.matmul, a, b)})[""] / 1e12


if __name__ == "__main__":
    main()
