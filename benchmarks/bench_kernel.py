"""Attention kernels on one GPU, forward, backward and both together, beside FlexAttention, cuDNN and others.

For each of twelve masks at each length: TFLOP/s on visible pairs (4 a pair and element of the head dim
forward, 10 backward). Engines take turns, so that clock and heat are shared; an engine whose results are
wrong gets no time. "fm3 ordered" is the deterministic backward. Results are merged into a JSON file, and what
it has is skipped, so that a run can be cut into pieces (FlexAttention compiles for half a minute a mask).
The last lines are geometric means.

Run: python benchmarks/bench_kernel.py [--json FILE] [--lengths 8192 32768] [--masks full ...]
     [--engines fm3 "fm3 ordered" flex cudnn] [--passes forward backward both] [--ablations]
     [--build NAME=DIRECTORY] [--external MODULE:FUNCTION]

--ablations adds this kernel without one of its ideas: row blocks in ascending order, and heads grouped by
other sizes of K and V. --build times another build of fm3_kernels._C beside this one.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fm3_kernels import attention_forward
from kernel.cell import Cell, Shape
from kernel.clock import Clock
from kernel.engines import ENGINES, Engine, Passes, external, of_build
from kernel.masks import MASKS
from kernel.results import PASSES, Results, summary
from kernel.verify import GRADIENT_ERROR, forward_error, gradient_error

ABLATIONS = ["fm3 ascending", "fm3 section 8 MiB", "fm3 section 128 MiB", "fm3 no sections"]


def main(arguments: list[str] | None = None) -> None:
    """Time what was asked for and print it, a line a cell."""
    options = parse_options(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device here: nothing to time (--device cpu --engines tiled runs anywhere)")
        return
    results, clock, shape = Results.read(options.json), clock_of(options), shape_of(options)
    results.content |= {
        "gpu": device_name(options),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }
    if options.device == "cuda":
        rate = matrix_product_tflops(clock)
        print(f"cuBLAS 8192^3: {rate:.0f} TFLOP/s", flush=True)
        results.keep({"cell": "cublas 8192^3", "engine": "cublas", "tflops": rate})
    engines = engines_of(options)
    for tokens in options.lengths:
        for name in options.masks:
            todo = {
                engine: make
                for engine, make in engines.items()
                if options.again or not results.has(record_of(name, tokens, engine, shape), options.passes)
            }
            if todo:
                cell = Cell.draw(name, tokens, shape, options.device)
                print(time_cell(cell, shape, todo, options.passes, clock, results), flush=True)
    print("\n".join(summary(results, list(engines), options.passes, shape.key)))


def parse_options(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "scratch/kernel.json")
    parser.add_argument("--lengths", type=int, nargs="*", default=[4096, 8192, 32768])
    parser.add_argument("--masks", nargs="*", default=list(MASKS), choices=list(MASKS))
    parser.add_argument(
        "--engines", nargs="*", default=["fm3", "fm3 ordered", "flex", "cudnn"], choices=list(ENGINES)
    )
    parser.add_argument("--passes", nargs="*", default=list(PASSES), choices=PASSES)
    parser.add_argument("--ablations", action="store_true", help="also this kernel without one of its ideas")
    parser.add_argument("--build", nargs="*", default=[], help="NAME=DIRECTORY of another extension")
    parser.add_argument("--external", nargs="*", default=[], help="MODULE:FUNCTION of another engine")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], default="bfloat16")
    parser.add_argument("--tokens", type=int, default=131072, help="over the batch")
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=32)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget-ms", type=float, default=100.0, help="of each engine and pass")
    parser.add_argument("--pause-ms", type=float, default=50.0, help="idle before each measurement")
    parser.add_argument("--again", action="store_true", help="time what the file has")
    return parser.parse_args(arguments)


def shape_of(options: argparse.Namespace) -> Shape:
    """Return the tensors that were asked for."""
    dtype = getattr(torch, options.dtype)
    return Shape(options.tokens, options.heads, options.kv_heads, options.dim, dtype)


def clock_of(options: argparse.Namespace) -> Clock:
    """Return how calls are timed."""
    return Clock(
        rounds=options.rounds,
        budget_seconds=options.budget_ms / 1e3,
        pause_seconds=options.pause_ms / 1e3,
        device=options.device,
    )


def device_name(options: argparse.Namespace) -> str:
    """Return the GPU's name."""
    return torch.cuda.get_device_name() if options.device == "cuda" else "none"


def engines_of(options: argparse.Namespace) -> dict[str, Engine]:
    """Return the engines that were asked for."""
    names = [*options.engines, *(ABLATIONS if options.ablations else [])]
    chosen = {name: ENGINES[name] for name in names}
    for build in options.build:
        name, directory = build.split("=", 1)
        chosen |= {
            name: of_build(Path(directory)),
            f"{name} ordered": of_build(Path(directory), ordered=True),
        }
    return chosen | {name: external(name) for name in options.external}


def record_of(name: str, tokens: int, engine: str, shape: Shape) -> dict[str, Any]:
    """Return what names a result."""
    return {"cell": name, "tokens": tokens, "engine": engine, **shape.key}


def time_cell(
    cell: Cell, shape: Shape, engines: dict[str, Engine], passes: list[str], clock: Clock, results: Results
) -> str:
    """Verify every engine, time those that are right, keep the results and return a line."""
    right: dict[str, Passes] = {}
    line = f"{cell.name:22s} {cell.tokens:6d}"
    for name, make in engines.items():
        made = make(cell)
        reason = "it does not have this mask" if made is None else why_wrong(cell, made, passes)
        if reason is None:
            right[name] = made
            continue
        results.keep(record_of(cell.name, cell.tokens, name, shape) | {"reason": reason})
        line += "" if made is None else f"  {name}: WRONG, {reason}"
    calls = {
        (name, which): call for name in right for which in passes if (call := getattr(right[name], which))
    }
    seconds = clock.seconds(calls)
    for name, made in right.items():
        found = {
            which: cell.tflops(which, seconds[name, which]) for which in passes if (name, which) in seconds
        }
        record = record_of(cell.name, cell.tokens, name, shape)
        results.keep(record | found, counted_cells(cell, record, made, seconds))
        line += f"  {name}: " + " / ".join(
            f"{rate:.3g}" if rate < 10 else f"{rate:.0f}" for rate in found.values()
        )
    return line


def why_wrong(cell: Cell, made: Passes, passes: list[str]) -> str | None:
    """Return what is wrong with an engine's results, or None."""
    out = made.forward()
    out, lse = out if isinstance(out, tuple) else (out, None)
    reference = out, lse
    if lse is None:  # an engine without one is judged by its output
        engine = "hopper" if out.is_cuda else "tiled"
        reference = attention_forward(cell.q, cell.k, cell.v, cell.mask, engine=engine)
        lse = reference[1]
    error = forward_error(cell, out, lse)
    if not error <= 1:
        return f"output's error is {error:.3g} of what is allowed"
    if made.both is not None and set(passes) & {"backward", "both"}:
        error = gradient_error(cell, reference, made.both())
        if not error <= GRADIENT_ERROR:
            return f"gradients' relative error is {error:.3g}"
    return None


def counted_cells(
    cell: Cell, record: dict[str, Any], made: Passes, seconds: dict[tuple[str, str], float]
) -> list[dict[str, Any]]:
    """Return forward and backward as `fm3 calibrate` reads them, where the engine's blocks are known."""
    rows = {"forward": made.block_rows, "backward": made.block_rows_back}
    return [
        {
            **record,
            "direction": which,
            "seconds": seconds[record["engine"], which],
            **cell.blocks(height, made.block_keys),
        }
        for which, height in rows.items()
        if height and (record["engine"], which) in seconds
    ]


def matrix_product_tflops(clock: Clock) -> float:
    """Return what a large matrix product reaches on this GPU now."""
    a, b = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
    return 2 * 8192**3 / clock.seconds({"": partial(torch.matmul, a, b)})[""] / 1e12


if __name__ == "__main__":
    main()
