"""Checks the forward kernel against a float32 oracle, then times it; one file, needs torch and the built extension.

python hopper_check.py --extension DIR --core SRC --data document_lengths.json check bench ...
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import pathlib
import statistics
import sys
import time

import numpy as np
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--extension", type=pathlib.Path, required=True)
parser.add_argument(
    "--other", type=pathlib.Path, default=None, help="a second extension, timed in turns with the first"
)
parser.add_argument("--core", type=pathlib.Path, required=True)
parser.add_argument("--data", type=pathlib.Path, required=True)
parser.add_argument("--out", type=pathlib.Path, default=None)
parser.add_argument("--lengths", type=int, nargs="*", default=[8192, 32768])
parser.add_argument("--masks", nargs="*", default=None)
parser.add_argument("--suffixes", nargs="*", default=[""], help="variants of the instance, by name suffix")
parser.add_argument("--budget_ms", type=float, default=120.0)
parser.add_argument("--random", type=int, default=150)
parser.add_argument("--heads", type=int, default=32)
parser.add_argument("--kv_heads", type=int, default=32)
parser.add_argument("--dim", type=int, default=128)
parser.add_argument(
    "--pause", type=float, default=0.1, help="idle seconds before each measurement, the same for all"
)
parser.add_argument("--flex", action="store_true")
parser.add_argument("--cudnn", action="store_true")
parser.add_argument("--section_mb", type=float, default=32.0)
parser.add_argument("--sections", type=float, nargs="*", default=[], help="also time these section sizes")
parser.add_argument("--ascending", action="store_true", help="also time row blocks in ascending order")
parser.add_argument("steps", nargs="*", default=["check", "bench"])
args = parser.parse_args()

sys.path.insert(0, str(args.core))
from fm3_core import ColumnMask, patterns  # noqa: E402
from hopper_masks import BEST, NAMES, bench_mask, random_mask, small_masks  # noqa: E402


def load(directory):
    spec = importlib.util.spec_from_file_location("_C", next(directory.glob("_C*.so")))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


C = load(args.extension)
OTHER = load(args.other) if args.other else None
INSTANCES = C.instances()
DEV = torch.device("cuda")


class Prepared:
    """A mask's device arrays."""

    def __init__(self, mask: ColumnMask, block_rows: int) -> None:
        self.mask, self.block_rows = mask, block_rows
        self.vectors = [
            torch.from_numpy(np.array(x)).to(DEV).contiguous()
            for x in (mask.lts, mask.lte, mask.uts, mask.ute)
        ]
        sizes = C.prepared_sizes(mask.batch, mask.heads, mask.num_rows, mask.num_keys, block_rows)
        self.buffers = [torch.full((max(n, 16),), 0xA5, dtype=torch.uint8, device=DEV) for n in sizes]
        self.native = self.describe(C)
        self.prepare()

    def describe(self, module):
        mask, rows = self.mask, self.block_rows
        return module.PreparedMask(
            batch=mask.batch,
            heads=mask.heads,
            num_rows=mask.num_rows,
            num_keys=mask.num_keys,
            block_rows=rows,
            columns=self.buffers[0].data_ptr(),
            extrema=self.buffers[1].data_ptr(),
            row_blocks=self.buffers[2].data_ptr(),
        )

    def prepare(self) -> None:
        C.prepare_mask(
            *[x.data_ptr() for x in self.vectors],
            self.native,
            self.buffers[3].data_ptr(),
            self.block_rows,
            torch.cuda.current_stream().cuda_stream,
        )

    def row_blocks(self) -> np.ndarray:
        n = self.mask.batch * self.mask.heads * -(-self.mask.num_rows // self.block_rows) * 16
        return (
            self.buffers[2][:n].cpu().numpy().view(np.int32).reshape(self.mask.batch, self.mask.heads, -1, 4)
        )


def row_tensor(x, module):
    return module.RowTensor(x.data_ptr(), list(x.shape), [x.stride(0), x.stride(1), x.stride(2)])


COUNTER = torch.zeros(1, dtype=torch.int32, device=DEV)


def instance_name(q, suffix=""):
    return f"{'bf16' if q.dtype == torch.bfloat16 else 'fp16'}_dim{q.shape[-1]}{suffix}"


def launch(q, k, v, prepared, out, lse, *, suffix="", num_ctas=0, scale=None, section_mb=None, module=None):
    module = module or C
    native = prepared.native if module is C else prepared.describe(module)
    B, S, H, D = q.shape
    kv_bytes = 4 * k.shape[1] * D
    section = max(1, int((section_mb or args.section_mb) * 2**20 // max(kv_bytes, 1))) * (H // k.shape[2])
    section = min(section, B * H)
    module.forward(
        instance_name(q, suffix),
        *(row_tensor(x, module) for x in (q, k, v, out)),
        lse.data_ptr(),
        native,
        COUNTER.data_ptr(),
        scale or D**-0.5,
        section,
        num_ctas,
        torch.cuda.current_stream().cuda_stream,
    )


def forward(q, k, v, prepared, **options):
    out = torch.full(q.shape, float("nan"), dtype=q.dtype, device=DEV)
    lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), float("nan"), device=DEV)
    launch(q, k, v, prepared, out, lse, **options)
    return out, lse


def oracle(q, k, v, visible, dtype=torch.float32):
    """Dense attention in dtype; visible bool [Bm, Hm, S, T] on the device."""
    B, S, H, D = q.shape
    group, mask_group = H // k.shape[2], H // visible.shape[1]
    q, k, v = (x.to(dtype).transpose(1, 2) for x in (q, k, v))
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = (q @ k.transpose(-1, -2)) * D**-0.5
    scores = scores.masked_fill(~visible.repeat_interleave(mask_group, 1), float("-inf"))
    lse = torch.logsumexp(scores.float(), -1)
    p = torch.softmax(scores, -1).nan_to_num(0.0)
    return (p @ v).transpose(1, 2), lse


FAILURES: list[str] = []
WORST = {"out": 0.0, "lse": 0.0}
CASES = [0]


def compare(name, q, k, v, mask, **options):
    block_rows = INSTANCES[instance_name(q, options.get("suffix", ""))]["block_rows"]
    prepared = Prepared(mask, block_rows)
    out, lse = forward(q, k, v, prepared, **options)
    torch.cuda.synchronize()
    vectors = [
        torch.from_numpy(np.array(x)).to(DEV)[:, :, None] for x in (mask.lts, mask.lte, mask.uts, mask.ute)
    ]
    row = torch.arange(mask.num_rows, device=DEV)[None, None, :, None]
    visible = ~(((row >= vectors[0]) & (row < vectors[1])) | ((row >= vectors[2]) & (row < vectors[3])))
    right, right_lse = oracle(q, k, v, visible)
    plain, _ = oracle(q, k, v, visible, q.dtype)
    assert torch.isfinite(right).all(), "the oracle itself is not finite"
    CASES[0] += 1
    error = (out.float() - right).abs()
    allowed = 2 * (plain.float() - right).abs().max().item() + 1e-6
    seen = torch.isfinite(right_lse)
    lse_error = torch.where(seen, (lse - right_lse).abs(), torch.where(lse == right_lse, 0.0, float("nan")))
    worst, worst_lse = error.max().item(), lse_error.max().item() if lse_error.numel() else 0.0
    if not worst <= allowed or not worst_lse <= 2e-4 or not torch.isfinite(out).all():
        bad = (~(error <= allowed)).nonzero()
        FAILURES.append(
            f"{name}: out {worst:.3g} (allowed {allowed:.3g}) lse {worst_lse:.3g}; {len(bad)} wrong, "
            f"first (b,s,h,d) {bad[:1].tolist()}, last {bad[-1:].tolist()}, of {tuple(q.shape)}"
        )
    else:
        WORST["out"] = max(WORST["out"], worst / allowed)
        WORST["lse"] = max(WORST["lse"], worst_lse)
    return out, lse


def tensors(B, S, T, H, G, D, dtype, seed=0):
    g = torch.Generator(device=DEV).manual_seed(seed)
    return [
        torch.randn(B, n, h, D, device=DEV, generator=g, dtype=torch.float32).to(dtype)
        for n, h in ((S, H), (T, G), (T, G))
    ]


def check():
    start = time.time()
    for suffix in args.suffixes:
        for dtype in (torch.bfloat16, torch.float16):
            for D in (64, 128):
                probe = torch.empty(1, 1, 1, D, dtype=dtype)
                if instance_name(probe, suffix) not in INSTANCES:
                    continue
                for n, (B, S, H, G) in enumerate(
                    ((1, 128, 1, 1), (2, 257, 4, 2), (1, 1000, 6, 1), (1, 33, 2, 2), (2, 640, 4, 4))
                ):
                    q, k, v = tensors(B, S, S, H, G, D, dtype, seed=n)
                    for name, mask in small_masks(S, (1, G, H)[n % 3], (1, B)[n % 2], n):
                        compare(
                            f"{suffix} {name} {dtype} D={D} S={S} H={H} G={G}", q, k, v, mask, suffix=suffix
                        )
                    if len(FAILURES) > 12:
                        return
                rng = np.random.default_rng(D)
                for i in range(args.random):
                    B, G, m = int(rng.integers(1, 3)), int(rng.integers(1, 3)), int(rng.integers(1, 3))
                    H = G * m
                    S, T = int(rng.integers(1, 700)), int(rng.integers(1, 700))
                    mask = random_mask(rng, S, T, [1, G, H][i % 3], [1, B][i % 2])
                    q, k, v = tensors(B, S, T, H, G, D, dtype, seed=i)
                    compare(
                        f"{suffix} random {i} {dtype} D={D} S={S} T={T} B={B} H={H} G={G} Hm={mask.heads}",
                        q,
                        k,
                        v,
                        mask,
                        suffix=suffix,
                        num_ctas=[0, 1, 3][i % 3],
                    )
                    if len(FAILURES) > 12:
                        return
                cases(dtype, D, suffix)
        print(
            f"checked {CASES[0]} cases{suffix}, {len(FAILURES)} failures, worst out/allowed {WORST['out']:.2f}, "
            f"worst lse {WORST['lse']:.2g}, {time.time() - start:.0f} s",
            flush=True,
        )


def small():
    """A few launches, for compute-sanitizer."""
    for D, dtype in ((128, torch.bfloat16), (64, torch.float16)):
        q, k, v = tensors(1, 257, 257, 2, 1, D, dtype, seed=1)
        for name, mask in small_masks(257, 1, 1, 1):
            prepared = Prepared(mask, INSTANCES[instance_name(q)]["block_rows"])
            out, _ = forward(q, k, v, prepared, num_ctas=2)
            torch.cuda.synchronize()
            print(name, bool(torch.isfinite(out).all()), flush=True)


def cases(dtype, D, suffix):
    def one(name, S, T, mask, B=1, H=2, G=1, **options):
        q, k, v = tensors(B, S, T, H, G, D, dtype, seed=S)
        return compare(f"{suffix} case {name} {dtype} D={D}", q, k, v, mask, suffix=suffix, **options)

    def columns(S, T, lts, lte, uts=0, ute=0):
        f = lambda x: np.broadcast_to(np.asarray(x, np.int32), (1, 1, T)).copy()  # noqa: E731
        return ColumnMask(f(lts), f(lte), f(uts), f(ute), num_rows=S)

    one("1", 130, 130, columns(130, 130, 128, 130))
    one("2", 128, 129, patterns.full(128, 129))
    lts, ute = np.full(512, 512), np.zeros(512)
    lts[5], ute[5], lts[9], ute[9] = 291, 313, 147, 402
    one("3a", 512, 512, columns(512, 512, lts, 512, 0, ute))
    z = np.zeros(512)
    a, b, c, d = z.copy(), z.copy(), z.copy(), z.copy()
    a[7], b[7], c[7], d[7] = 178, 399, 67, 242
    one("3b", 512, 512, columns(512, 512, a, b, c, d))
    one("5a", 300, 300, columns(300, 300, 0, 14))
    one("5b", 300, 300, columns(300, 300, 297, 300))
    one("5c", 300, 300, columns(300, 300, 0, 300))
    one("6", 300, 100, patterns.causal(300, 100))
    one("7", 11, 11, patterns.document([0, 1, 3, 7]))
    one("7b", 1025, 1025, patterns.document([512, 513]))
    one("9", 300, 300, patterns.document([100, 200]) & patterns.sliding_window(300, 20, 10))
    one("9b", 8, 8, patterns.sliding_window(8, 2))
    for blocks in (1, 2, 3, 5):
        for T in (1, 128, 129, 384, 640):
            one(f"14 {blocks} {T}", 128 * blocks, T, patterns.full(128 * blocks, T), num_ctas=1)
    q, k, v = tensors(2, 300, 300, 4, 2, D, dtype)
    big = torch.randn(2, 300, 8, D, device=DEV).to(dtype)
    compare("11 strided", big[:, :, ::2], k, v, patterns.causal(300), suffix=suffix)
    compare(
        "11 transposed",
        q.transpose(1, 2).contiguous().transpose(1, 2),
        k,
        v,
        patterns.causal(300),
        suffix=suffix,
    )
    q, k, v = tensors(1, 512, 512, 2, 2, D, dtype)
    mask = patterns.causal_document([100, 212, 200])
    prepared = Prepared(mask, INSTANCES[instance_name(q, suffix)]["block_rows"])
    first, _ = forward(q, k, v, prepared, suffix=suffix)
    for _ in range(1000):
        again, _ = forward(q, k, v, prepared, suffix=suffix)
    if not torch.equal(first, again):
        FAILURES.append("15: a repeat differs")
    q, k, v = tensors(2840, 32, 32, 16, 16, D, dtype)
    prepared = Prepared(patterns.causal(32), INSTANCES[instance_name(q, suffix)]["block_rows"])
    out, _ = forward(q, k, v, prepared, suffix=suffix)
    right = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), is_causal=True
    )
    if not (out - right.transpose(1, 2)).abs().max() < 0.05:
        FAILURES.append("16: many tiny sequences")


def timed_once(call, budget_ms):
    call()
    torch.cuda.synchronize()
    a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    a.record()
    call()
    b.record()
    torch.cuda.synchronize()
    n = int(min(200, max(2, budget_ms / max(a.elapsed_time(b), 1e-3))))
    a.record()  # the clock of events ticks in steps of 0.13 ms here: many calls between two of them
    for _ in range(n):
        call()
    b.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) / n]


def interleaved_ms(calls, rounds=3):
    """Median time of each call; the calls take turns, so that clock and heat are shared fairly."""
    times = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            torch.cuda.synchronize()
            time.sleep(args.pause)
            times[name] += timed_once(call, args.budget_ms / rounds)
    return {name: statistics.median(t) for name, t in times.items()}


def median_ms(call):
    return interleaved_ms({"": call})[""]


RESULTS: list[dict] = []


def verify(q, k, v, out, lse, mask, rows):
    """Worst error on sampled rows and heads, over that of plain bf16."""
    worst = 0.0
    for b, h in ((0, 0), (q.shape[0] - 1, q.shape[2] - 1)):
        g = h * k.shape[2] // q.shape[2]
        mh = h * mask.heads // q.shape[2]
        mb = 0 if mask.batch == 1 else b
        r = torch.as_tensor(rows, device=DEV)[:, None]
        lts, lte, uts, ute = (
            torch.from_numpy(np.array(x[mb, mh])).to(DEV)[None]
            for x in (mask.lts, mask.lte, mask.uts, mask.ute)
        )
        visible = ~(((r >= lts) & (r < lte)) | ((r >= uts) & (r < ute)))
        qq, kk, vv = q[b : b + 1, rows, h : h + 1], k[b : b + 1, :, g : g + 1], v[b : b + 1, :, g : g + 1]
        right, right_lse = oracle(qq, kk, vv, visible[None, None])
        plain, _ = oracle(qq, kk, vv, visible[None, None], q.dtype)
        error = (out[b : b + 1, rows, h : h + 1].float() - right).abs().max().item()
        worst = max(worst, error / (2 * (plain.float() - right).abs().max().item() + 1e-6))
        lse_error = (lse[b, h, rows] - right_lse[0, 0]).abs().nan_to_num(0.0).max().item()
        worst = max(worst, lse_error / 1e-3)
    return worst


def bench():
    H, G, D = args.heads, args.kv_heads, args.dim
    a, b = (torch.randn(8192, 8192, device=DEV).bfloat16() for _ in range(2))
    t = median_ms(lambda: a @ b)
    print(f"cuBLAS 8192^3 {2 * 8192**3 / t / 1e9:.0f} TFLOP/s", flush=True)
    RESULTS.append({"cell": "cublas_8192", "tflops": 2 * 8192**3 / t / 1e9})
    for S in args.lengths:
        B = max(1, 131072 // S)
        q, k, v = tensors(B, S, S, H, G, D, torch.bfloat16)
        out, lse = torch.empty_like(q), torch.empty(B, H, S, device=DEV)
        ratios: dict[str, list[float]] = {s: [] for s in args.suffixes}
        for i, name in enumerate(NAMES):
            if args.masks and name not in args.masks:
                continue
            mask = bench_mask(name, S, H, args.data)
            pairs = int(mask.visible_pairs().sum()) * (H // mask.heads) * (B // mask.batch)
            line = f"{name:22s} {S:6d} {pairs / (B * H * S * S):.3f} "
            calls, prepared_by = {}, {}
            for suffix in args.suffixes:
                info = INSTANCES[instance_name(q, suffix)]
                prepared = prepared_by[suffix] = Prepared(mask, info["block_rows"])
                out.fill_(float("nan"))
                launch(q, k, v, prepared, out, lse, suffix=suffix)
                torch.cuda.synchronize()
                bad = verify(q, k, v, out, lse, mask, np.unique(np.linspace(0, S - 1, 97).astype(int)))
                if not bad <= 1 or not torch.isfinite(out).all():
                    line += f" {suffix} WRONG ({bad:.2f})"
                    FAILURES.append(line)
                    continue
                calls[suffix] = lambda s=suffix, p=prepared: launch(q, k, v, p, out, lse, suffix=s)
                for size in args.sections:
                    calls[f"{suffix}@{size:g}"] = lambda s=suffix, p=prepared, z=size: launch(
                        q, k, v, p, out, lse, suffix=s, section_mb=z
                    )
                if args.ascending:
                    other = Prepared(mask, info["block_rows"])
                    records = other.row_blocks()
                    order = np.argsort(records[..., 0], axis=-1)
                    ordered = np.take_along_axis(records, order[..., None], axis=2)
                    other.buffers[2][: ordered.nbytes] = torch.from_numpy(
                        ordered.view(np.uint8).reshape(-1)
                    ).to(DEV)
                    calls[f"{suffix}asc"] = lambda s=suffix, p=other: launch(q, k, v, p, out, lse, suffix=s)
            if OTHER:
                calls["other"] = lambda p=prepared: launch(q, k, v, p, out, lse, module=OTHER)
            if args.flex:
                flex = flex_call(name, q, k, v, mask)
                if flex:
                    calls["flex"] = flex
            if args.cudnn and name in ("full", "causal"):
                calls["cudnn"] = cudnn_call(q, k, v, name == "causal")
            for suffix, t in interleaved_ms(calls).items():
                tflops = 4 * pairs * D / t / 1e9
                best = BEST[S][i]
                record = {
                    "cell": name,
                    "tokens": S,
                    "engine": suffix,
                    "tflops": tflops,
                    "ms": t,
                    "best": best,
                    "pairs": pairs,
                    "heads": H,
                    "kv_heads": G,
                    "dim": D,
                    "section_mb": args.section_mb,
                }
                line += f" {suffix}:{tflops:.0f}"
                if suffix in prepared_by:
                    info = INSTANCES[instance_name(q, suffix)]
                    blocks = (
                        int(prepared_by[suffix].row_blocks()[..., 3].sum())
                        * (H // mask.heads)
                        * (B // mask.batch)
                    )
                    used = pairs / (blocks * info["block_rows"] * 128)
                    ratios[suffix].append(tflops / best)
                    line += f"({tflops / best:.2f},{tflops / used:.0f})"
                    record |= {"blocks": blocks, "fill": used}
                RESULTS.append(record)
            print(line, flush=True)
        for suffix, r in ratios.items():
            if r:
                print(
                    f"== {S} {suffix}: geometric mean of ratios {math.exp(sum(map(math.log, r)) / len(r)):.3f}",
                    flush=True,
                )


def power():
    """Clock and power while one thing runs for a second and a half."""
    import subprocess

    S, H, D = 32768, args.heads, args.dim
    q, k, v = tensors(2, S, S, H, H, D, torch.bfloat16)
    out, lse = torch.empty_like(q), torch.empty(2, H, S, device=DEV)
    p = Prepared(patterns.full(S), 128)
    a, b = (torch.randn(8192, 8192, device=DEV).bfloat16() for _ in range(2))
    import threading

    calls = {"cublas": (lambda: a @ b, 2 * 8192**3)}
    for suffix in args.suffixes:
        calls["attention" + suffix] = (
            lambda x=suffix: launch(q, k, v, p, out, lse, suffix=x),
            4 * 2 * H * S * S * D,
        )
    for name, (call, flop) in calls.items():
        shown = []

        def sample(shown=shown):
            time.sleep(1.2)
            shown.append(
                subprocess.run(
                    [
                        "nvidia-smi",
                        "--query-gpu=clocks.sm,power.draw.instant,temperature.gpu",
                        "--format=csv,noheader",
                    ],
                    capture_output=True,
                    text=True,
                    check=False,
                ).stdout.strip()
            )

        thread = threading.Thread(target=sample)
        t = median_ms(call)
        thread.start()
        for _ in range(int(1700 / t)):
            call()
        thread.join()
        x, y = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        x.record()
        call()
        y.record()
        torch.cuda.synchronize()
        print(
            f"power {name}: {shown} short {flop / t / 1e9:.0f} sustained {flop / x.elapsed_time(y) / 1e9:.0f} TFLOP/s",
            flush=True,
        )


def prepare():
    for S, heads in ((8192, 1), (131072, 1), (32768, 32)):
        mask = bench_mask("random_eviction" if heads > 1 else "causal_document", S, heads, args.data)
        p = Prepared(mask, 128)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            for _ in range(10):
                p.prepare()
        t = median_ms(graph.replay) / 10
        print(f"prepare {S} tokens, {heads} mask heads: {t * 1e3:.1f} us", flush=True)
        RESULTS.append({"cell": "prepare", "tokens": S, "mask_heads": heads, "us": t * 1e3})


def flex_mods(name, S):
    """Masks as the library's users write them, where that is a line."""
    window = S // 16 - 1
    mods = {
        "full": None,
        "causal": lambda b, h, i, j: i >= j,
        "sliding_window": lambda b, h, i, j: (i >= j) & (i - j <= window),
    }
    if name in ("causal_document", "document"):
        docs = json.loads(args.data.read_text())["batches"][str(S)][0]["lengths"]
        ids = torch.repeat_interleave(torch.arange(len(docs), device=DEV), torch.tensor(docs, device=DEV))
        same = lambda b, h, i, j: ids[i] == ids[j]  # noqa: E731
        return same if name == "document" else lambda b, h, i, j: (i >= j) & (ids[i] == ids[j])
    return mods.get(name, "none")


def flex_call(name, q, k, v, mask):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    S, H = q.shape[1], q.shape[2]
    mod = flex_mods(name, S)
    heads = None
    if mod == "none":
        lts, lte, uts, ute = (
            torch.from_numpy(np.array(x[0])).to(DEV) for x in (mask.lts, mask.lte, mask.uts, mask.ute)
        )
        per_head = mask.heads > 1
        heads = H if per_head else None

        def mod(b, h, i, j):
            g = h if per_head else 0
            return ~(((i >= lts[g, j]) & (i < lte[g, j])) | ((i >= uts[g, j]) & (i < ute[g, j])))

    flex = torch.compile(flex_attention, dynamic=False)
    torch._dynamo.reset()
    block_mask = create_block_mask(mod, None, heads, S, S, device="cuda", _compile=True) if mod else None
    qt, kt, vt = (x.transpose(1, 2) for x in (q, k, v))
    return lambda: flex(qt, kt, vt, block_mask=block_mask)


def cudnn_call(q, k, v, causal):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    qt, kt, vt = (x.transpose(1, 2) for x in (q, k, v))

    def call():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            torch.nn.functional.scaled_dot_product_attention(qt, kt, vt, is_causal=causal)

    return call


def profile():
    """One launch a variant, for ncu."""
    S, H, D = 16384, 16, args.dim
    q, k, v = tensors(1, S, S, H, H, D, torch.bfloat16)
    out, lse = torch.empty_like(q), torch.empty(1, H, S, device=DEV)
    for suffix in args.suffixes:
        p = Prepared(patterns.full(S), INSTANCES[instance_name(q, suffix)]["block_rows"])
        launch(q, k, v, p, out, lse, suffix=suffix)
        torch.cuda.synchronize()


for step in args.steps:
    {"check": check, "small": small, "bench": bench, "prepare": prepare, "power": power, "profile": profile}[
        step
    ]()
    for failure in FAILURES[:15]:
        print("FAIL", failure, flush=True)
    if FAILURES and step == "check" and "force" not in sys.argv:
        break
if args.out:
    args.out.write_text(
        json.dumps(
            {
                "gpu": torch.cuda.get_device_name(),
                "torch": torch.__version__,
                "date": time.strftime("%Y-%m-%d"),
                "results": RESULTS,
                "failures": FAILURES,
            },
            indent=1,
        )
    )
sys.exit(1 if FAILURES else 0)
