"""Backward, and forward and backward together, on one GPU: this kernel beside FlexAttention and cuDNN.

For each of twelve masks at each length: TFLOP/s on visible pairs (4 a pair, head dim and head forward, 10
backward), calls of the engines in turn so that clock and heat are shared. An engine whose gradients are wrong
gets no time. "fm3 ordered" is the deterministic mode. Results are merged into a JSON file; cells that it has
are skipped, so that a run can be cut into pieces.

Run: python benchmarks/bench_kernel_backward.py [--json FILE] [--lengths 8192 32768] [--masks full ...]
     [--engines fm3 "fm3 ordered" flex cudnn] [--build NAME=DIRECTORY] [--engine MODULE:FUNCTION]

--build times another build of fm3_kernels._C beside this one. The FUNCTION of --engine takes a Cell and
returns (forward, backward, both): callables without arguments, of which `backward` and `both` return dq, dk
and dv.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fm3_core import ColumnMask
from fm3_kernels import DeviceMask, flex, hopper_backward_ops, hopper_ops
from fm3_kernels.backward_lists import backward_lists
from fm3_kernels.extension import load_extension
from fm3_kernels.hopper import forward_prepared
from fm3_kernels.hopper_backward import backward_prepared
from fm3_kernels.prepared_mask import prepared
from hopper_masks import NAMES, bench_mask

DATA = Path(__file__).parent / "data"
PEERS = json.loads((DATA / "kernel_peers.json").read_text())["tflops"]
TOKENS = 131072  # in all, over the batch
VERIFIED = 0.012  # relative error of the gradients of two kv heads that bf16 stays below

Passes = tuple[Callable[[], object], Callable[[], list[Tensor]], Callable[[], list[Tensor]]]


@dataclass
class Cell:
    """One mask at one length, with tensors on the GPU."""

    name: str
    tokens: int
    mask: ColumnMask
    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor

    @property
    def pairs(self) -> int:
        """Visible pairs over batch and query heads."""
        batch, heads = self.q.shape[0], self.q.shape[2]
        return int(self.mask.visible_pairs().sum()) * (heads // self.mask.heads) * (batch // self.mask.batch)


def main() -> None:
    """Time what was asked for and print it, a line a cell."""
    options = parse_options()
    if not torch.cuda.is_available():
        print("no CUDA device here: nothing to time")
        return
    options.json.parent.mkdir(parents=True, exist_ok=True)
    found = json.loads(options.json.read_text()) if options.json.exists() else {"results": []}
    found |= {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }
    add = lambda record: keep(found, record, options.json)  # noqa: E731
    add({"cell": "cublas 8192^3", "engine": "cublas", "tflops": cublas_tflops(options)})
    for tokens in options.lengths:
        for name in options.masks:
            if not options.again and all(has(found, name, tokens, e, options) for e in engine_names(options)):
                continue
            time_cell(make_cell(name, tokens, options), options, add)
    summarise(found, options)


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "scratch/kernel_backward.json")
    parser.add_argument("--lengths", type=int, nargs="*", default=[8192, 32768])
    parser.add_argument("--masks", nargs="*", default=NAMES)
    parser.add_argument("--engines", nargs="*", default=["fm3", "fm3 ordered", "flex", "cudnn"])
    parser.add_argument("--build", nargs="*", default=[], help="NAME=DIRECTORY of another extension")
    parser.add_argument("--engine", nargs="*", default=[], help="MODULE:FUNCTION of another engine")
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=32)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget-ms", type=float, default=100.0, help="of each engine and pass")
    parser.add_argument("--pause", type=float, default=0.05, help="idle seconds before each measurement")
    parser.add_argument("--again", action="store_true", help="time cells that the file has")
    return parser.parse_args()


def make_cell(name: str, tokens: int, options: argparse.Namespace) -> Cell:
    """Draw the tensors of a cell."""
    batch = max(1, TOKENS // tokens)
    generator = torch.Generator("cuda").manual_seed(tokens)

    def normal(heads: int) -> Tensor:
        shape = (batch, tokens, heads, options.dim)
        return torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16)

    mask = bench_mask(name, tokens, options.heads, DATA / "document_lengths.json")
    q, dout = normal(options.heads), normal(options.heads)
    return Cell(name, tokens, mask, q, normal(options.kv_heads), normal(options.kv_heads), dout)


def time_cell(cell: Cell, options: argparse.Namespace, add: Callable[[dict], None]) -> None:
    """Verify every engine, time those that are right, print a line."""
    calls: dict[tuple[str, str], Callable[[], object]] = {}
    line, reference = f"{cell.name:22s} {cell.tokens:6d}", None
    for name, make in engines(options).items():
        passes = make(cell)
        if passes is None:
            continue
        forward, backward, both = passes
        reference = reference or fm3_passes(cell, ordered=True)[0]()
        wrong = worst_error(cell, reference, both())
        if not wrong <= VERIFIED:
            line += f"  {name} WRONG ({wrong:.3g})"
            add(record_of(cell, name, options) | {"wrong": wrong})
            continue
        calls |= {(name, "forward"): forward, (name, "backward"): backward, (name, "both"): both}
    rates: dict[str, dict[str, float]] = {}
    for (name, which), ms in interleaved_ms(calls, options).items():
        flop = {"forward": 4, "backward": 10, "both": 14}[which] * cell.pairs * options.dim
        rates.setdefault(name, {})[which] = flop / ms / 1e9
    for name, found in rates.items():
        add(record_of(cell, name, options) | found)
        line += f"  {name}: {found['forward']:.0f} / {found['backward']:.0f} / {found['both']:.0f}"
    print(line, flush=True)


def engines(options: argparse.Namespace) -> dict[str, Callable[[Cell], Passes | None]]:
    """Return the engines that were asked for."""
    known: dict[str, Callable[[Cell], Passes | None]] = {
        "fm3": lambda cell: fm3_passes(cell, ordered=False),
        "fm3 ordered": lambda cell: fm3_passes(cell, ordered=True),
        "flex": flex_passes,
        "cudnn": cudnn_passes,
    }
    chosen = {name: known[name] for name in options.engines}
    for build in options.build:
        name, directory = build.split("=", 1)
        module = load_build(Path(directory))
        chosen[name] = lambda cell, m=module: built_passes(cell, m, ordered=False)
        chosen[f"{name} ordered"] = lambda cell, m=module: built_passes(cell, m, ordered=True)
    for engine in options.engine:
        module_name, function = engine.split(":")
        chosen[engine] = getattr(importlib.import_module(module_name), function)
    return chosen


def engine_names(options: argparse.Namespace) -> list[str]:
    """Return the names of what `engines` returns, without loading anything."""
    builds = [build.split("=", 1)[0] for build in options.build]
    return [*options.engines, *builds, *(f"{name} ordered" for name in builds), *options.engine]


def fm3_passes(cell: Cell, *, ordered: bool) -> Passes:
    """This kernel; masks are prepared before the clock starts."""
    q, k, v = cell.q, cell.k, cell.v
    mask = DeviceMask.from_mask(cell.mask, "cuda")
    arrays, lists = prepared(mask), backward_lists(mask, kv_heads=k.shape[2], deterministic=ordered)
    scale = q.shape[3] ** -0.5

    def forward() -> tuple[Tensor, Tensor]:
        return forward_prepared(q, k, v, arrays, softmax_scale=scale)

    def backward_of(out: Tensor, lse: Tensor) -> list[Tensor]:
        return list(backward_prepared(cell.dout, q, k, v, out, lse, arrays, lists, softmax_scale=scale))

    held = forward()
    return forward, lambda: backward_of(*held), lambda: backward_of(*forward())


def built_passes(cell: Cell, module: object, *, ordered: bool) -> Passes:
    """The same through another build of the extension."""

    def through(call: Callable[[], object]) -> Callable[[], object]:
        def run() -> object:
            hopper_ops.load_extension = hopper_backward_ops.load_extension = lambda: module
            try:
                return call()
            finally:
                hopper_ops.load_extension = hopper_backward_ops.load_extension = load_extension

        return run

    made: list[Passes] = []
    through(lambda: made.append(fm3_passes(cell, ordered=ordered)))()
    return tuple(through(call) for call in made[0])  # type: ignore[return-value]


def load_build(directory: Path) -> object:
    """Return the extension that lies in a directory."""
    spec = importlib.util.spec_from_file_location("_C", next(directory.glob("_C*.so")))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def autograd_passes(cell: Cell, attend: Callable[..., Tensor]) -> Passes:
    """An engine that torch differentiates; heads before rows."""
    leaves = [x.transpose(1, 2).detach().requires_grad_() for x in (cell.q, cell.k, cell.v)]
    dout = cell.dout.transpose(1, 2)
    held = attend(*leaves)

    def backward(out: Tensor) -> list[Tensor]:
        return [x.transpose(1, 2) for x in torch.autograd.grad(out, leaves, dout, retain_graph=out is held)]

    def forward() -> Tensor:
        with torch.no_grad():
            return attend(*leaves)

    return forward, lambda: backward(held), lambda: backward(attend(*leaves))


def flex_passes(cell: Cell) -> Passes:
    """FlexAttention, compiled; its block mask is made before the clock starts."""
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, dynamic=False)
    blocks = None
    if cell.name != "full":
        blocks = flex.to_block_mask(cell.mask, query_heads=cell.q.shape[2], device="cuda")
    grouped = cell.q.shape[2] != cell.k.shape[2]
    return autograd_passes(cell, lambda q, k, v: compiled(q, k, v, block_mask=blocks, enable_gqa=grouped))


def cudnn_passes(cell: Cell) -> Passes | None:
    """CuDNN, where it has the mask."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if cell.name not in ("full", "causal"):
        return None

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=cell.name == "causal", enable_gqa=q.shape[1] != k.shape[1]
            )

    return autograd_passes(cell, attend)


def worst_error(cell: Cell, reference: tuple[Tensor, Tensor], gradients: list[Tensor]) -> float:
    """Return the worst relative error of the gradients of the first and the last kv head."""
    if not all(bool(torch.isfinite(x).all()) for x in gradients):
        return math.inf
    out, lse = reference
    batch, _, heads, _ = cell.q.shape
    kv_heads = cell.k.shape[2]
    worst = 0.0
    for b, g in {(0, 0), (batch - 1, kv_heads - 1)}:
        k, v = cell.k[b, :, g].float(), cell.v[b, :, g].float()
        dk, dv = torch.zeros_like(k), torch.zeros_like(v)
        for h in range(g * heads // kv_heads, (g + 1) * heads // kv_heads):
            dq, more_dk, more_dv = one_head(cell, b, h, k, v, out[b, :, h].float(), lse[b, h])
            dk, dv = dk + more_dk, dv + more_dv
            worst = max(worst, apart(gradients[0][b, :, h], dq))
        worst = max(worst, apart(gradients[1][b, :, g], dk), apart(gradients[2][b, :, g], dv))
    return worst


def one_head(
    cell: Cell, b: int, h: int, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of one query head in float32, 4096 rows at a time."""
    mask_batch, mask_head = (0 if cell.mask.batch == 1 else b), h * cell.mask.heads // cell.q.shape[2]
    lts, lte, uts, ute = (
        torch.from_numpy(np.array(x[mask_batch, mask_head])).cuda()[None]
        for x in (cell.mask.lts, cell.mask.lte, cell.mask.uts, cell.mask.ute)
    )
    scale = k.shape[1] ** -0.5
    dq, dk, dv = torch.empty_like(out), torch.zeros_like(k), torch.zeros_like(v)
    for start in range(0, cell.tokens, 4096):
        rows = slice(start, min(start + 4096, cell.tokens))
        row = torch.arange(rows.start, rows.stop, device="cuda")[:, None]
        hidden = ((row >= lts) & (row < lte)) | ((row >= uts) & (row < ute))
        q, dout = cell.q[b, rows, h].float(), cell.dout[b, rows, h].float()
        p = torch.exp((q @ k.T) * scale - lse[rows, None]).masked_fill_(hidden, 0.0)
        ds = p * (dout @ v.T - (dout * out[rows]).sum(-1, keepdim=True))
        dq[rows], dk, dv = ds @ k * scale, dk + ds.T @ q * scale, dv + p.T @ dout
    return dq, dk, dv


def apart(mine: Tensor, right: Tensor) -> float:
    """Return the relative error in the Euclidean norm."""
    return ((mine.float() - right).norm() / right.norm()).item()


def interleaved_ms(
    calls: dict[tuple[str, str], Callable[[], object]], options: argparse.Namespace
) -> dict[tuple[str, str], float]:
    """Return the median time of each call; the calls take turns."""
    times: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    for _ in range(options.rounds):
        for key, call in calls.items():
            torch.cuda.synchronize()
            time.sleep(options.pause)
            times[key].append(mean_ms(call, options.budget_ms / options.rounds))
    return {key: statistics.median(found) for key, found in times.items()}


def mean_ms(call: Callable[[], object], budget_ms: float) -> float:
    """Return the mean time of as many calls as fit the budget, between two events."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def span(times: int) -> float:
        first.record()
        for _ in range(times):
            call()
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last)

    span(1)
    count = int(min(200, max(2, budget_ms / max(span(1), 1e-3))))
    return span(count) / count


def cublas_tflops(options: argparse.Namespace) -> float:
    """Return what a large matrix product reaches on this GPU now."""
    a, b = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
    found = 2 * 8192**3 / mean_ms(lambda: a @ b, options.budget_ms) / 1e9
    print(f"cuBLAS 8192^3: {found:.0f} TFLOP/s", flush=True)
    return found


def record_of(cell: Cell, engine: str, options: argparse.Namespace) -> dict:
    """Return what names a result."""
    names = {"cell": cell.name, "tokens": cell.tokens, "engine": engine, "heads": options.heads}
    return names | {"kv_heads": options.kv_heads, "dim": options.dim}


def has(found: dict, name: str, tokens: int, engine: str, options: argparse.Namespace) -> bool:
    """Say whether a file has a result; cuDNN has two masks only."""
    key = (name, tokens, engine, options.heads, options.kv_heads, options.dim)
    skipped = engine == "cudnn" and name not in ("full", "causal")
    return skipped or any(key == key_of(record) for record in found["results"])


def key_of(record: dict) -> tuple:
    """Return what two results of one cell and engine share."""
    return tuple(record.get(field) for field in ("cell", "tokens", "engine", "heads", "kv_heads", "dim"))


def keep(found: dict, record: dict, path: Path) -> None:
    """Put a result into the file, in place of an older one."""
    found["results"] = [other for other in found["results"] if key_of(other) != key_of(record)] + [record]
    path.write_text(json.dumps(found, indent=1) + "\n")


def summarise(found: dict, options: argparse.Namespace) -> None:
    """Print geometric means over the cells of each engine, against the best peers and within this file."""
    rows = {key_of(r): r for r in found["results"] if "both" in r}

    def geomean(ratios: list[float]) -> str:
        return f"{math.exp(statistics.fmean(map(math.log, ratios))):.3f}" if ratios else "-"

    shape = (options.heads, options.kv_heads, options.dim)
    for engine in engine_names(options):
        chosen = [row for key, row in rows.items() if key[2:] == (engine, *shape)]
        mine = {(row["cell"], row["tokens"]): row for row in chosen}
        line = f"== {engine}: {len(mine)} cells"
        for which, part in (("forward", 0), ("backward", 1)):
            best = [
                r[which] / max(x[part] for x in PEERS[str(tokens)][cell].values())
                for (cell, tokens), r in mine.items()
                if shape == (32, 32, 128) and cell in PEERS.get(str(tokens), {})
            ]
            line += f"; {which} over best peer's {geomean(best)}"
        for which, other in (("both", "flex"), ("both", "fm3"), ("backward", "fm3")):
            ratios = [
                row[which] / rows[(*cell, other, *shape)][which]
                for cell, row in mine.items()
                if (*cell, other, *shape) in rows
            ]
            line += f"; {which} over {other}'s {geomean(ratios)}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
