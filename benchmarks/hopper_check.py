"""Checks the forward kernel against a float32 oracle, then times it; needs torch and the built extension.

python hopper_check.py check bench --extension DIR --data document_lengths.json
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import torch

from fm3_core import ColumnMask, patterns
from hopper_bench import bench, power, prepare, profile
from hopper_device import (
    CASES,
    DEV,
    FAILURES,
    INSTANCES,
    RESULTS,
    WORST,
    Prepared,
    args,
    forward,
    instance_name,
    oracle,
    tensors,
)
from hopper_masks import random_mask, small_masks


def compare(name, q, k, v, mask, **options):
    """Checks one case; a failure is kept, not raised."""
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


def check():
    """All masks, sizes and known cases."""
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
            f"checked {CASES[0]} cases{suffix}, {len(FAILURES)} failures, out {WORST['out']:.2f}, "
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
    """Inputs on which systems of this kind have failed."""

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
