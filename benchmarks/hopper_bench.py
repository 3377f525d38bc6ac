# ruff: noqa: B023 -- the calls are timed before the loop moves on
"""Times the forward kernel, beside cuDNN and FlexAttention where asked."""

from __future__ import annotations

import json
import math
import subprocess
import threading
import time

import numpy as np
import torch

from fm3_core import patterns
from hopper_device import (
    DEV,
    FAILURES,
    INSTANCES,
    OTHER,
    RESULTS,
    Prepared,
    args,
    instance_name,
    interleaved_ms,
    launch,
    median_ms,
    oracle,
    tensors,
)
from hopper_masks import BEST, NAMES, bench_mask


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
    """Times every mask at every length."""
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
                    f"== {S} {suffix}: geometric mean {math.exp(sum(map(math.log, r)) / len(r)):.3f}",
                    flush=True,
                )


def power():
    """Clock and power while one thing runs for a second and a half."""
    S, H, D = 32768, args.heads, args.dim
    q, k, v = tensors(2, S, S, H, H, D, torch.bfloat16)
    out, lse = torch.empty_like(q), torch.empty(2, H, S, device=DEV)
    p = Prepared(patterns.full(S), 128)
    a, b = (torch.randn(8192, 8192, device=DEV).bfloat16() for _ in range(2))

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
            f"{name}: {shown} short {flop / t / 1e9:.0f} sustained {flop / x.elapsed_time(y) / 1e9:.0f}",
            flush=True,
        )


def prepare():
    """Times preparing a mask."""
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
    """FlexAttention of the same mask."""
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
    """CuDNN's attention."""
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
