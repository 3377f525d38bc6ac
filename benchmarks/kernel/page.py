"""docs/performance.md and its picture, drawn from result files.

Run from benchmarks: python -m kernel.page writes both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernel.chart import ratio_chart
from kernel.masks import MASKS
from kernel.peers import DIM_64, GROUPED, USUAL, best_rates
from kernel.product import LACKS
from kernel.results import Results, geometric_mean, ratios
from kernel.table import ablation_rows, length_name, markdown
from kernel.targets import peer_means, standings

ROOT = Path(__file__).parents[2]
PAGE, PICTURE = ROOT / "docs/performance.md", ROOT / "docs/images/kernel_forward.svg"
FOLDER = ROOT / "benchmarks/results"
FILES = ("kernel_h200.json", "kernel_h200_dim64.json")
ROUND_2, ABLATIONS = "backward_round2.json", "kernel_h200_ablations.json"
SHAPES = {
    "32 heads of dim 128": USUAL,
    "32 query heads, 8 KV heads of dim 128": GROUPED,
    "64 heads of dim 64": DIM_64,
}

INTRODUCTION = """# Performance

How figures are made: TFLOP/s on visible pairs, 4 a pair and element of the head dim forward and 10
backward; bf16, 131072 tokens in all; engines take turns within one run, an engine whose results are wrong
gets no time, and masks are prepared before the clock starts. Published figures are those of six public
kernels measured on one H200 (`benchmarks/data/peer_figures.json`); where FlexAttention was timed in the
same file, a peer's figure is scaled by FlexAttention here over FlexAttention there, because absolute
figures drift with clock and heat. `python -m kernel.page`, run from `benchmarks`, writes this page and its
picture from the results.

```console
$ python benchmarks/bench_kernel.py --json results.json --lengths 8192 32768 --minutes 9
$ python benchmarks/bench_kernel.py --json results.json --lengths 8192 --engines fm3 --flex --together
$ python benchmarks/kernel_variants/build.py && python benchmarks/bench_kernel.py --ablations --passes forward
```

The first times forward, backward and both for this project's kernels and cuDNN; the
second adds FlexAttention, in turns with the kernels: it compiles for half a minute a mask, so it is asked
for by itself. A run goes on where the file ends. The third builds and times the forward kernel without one
of its ideas. `--external MODULE:FUNCTION` times another engine, `--tiny` tries the benchmark itself on a
CPU, and `fm3 calibrate` fits a planner's cost weights to the file."""

UNMEASURED = """## What has not been measured

* **Forward**: the tables are of the kernel before it learnt to wait for keys that arrive late and to take
  maps of blocks to keep. With both it ran six masks at 8K as fast as before; the tables have not been made
  again.
* **Backward**: the present kernel was right and was timed in some cells only
  ([kernel-notes-backward.md](kernel-notes-backward.md), round 6); the last table is of round 2. How its lists
  are made once a mask was changed after that, and has not run.
* **Both passes together, FlexAttention in the same run, 4096 tokens, fp16**: nothing yet. The time to
  prepare a mask is in [kernel-notes.md](kernel-notes.md), of an earlier round.
* **Ablations**: those without a figure below compile, without spills and serialised products, and have not
  run."""


SEVERAL_GPUS = """## Several GPUs

`benchmarks/bench_context_parallel.py` shares one sequence among P ranks, 8192 tokens and a GPU each, 64
query heads and 8 KV heads of dim 128, bf16. **It has not run on GPUs**: there are no figures yet. On CPUs it
ran small, with 2, 4 and 8 ranks over gloo and shared memory; those times say nothing about GPUs.

```console
$ torchrun --standalone --nproc-per-node 8 benchmarks/bench_context_parallel.py --json cp.json --minutes 9
$ torchrun --standalone --nproc-per-node 8 benchmarks/bench_context_parallel.py --json cp.json --train 100
$ torchrun --standalone --nproc-per-node 2 benchmarks/bench_context_parallel.py --tiny
$ python benchmarks/bench_context_parallel.py --json cp.json --print
```

The first compares P ranks with one on all twelve masks, forward and backward: an entry may differ by twice
what an entry of one rank may differ from exact attention, and a variant that is wrong anywhere gets no time.
Then it times causal document, document, prefix document and causal masks: planners contiguous, zigzag, lpt
and hcc_ipo over NCCL and NVSHMEM, with overlap and without, pruned and with everything sent to everybody;
beside them, in turns, an all-gather and a ring, both on zigzag shares, that the benchmark brings itself.
Hierarchical routing, pruning, balancing and segments are taken away one at a time on two pretended nodes of
one host, where a route's gain is seen in the bytes between nodes. The second trains a small model with one
rank and with P and compares the losses. Runs with other numbers of ranks go to the same file, and `--print`
shows it. NVLink multicast is off.

* **Time** of a pass: of the slowest rank, from a barrier on; several calls without waiting between them.
* **Exposed**: the pass less its computing alone, the same rows over the same keys in one call. So what it
  costs to compute in parts and to merge them counts as exposed.
* **Overlap efficiency**: 1 - exposed / communication alone. Backward's communication is the gather that is
  made again, and the reduction.
* **Bytes**: of all ranks, as they leave; those of the all-gather are (P - 1) shares a rank and way.

The Hopper engine computes backward in one call, after all keys are there: overlap and segments then differ
from waiting only in forward."""


def page() -> str:
    """Return the page."""
    results = Results.joined([FOLDER / name for name in FILES])
    round_2 = Results.read(FOLDER / ROUND_2)
    parts = [
        INTRODUCTION,
        UNMEASURED,
        _targets(results),
        _peers(results),
        _ablations(Results.read(FOLDER / ABLATIONS)),
        SEVERAL_GPUS,
        "## Tables",
    ]
    parts.append(f"![Forward, ratio to the best published figure]({PICTURE.relative_to(PAGE.parent)})")
    parts += [
        _table(results, ["fm3"], f"### {which.capitalize()}, {title}", shape, which)
        for title, shape in SHAPES.items()
        for which in ("forward", "backward", "both")
        if results.rates("fm3", which, shape)
    ]
    engines = ["fm3", "fm3 ordered", "fm3 direct"]
    title = "### Backward in round 2, 32 heads of dim 128"
    parts.append(_table(round_2, engines, title, USUAL, "backward"))
    return "\n\n".join(parts) + "\n"


def picture() -> str:
    """Return the picture of forward ratios."""
    results = Results.joined([FOLDER / name for name in FILES])
    found = ratios(results.rates("fm3", "forward", USUAL), best_rates(USUAL, "forward"))
    return ratio_chart(found, "Forward, 32 heads of dim 128: ratio to the best published figure of each cell")


def _targets(results: Results) -> str:
    rows = [
        [standing.title, standing.aim, standing.value, standing.kind, standing.worth]
        for standing in standings(results)
    ]
    return "\n".join(
        ["## Targets", "", *markdown(["what", "target", "measured", "of how many cells", ""], rows)]
    )


def _peers(results: Results) -> str:
    lines = [f"* {line}" for line in peer_means(results, USUAL)]
    return "\n".join(["Geometric means of the ratios to each peer:", "", *lines])


def _ablations(results: Results) -> str:
    rows = ablation_rows(results, LACKS, USUAL)
    head = ["without", "instead", "speed kept, geometric mean", "least and most"]
    text = (
        "The forward kernel without one of its ideas. Some are changed at run time; the others are builds\n"
        "that only the benchmark makes (`benchmarks/kernel_variants`), so that the kernel has no switches.\n"
        "What else earlier rounds measured is in [kernel-notes.md](kernel-notes.md)."
    )
    measured = _measured(results, list(LACKS), "forward", USUAL)
    return "\n".join(["## Ablations", "", text, "", measured, "", *markdown(head, rows)])


def _table(results: Results, engines: Sequence[str], title: str, shape: Mapping[str, Any], which: str) -> str:
    """Return one pass of some engines: a row a mask, a column an engine and length, ratios in brackets."""
    rates = {engine: results.rates(engine, which, shape) for engine in engines}
    best = best_rates(shape, which)
    lengths = sorted({tokens for found in rates.values() for _, tokens in found})
    columns = [(engine, tokens) for engine in engines for tokens in lengths]
    rows = [
        [mask, *(_cell(rates[engine].get((mask, n)), best.get((mask, n))) for engine, n in columns)]
        for mask in MASKS
        if any((mask, tokens) in found for found in rates.values() for tokens in lengths)
    ]
    means = [
        geometric_mean([x for (_, m), x in ratios(rates[engine], best).items() if m == n])
        for engine, n in columns
    ]
    rows.append(["**geometric mean of the ratios**", *("" if x is None else f"{x:.3f}" for x in means)])
    overall = {engine: list(ratios(rates[engine], best).values()) for engine in engines}
    means_of_all = ", ".join(
        f"{'' if len(engines) == 1 else f'{engine} '}{geometric_mean(found):.3f} over {len(found)} cells"
        for engine, found in overall.items()
    )
    head = [n if len(engines) == 1 else f"{e} {n}" for e, n in ((e, length_name(n)) for e, n in columns)]
    caption = "TFLOP/s; in brackets the ratio to the best published figure, as published. " + _measured(
        results, engines, which, shape
    )
    return "\n".join(
        [title, "", caption, "", *markdown(["mask", *head], rows), "", f"Over all lengths: {means_of_all}."]
    )


def _cell(rate: float | None, best: float | None) -> str:
    if rate is None:
        return ""
    return f"{rate:.0f}" if best is None else f"{rate:.0f} ({rate / best:.2f})"


def _measured(results: Results, engines: Sequence[str], which: str, shape: Mapping[str, Any]) -> str:
    """Return what the figures were measured on, and when."""
    sentences = [
        f"Measured on {run['gpu']}, torch {run['torch']}, {run['date']}." + f" {run.get('note', '')}".rstrip()
        for engine in engines
        for run in results.runs_of(engine, which, shape)
    ]
    return " ".join(dict.fromkeys(sentences))


def main() -> None:
    """Write page and picture."""
    PICTURE.write_text(picture(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
