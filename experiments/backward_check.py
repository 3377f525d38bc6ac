"""Checks the backward kernel against a dense oracle, then times it; one file, needs torch and the built extension.

    python backward_check.py --extension DIR --core SRC --data document_lengths.json check bench ...
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import pathlib
import statistics
import sys
import threading
import time

import numpy as np
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--extension", type=pathlib.Path, required=True)
parser.add_argument("--core", type=pathlib.Path, required=True)
parser.add_argument("--data", type=pathlib.Path, required=True)
parser.add_argument("--out", type=pathlib.Path, default=None)
parser.add_argument("--lengths", type=int, nargs="*", default=[8192, 32768])
parser.add_argument("--masks", nargs="*", default=None)
parser.add_argument("--suffixes", nargs="*", default=[""], help="variants of the instance, by name suffix")
parser.add_argument("--budget_ms", type=float, default=100.0)
parser.add_argument("--random", type=int, default=60)
parser.add_argument("--heads", type=int, default=32)
parser.add_argument("--kv_heads", type=int, default=32)
parser.add_argument("--dim", type=int, default=128)
parser.add_argument("--section_mb", type=float, default=24.0)
parser.add_argument("--det_pairs", type=int, default=16, help="least number of kv heads side by side in the deterministic order")
parser.add_argument("--det", type=int, nargs="*", default=[0, 1])
parser.add_argument("--quick", action="store_true", help="the first few cases of each kind")
parser.add_argument("steps", nargs="*", default=["check", "bench"])
args = parser.parse_args()

sys.path.insert(0, str(args.core))
from fm3_core import ColumnMask, patterns  # noqa: E402

_path = next(args.extension.glob("_C*.so"))
_spec = importlib.util.spec_from_file_location("_C", _path)
C = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(C)
DEV = torch.device("cuda")
CURRENT = ["", time.time()]


def watchdog(limit: float = 40.0) -> None:
    """Ends the process, naming the case, when one takes too long."""
    while True:
        time.sleep(1.0)
        if time.time() - CURRENT[1] > limit:
            print(f"HANG in: {CURRENT[0]}", flush=True)
            os._exit(3)


threading.Thread(target=watchdog, daemon=True).start()


def entering(name: str) -> None:
    CURRENT[0], CURRENT[1] = name, time.time()


def stream() -> int:
    return torch.cuda.current_stream().cuda_stream


class Prepared:
    """A mask's device arrays, for both passes."""

    def __init__(self, mask: ColumnMask, kv_heads: int, block_rows: int = 128) -> None:
        self.mask, self.block_rows, self.kv_heads = mask, block_rows, kv_heads
        self.vectors = [torch.from_numpy(np.array(x)).to(DEV).contiguous() for x in (mask.lts, mask.lte, mask.uts, mask.ute)]
        sizes = C.prepared_sizes(mask.batch, mask.heads, mask.num_rows, mask.num_keys, block_rows)
        self.buffers = [torch.full((max(n, 16),), 0xA5, dtype=torch.uint8, device=DEV) for n in sizes]
        self.native = C.PreparedMask(
            batch=mask.batch, heads=mask.heads, num_rows=mask.num_rows, num_keys=mask.num_keys, block_rows=block_rows,
            columns=self.buffers[0].data_ptr(), extrema=self.buffers[1].data_ptr(), row_blocks=self.buffers[2].data_ptr())
        C.prepare_mask(*[x.data_ptr() for x in self.vectors], self.native, self.buffers[3].data_ptr(), block_rows, stream())
        self.lists = {}

    def backward_lists(self, deterministic: bool):
        if deterministic not in self.lists:
            m = self.mask
            sizes = C.backward_sizes(m.batch, m.heads, m.num_rows, m.num_keys)
            buffers = [torch.full((max(n, 16),), 0xA5, dtype=torch.uint8, device=DEV) for n in sizes]
            native = C.BackwardLists(self.native, buffers[0].data_ptr(), buffers[1].data_ptr(),
                                     buffers[2].data_ptr() if deterministic else 0)
            C.prepare_backward_lists(self.native, native, deterministic, self.kv_heads, stream())
            self.lists[deterministic] = (native, buffers)
        return self.lists[deterministic]


def row_tensor(x):
    return C.RowTensor(x.data_ptr(), list(x.shape), [x.stride(0), x.stride(1), x.stride(2)])


COUNTER = torch.zeros(1, dtype=torch.int32, device=DEV)


def instance_name(q, suffix=""):
    return f"{'bf16' if q.dtype == torch.bfloat16 else 'fp16'}_dim{q.shape[-1]}{suffix}"


class Workspace:
    def __init__(self, q, poison=True):
        B, S, H, D = q.shape
        blocks = B * H * -(-S // 64)
        make = lambda n, t: torch.empty(max(n, 4), dtype=t, device=DEV)  # noqa: E731
        self.sums, self.terms, self.turns = make(blocks * 64 * D, torch.float32), make(blocks * 128, torch.float32), make(blocks, torch.int32)
        if poison:
            self.sums.fill_(float("nan")), self.terms.fill_(float("nan")), self.turns.fill_(-7)


def launch(q, k, v, out, lse, d_out, d_lse, grads, prepared, space, *, deterministic=False, suffix="", num_ctas=0, scale=None,
           section_mb=None, phases=7, float_kv=False):
    B, S, H, D = q.shape
    G = k.shape[2]
    row_bytes = max(S * D * (H // G) * 8, 1)  # Q, dO and the float32 sums of dQ
    section = min(max(args.det_pairs if deterministic else 1, int((section_mb or args.section_mb) * 2**20 // row_bytes)), B * G)
    native, _ = prepared.backward_lists(deterministic)
    C.backward(instance_name(q, suffix), row_tensor(q), row_tensor(k), row_tensor(v), row_tensor(out), lse.data_ptr(),
               row_tensor(d_out), 0 if d_lse is None else d_lse.data_ptr(), *map(row_tensor, [grads[0], k, v] if float_kv else grads), prepared.native, native,
               space.sums.data_ptr(), space.terms.data_ptr(), space.turns.data_ptr() if deterministic else 0,
               COUNTER.data_ptr(), scale or D**-0.5, section, num_ctas, phases,
               *([x.data_ptr() for x in grads[1:]] if float_kv else (0, 0)), stream())


def backward(q, k, v, out, lse, d_out, d_lse, prepared, *, float_kv=False, **options):
    kv_dtype = torch.float32 if float_kv else q.dtype
    grads = [torch.full(x.shape, float("nan"), dtype=t, device=DEV) for x, t in ((q, q.dtype), (k, kv_dtype), (v, kv_dtype))]
    options["float_kv"] = float_kv
    launch(q, k, v, out, lse, d_out, d_lse, grads, prepared, Workspace(q), **options)
    return grads


def scores_of(q, k, visible):
    """Masked, scaled scores [B, H, S, T] in the dtype of q."""
    group, mask_group = q.shape[2] // k.shape[2], q.shape[2] // visible.shape[1]
    k = k.transpose(1, 2).repeat_interleave(group, 1)
    scores = (q.transpose(1, 2) @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    return scores.masked_fill(~visible.repeat_interleave(mask_group, 1), float("-inf"))


def oracle_forward(q, k, v, visible, dtype):
    q, k, v = (x.to(dtype) for x in (q, k, v))
    scores = scores_of(q, k, visible)
    lse = torch.logsumexp(scores, -1)
    p = torch.exp(scores - lse.nan_to_num(neginf=0.0)[..., None])
    return (p @ v.transpose(1, 2).repeat_interleave(q.shape[2] // k.shape[2], 1)).transpose(1, 2), lse


def oracle_backward(q, k, v, out, lse, d_out, d_lse, visible, dtype):
    """The definition, densely, every product in dtype."""
    B, S, H, D = q.shape
    G, T = k.shape[2], k.shape[1]
    group = H // G
    delta = (out.double() * d_out.double()).sum(-1).transpose(1, 2) - d_lse.double()  # [B, H, S]
    delta = torch.where(torch.isfinite(lse), delta, 0.0)
    q, k, v, d_out = (x.to(dtype) for x in (q, k, v, d_out))
    p = torch.exp(scores_of(q, k, visible) - lse.nan_to_num(neginf=0.0)[..., None].to(dtype))
    heads = lambda x: x.transpose(1, 2)  # noqa: E731
    dp = heads(d_out) @ heads(v).repeat_interleave(group, 1).transpose(-1, -2)
    ds = p * (dp - delta[..., None].to(dtype))
    dq = heads(ds @ heads(k).repeat_interleave(group, 1)) * D**-0.5
    dk = (ds.transpose(-1, -2) @ heads(q)).view(B, G, group, T, D).sum(2).transpose(1, 2) * D**-0.5
    dv = (p.transpose(-1, -2) @ heads(d_out)).view(B, G, group, T, D).sum(2).transpose(1, 2)
    return dq, dk, dv


FAILURES: list[str] = []
WORST = {"dq": 0.0, "dk": 0.0, "dv": 0.0}
CASES = [0]


def problem(B, S, T, H, G, D, dtype, seed=0):
    g = torch.Generator(device=DEV).manual_seed(seed)
    make = lambda n, h: torch.randn(B, n, h, D, device=DEV, generator=g).to(dtype)  # noqa: E731
    return make(S, H), make(T, G), make(T, G), make(S, H), torch.randn(B, H, S, device=DEV, generator=g)


def compare(name, data, mask, **options):
    entering(name)
    q, k, v, d_out, d_lse = data
    prepared = Prepared(mask, k.shape[2])
    visible = torch.from_numpy(mask.to_dense()).to(DEV)
    out, lse = oracle_forward(q, k, v, visible, torch.float32)
    out = out.to(q.dtype)
    right = oracle_backward(q, k, v, out, lse, d_out, d_lse, visible, torch.float32)
    plain = oracle_backward(q, k, v, out, lse, d_out, d_lse, visible, q.dtype)
    grads = backward(q, k, v, out, lse.contiguous(), d_out, d_lse, prepared, **options)
    torch.cuda.synchronize()
    CASES[0] += 1
    for label, mine, exact, rough in zip(("dq", "dk", "dv"), grads, right, plain, strict=True):
        assert torch.isfinite(exact).all(), "the oracle itself is not finite"
        if exact.numel() == 0:
            continue
        error = (mine.float() - exact).abs()
        allowed = 2 * (rough.float() - exact).abs().max().item() + 1e-6
        worst = error.max().item()
        if not worst <= allowed or not torch.isfinite(mine).all():
            bad = (~(error <= allowed)).nonzero()
            FAILURES.append(f"{name}: {label} {worst:.3g} (allowed {allowed:.3g}); {len(bad)} wrong of {exact.numel()}, "
                            f"first (b,s,h,d) {bad[:1].tolist()}, last {bad[-1:].tolist()}, of {tuple(exact.shape)}")
        else:
            WORST[label] = max(WORST[label], worst / allowed)
    seen = visible.any(-2).repeat_interleave(q.shape[2] // visible.shape[1], 1)  # [Bm, H, T]
    seen = seen.view(seen.shape[0], k.shape[2], -1, k.shape[1]).any(2).transpose(1, 2).expand(k.shape[:3])
    sees = visible.any(-1).repeat_interleave(q.shape[2] // visible.shape[1], 1).transpose(1, 2).expand(q.shape[:3])
    for label, mine, used in (("dq", grads[0], sees), ("dk", grads[1], seen), ("dv", grads[2], seen)):
        if (mine[~used] != 0).any():
            FAILURES.append(f"{name}: {label} of what is hidden from everybody is not exactly 0")
    return grads


def small_masks(S, heads, batch, seed):
    rng = np.random.default_rng(seed)
    cuts = np.sort(rng.integers(0, S + 1, 3))
    docs = [int(x) for x in np.diff([0, *cuts, S])]
    yield "full", patterns.full(S)
    yield "causal", patterns.causal(S)
    yield "window", patterns.sliding_window(S, max(1, S // 7), S // 9)
    yield "causal_document", patterns.causal_document(docs)
    yield "document", patterns.document(docs)
    yield "share_question", patterns.share_question([[d // 3, d // 3, d - 2 * (d // 3)] for d in docs])
    yield "global_window", patterns.global_sliding_window(S, min(16, S), S // 8, S // 8)
    yield "causal_blockwise", patterns.causal_blockwise(docs)
    yield "prefix_document", patterns.prefix_lm_document([(d // 3, d) for d in docs])
    yield "prefix_causal", patterns.prefix_lm_causal(S, S // 2)
    yield "qk_sparse", patterns.qk_sparse(S, [(S // 5, S // 3)])
    if S > 8:
        yield "eviction", patterns.random_eviction(S, S // 2, heads, batch, seed=seed)


def random_mask(rng, S, T, heads, batch):
    shape = (batch, heads, T)
    style = rng.integers(0, 4)
    a, b = np.sort(rng.integers(0, S + 1, (2, *shape)), axis=0)
    c, d = np.sort(rng.integers(0, S + 1, (2, *shape)), axis=0)
    if style == 1:  # long constant runs, so that blocks are EMPTY and FULL too
        for x in (a, b, c, d):
            x[...] = np.repeat(x[..., ::97], 97, axis=-1)[..., :T]
        a, b = np.minimum(a, b), np.maximum(a, b)
        c, d = np.minimum(c, d), np.maximum(c, d)
    if style == 2:
        c[...], d[...] = 0, np.clip(np.arange(T) - (T - S) + rng.integers(-9, 9), 0, S)
        b[...] = S
    if style == 3:
        a[...], b[...] = np.where(rng.random(shape) < 0.5, S, a), S
        c[...], d[...] = 0, np.clip(np.arange(T) - (T - S), 0, S)
    return ColumnMask(*(x.astype(np.int32) for x in (a, b, c, d)), num_rows=S)


def check_oracle():
    q, k, v, d_out, d_lse = problem(1, 40, 40, 4, 2, 64, torch.float64)
    visible = torch.from_numpy(patterns.causal(40).to_dense()).to(DEV)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out, lse = oracle_forward(*leaves, visible, torch.float64)
    right = torch.autograd.grad((out * d_out).sum() + (lse * d_lse).sum(), leaves)
    mine = oracle_backward(q, k, v, out.detach(), lse.detach(), d_out, d_lse, visible, torch.float64)
    assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(mine, right, strict=True)), "the oracle is wrong"


def check():
    start = time.time()
    check_oracle()
    for suffix in args.suffixes:
        before = CASES[0]
        for dtype in (torch.bfloat16, torch.float16):
            for D in (128, 64):
                if instance_name(torch.empty(1, 1, 1, D, dtype=dtype), suffix) not in C.backward_instances():
                    continue
                count = 0
                for S in ([128, 130] if args.quick else [64, 128, 130, 257, 1, 7, 300, 640]):
                    for heads, batch in ((1, 1), (2, 2), (4, 1)):
                        for name, mask in small_masks(S, heads, batch, S + heads):
                            if mask.heads > 1 and heads == 1:
                                continue
                            count += 1
                            if args.quick and count % 3:
                                continue
                            if not args.quick and count % 3 and (dtype, D) != (torch.bfloat16, 128):
                                continue
                            data = problem(2, S, S, 4, 2, D, dtype, seed=S + D)
                            det = count % 2 == 1 and "direct" not in suffix
                            compare(f"{suffix} {name} {dtype} D={D} S={S} mask heads {mask.heads} det {det}", data, mask,
                                    suffix=suffix, deterministic=det, num_ctas=[0, 1, 3][count % 3])
                            if len(FAILURES) > 12:
                                return
                for i in range(6 if args.quick else args.random):
                    rng = np.random.default_rng(1000 + i)
                    B, G, m = int(rng.integers(1, 3)), int(rng.integers(1, 3)), int(rng.integers(1, 4))
                    H = G * m
                    S, T = int(rng.integers(1, 700)), int(rng.integers(1, 700))
                    mask = random_mask(rng, S, T, [1, G, H][i % 3], [1, B][i % 2])
                    data = problem(B, S, T, H, G, D, dtype, seed=i)
                    compare(f"{suffix} random {i} {dtype} D={D} S={S} T={T} B={B} H={H} G={G} Hm={mask.heads}", data, mask,
                            suffix=suffix, deterministic=i % 4 == 1 and "direct" not in suffix, num_ctas=[0, 1, 3][i % 3])
                    if len(FAILURES) > 12:
                        return
                cases(dtype, D, suffix)
                if len(FAILURES) > 12:
                    return
        print(f"checked {CASES[0] - before} cases{suffix}, {len(FAILURES)} failures, worst out of allowed "
              f"{ {k: round(x, 2) for k, x in WORST.items()} }, {time.time() - start:.0f} s", flush=True)


def cases(dtype, D, suffix):
    def one(name, S, T, mask, B=1, H=2, G=1, data=None, **options):
        return compare(f"{suffix} case {name} {dtype} D={D}", data or problem(B, S, T, H, G, D, dtype, seed=S), mask,
                       suffix=suffix, **options)

    def columns(S, T, lts, lte, uts=0, ute=0):
        f = lambda x: np.broadcast_to(np.asarray(x, np.int32), (1, 1, T)).copy()  # noqa: E731
        return ColumnMask(f(lts), f(lte), f(uts), f(ute), num_rows=S)

    deterministic = [False] if "direct" in suffix else [False, True]
    one("1", 130, 130, columns(130, 130, 128, 130))
    one("2", 128, 129, patterns.full(128, 129))
    lts, ute = np.full(512, 512), np.zeros(512)
    lts[5], ute[5], lts[9], ute[9] = 291, 313, 147, 402
    one("3a", 512, 512, columns(512, 512, lts, 512, 0, ute))
    z = np.zeros(512)
    a, b, c, d = z.copy(), z.copy(), z.copy(), z.copy()
    a[7], b[7], c[7], d[7] = 178, 399, 67, 242
    one("3b", 512, 512, columns(512, 512, a, b, c, d))
    lts = np.full(300, 300)
    lts[[3, 130, 299]] = 0
    one("4", 300, 300, columns(300, 300, lts, 300))
    one("5a", 300, 300, columns(300, 300, 0, 14))
    one("5b", 300, 300, columns(300, 300, 297, 300))
    one("5c", 300, 300, columns(300, 300, 0, 300))
    one("6", 300, 100, patterns.causal(300, 100))
    late = np.full(512, 0)
    late[128:] = 1023
    one("6b", 1023, 512, columns(1023, 512, 0, np.where(np.arange(512) < 128, 1020, 0)))
    one("7", 11, 11, patterns.document([0, 1, 3, 7]))
    one("7b", 1025, 1025, patterns.document([512, 513]))
    one("float32 dk, dv", 300, 333, random_mask(np.random.default_rng(8), 300, 333, 2, 2), B=2, H=6, G=2, float_kv=True)
    one("float32 dk, dv, hidden keys", 300, 300, columns(300, 300, lts, 300), float_kv=True)
    one("9", 300, 300, patterns.document([100, 200]) & patterns.sliding_window(300, 20, 10))
    one("9b", 8, 8, patterns.sliding_window(8, 2))
    rng = np.random.default_rng(5)
    one("9c", 260, 260, random_mask(rng, 260, 260, 8, 1), H=8, G=2)
    for blocks in (1, 2, 3, 5):
        for T in (1, 128, 129, 384):
            for det in deterministic:
                one(f"14 {blocks} {T}", 64 * blocks, T, patterns.full(64 * blocks, T), num_ctas=1, deterministic=det)
    q, k, v, d_out, d_lse = problem(2, 300, 300, 4, 2, D, dtype)
    big = torch.randn(2, 300, 8, D, device=DEV).to(dtype)
    one("11 strided", 0, 0, patterns.causal(300), data=(big[:, :, ::2], k, v, d_out, d_lse))
    one("11 transposed", 0, 0, patterns.causal(300), data=(q.transpose(1, 2).contiguous().transpose(1, 2), k, v, big[:, :, 1::2], d_lse))
    k[:, :, 1] = 0
    one("12", 0, 0, patterns.full(300), data=(q, k, v, d_out, d_lse))

    entering(f"13 {suffix} {dtype} {D}")
    hidden = patterns.causal_document([1000, 3096])
    lts = np.array(hidden.lts)
    lts[..., 128:256], lts[..., 384:512] = 0, 0
    blocks = ColumnMask(lts, np.where(lts < 4096, 4096, 4096).astype(np.int32), np.array(hidden.uts), np.array(hidden.ute), num_rows=4096)
    masks13 = [] if True not in deterministic else [("document", hidden), ("hidden", blocks), ("full", patterns.full(4096))]
    data = problem(1, 4096, 4096, 8, 1, D, dtype, seed=3)
    for name, mask in masks13:
        prepared = Prepared(mask, 1)
        visible = torch.from_numpy(mask.to_dense()).to(DEV)
        out, lse = oracle_forward(*data[:3], visible, torch.float32)
        first = None
        for repeat in range(20):
            grads = backward(*data[:3], out.to(dtype), lse, data[3], data[4], prepared, suffix=suffix, deterministic=True,
                             num_ctas=[0, 0, 0, 5, 77][repeat % 5])
            first = first or grads
            if not all(torch.equal(a, b) for a, b in zip(first, grads, strict=True)):
                FAILURES.append(f"13 {name} {suffix} {dtype} D={D}: repeat {repeat} differs")
                break
        right = oracle_backward(*data[:3], out.to(dtype), lse, data[3], data[4], visible, torch.float32)
        for label, mine, exact in zip(("dq", "dk", "dv"), first, right, strict=True):
            relative = ((mine.float() - exact).norm() / exact.norm()).item()
            if not relative < 0.01:
                FAILURES.append(f"13 {name} {suffix} {dtype} D={D}: {label} relative error {relative:.3g}")
        del visible, right, out, lse, prepared
        torch.cuda.synchronize()

    entering(f"15 {suffix} {dtype} {D}")
    data = problem(1, 512, 512, 2, 2, D, dtype)
    mask = patterns.causal_document([100, 212, 200])
    prepared = Prepared(mask, 2)
    out, lse = oracle_forward(*data[:3], torch.from_numpy(mask.to_dense()).to(DEV), torch.float32)
    out, det = out.to(dtype), True in deterministic
    space = Workspace(data[0])
    first = backward(*data[:3], out, lse, data[3], data[4], prepared, suffix=suffix, deterministic=det)
    for _ in range(1000):
        again = [torch.empty_like(x) for x in first]
        launch(*data[:3], out, lse, data[3], data[4], again, prepared, space, suffix=suffix, deterministic=det)
    if not all(torch.equal(a, b) if det else torch.allclose(a, b, atol=0.05) for a, b in zip(first, again, strict=True)):
        FAILURES.append(f"15: a repeat differs {suffix} {dtype} {D}")
    if D == 128 and not args.quick:
        entering("16")
        q, k, v, d_out, d_lse = problem(2840, 32, 32, 16, 16, D, dtype)
        prepared = Prepared(patterns.causal(32), 16)
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        heads = [x.transpose(1, 2).float() for x in leaves]
        s = (heads[0] @ heads[1].transpose(-1, -2)) * D**-0.5
        s = s.masked_fill(torch.ones(32, 32, dtype=torch.bool, device=DEV).triu(1), float("-inf"))
        o, lse = (torch.softmax(s, -1) @ heads[2]).transpose(1, 2), torch.logsumexp(s, -1)
        right = torch.autograd.grad((o * d_out.float()).sum(), leaves)
        grads = backward(q, k, v, o.detach().to(dtype), lse.detach().contiguous(), d_out, None, prepared, suffix=suffix)
        for label, mine, exact in zip(("dq", "dk", "dv"), grads, right, strict=True):
            if not (mine.float() - exact.float()).abs().max() < 0.08:
                FAILURES.append(f"16: many tiny sequences {suffix} {dtype} {label}")
    torch.cuda.synchronize()


BEST = {
    8192: [609, 561, 326, 473, 541, 317, 268, 544, 469, 573, 540, 399],
    32768: [629, 615, 499, 503, 551, 392, 448, 552, 481, 603, 595, 418],
    131072: [615, 618, 578, 589, 606, 518, 546, 598, 573, 615, 609, 428],
}
NAMES = ["full", "causal", "sliding_window", "causal_document", "document", "share_question", "global_sliding_window",
         "causal_blockwise", "prefix_lm_document", "prefix_lm_causal", "qk_sparse", "random_eviction"]


def bench_mask(name, S, heads):
    lengths_file = json.loads(args.data.read_text())
    first = lengths_file["batches"][str(S)][0]
    docs = first["lengths"]
    starts = np.cumsum([0, *docs])
    stretches = [(int(s), n) for s, n, hidden in zip(starts, docs, first["hidden"], strict=False) if hidden]
    return {
        "full": lambda: patterns.full(S),
        "causal": lambda: patterns.causal(S),
        "sliding_window": lambda: patterns.sliding_window(S, S // 16 - 1),
        "causal_document": lambda: patterns.causal_document(docs),
        "document": lambda: patterns.document(docs),
        "share_question": lambda: patterns.share_question(first["question_then_answers"]),
        "global_sliding_window": lambda: patterns.global_sliding_window(S, 16, S // 16, S // 16),
        "causal_blockwise": lambda: patterns.causal_blockwise(docs),
        "prefix_lm_document": lambda: patterns.prefix_lm_document(list(zip(first["prefix"], docs, strict=True))),
        "prefix_lm_causal": lambda: patterns.prefix_lm_causal(S, S // 2),
        "qk_sparse": lambda: patterns.qk_sparse(S, stretches or [(1024, 538), (2358, 1700)]),
        "random_eviction": lambda: patterns.random_eviction(S, S // 2, heads, 1, seed=0),
    }[name]()


def median_ms(call, budget_ms=None):
    budget_ms = budget_ms or args.budget_ms
    call()
    torch.cuda.synchronize()
    a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    a.record()
    call()
    b.record()
    torch.cuda.synchronize()
    n = int(min(30, max(3, budget_ms / max(a.elapsed_time(b), 1e-3))))
    events = [torch.cuda.Event(enable_timing=True) for _ in range(n + 1)]
    events[0].record()
    for i in range(n):
        call()
        events[i + 1].record()
    torch.cuda.synchronize()
    return statistics.median(events[i].elapsed_time(events[i + 1]) for i in range(n))


RESULTS: list[dict] = []


def verify(q, k, v, out, lse, d_out, grads, mask):
    """Worst relative error of the gradients of the first and last head, float32 by chunks of rows."""
    worst = 0.0
    B, S, H, D = q.shape
    group = H // k.shape[2]
    for b, g in ((0, 0), (B - 1, k.shape[2] - 1)):
        kk, vv = k[b, :, g].float(), v[b, :, g].float()
        dk, dv = torch.zeros_like(kk), torch.zeros_like(vv)
        for h in range(g * group, (g + 1) * group):
            mh, mb = h * mask.heads // H, 0 if mask.batch == 1 else b
            vectors = [torch.from_numpy(np.array(x[mb, mh])).to(DEV)[None] for x in (mask.lts, mask.lte, mask.uts, mask.ute)]
            dq = torch.empty(S, D, device=DEV)
            for r0 in range(0, S, 4096):
                r = torch.arange(r0, min(r0 + 4096, S), device=DEV)[:, None]
                lts, lte, uts, ute = vectors
                hidden = ((r >= lts) & (r < lte)) | ((r >= uts) & (r < ute))
                rows = slice(r0, r0 + len(r))
                qq, dd = q[b, rows, h].float(), d_out[b, rows, h].float()
                p = torch.exp((qq @ kk.T) * D**-0.5 - lse[b, h, rows, None]).masked_fill_(hidden, 0.0)
                ds = p * (dd @ vv.T - (dd * out[b, rows, h].float()).sum(-1, keepdim=True))
                dq[rows] = ds @ kk * D**-0.5
                dk += ds.T @ qq * D**-0.5
                dv += p.T @ dd
            worst = max(worst, ((grads[0][b, :, h].float() - dq).norm() / dq.norm()).item())
        for mine, exact in ((grads[1], dk), (grads[2], dv)):
            worst = max(worst, ((mine[b, :, g].float() - exact).norm() / exact.norm()).item())
    return worst


def bench():
    H, G, D = args.heads, args.kv_heads, args.dim
    entering("cublas")
    a, b = (torch.randn(8192, 8192, device=DEV).bfloat16() for _ in range(2))
    t = median_ms(lambda: a @ b)
    print(f"cuBLAS 8192^3 {2 * 8192**3 / t / 1e9:.0f} TFLOP/s", flush=True)
    RESULTS.append({"cell": "cublas_8192", "tflops": 2 * 8192**3 / t / 1e9})
    for S in args.lengths:
        B = max(1, 131072 // S)
        q, k, v, d_out, _ = problem(B, S, S, H, G, D, torch.bfloat16)
        out, lse = torch.empty_like(q), torch.empty(B, H, S, device=DEV)
        grads = [torch.empty_like(x) for x in (q, k, v)]
        space = Workspace(q, poison=False)
        variants = [(s, d) for s in args.suffixes for d in args.det if not (d and "direct" in s)]
        ratios: dict = {x: [] for x in variants}
        for i, name in enumerate(NAMES):
            if args.masks and name not in args.masks:
                continue
            entering(f"{name} {S}")
            mask = bench_mask(name, S, H)
            pairs = int(mask.visible_pairs().sum()) * (H // mask.heads) * (B // mask.batch)
            prepared = Prepared(mask, G)
            section = max(1, int(32 * 2**20 // (4 * S * D))) * (H // G)
            C.forward(instance_name(q), row_tensor(q), row_tensor(k), row_tensor(v), row_tensor(out), lse.data_ptr(),
                      prepared.native, COUNTER.data_ptr(), D**-0.5, min(section, B * H), 0, stream())
            line = f"{name:22s} {S:6d} {pairs / (B * H * S * S):.3f} best {BEST[S][i]} "
            for suffix, det in variants:
                entering(f"{name} {S} {suffix} {det}")
                for x in grads:
                    x.fill_(float("nan"))
                call = lambda p=7, s=suffix, d=det: launch(q, k, v, out, lse, d_out, None, grads, prepared, space,  # noqa: E731
                                                           deterministic=bool(d), suffix=s, phases=p)
                call()
                torch.cuda.synchronize()
                bad = verify(q, k, v, out, lse, d_out, grads, mask)
                if not bad <= 0.012 or not all(torch.isfinite(x).all() for x in grads):
                    line += f" {suffix}{'+det' if det else ''} WRONG ({bad:.3g})"
                    FAILURES.append(line)
                    continue
                t = median_ms(call)
                tflops = 10 * pairs * D / t / 1e9
                ratios[suffix, det].append(tflops / BEST[S][i])
                record = {"cell": name, "tokens": S, "suffix": suffix, "deterministic": det, "tflops": tflops, "ms": t,
                          "best": BEST[S][i], "pairs": pairs, "heads": H, "kv_heads": G, "dim": D, "error": bad,
                          "section_mb": args.section_mb}
                line += f" {suffix}{'+det' if det else ''}: {tflops:4.0f} ({tflops / BEST[S][i]:.2f}"
                if not det:
                    alone = median_ms(lambda: call(2))
                    record["kernel_ms"] = alone
                    line += f"; kernel {alone / t:.2f} of {t:.2f} ms"
                line += ")"
                RESULTS.append(record)
            print(line, flush=True)
        for (suffix, det), r in ratios.items():
            if r:
                print(f"== {S} {suffix}{'+det' if det else ''}: geometric mean of ratios {math.exp(sum(map(math.log, r)) / len(r)):.3f}", flush=True)
        del q, k, v, d_out, out, lse, grads, space
        torch.cuda.empty_cache()


def profile():
    """A few launches for a profiler to catch."""
    S, H, D = 16384, 8, args.dim
    q, k, v, d_out, _ = problem(1, S, S, H, H, D, torch.bfloat16)
    prepared = Prepared(bench_mask("full", S, H) if S in (8192, 32768) else patterns.full(S), H)
    out, lse = torch.randn_like(q), torch.full((1, H, S), 9.0, device=DEV)
    grads = [torch.empty_like(x) for x in (q, k, v)]
    space = Workspace(q, poison=False)
    for suffix in args.suffixes:
        for _ in range(2):
            entering("profile")
            launch(q, k, v, out, lse, d_out, None, grads, prepared, space, suffix=suffix)
        torch.cuda.synchronize()


def yardsticks():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    D, H = args.dim, args.heads
    for S in args.lengths:
        if S > 32768:
            continue
        B = 131072 // S
        q, k, v, d_out = (x.transpose(1, 2).requires_grad_() for x in problem(B, S, S, H, H, D, torch.bfloat16)[:4])
        for name in ("full", "causal"):
            entering(f"cudnn {name} {S}")
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=name == "causal")
                t = median_ms(lambda o=o: torch.autograd.grad(o, (q, k, v), d_out, retain_graph=True))
            tflops = 10 * B * H * S * S * D * (1 if name == "full" else (S + 1) / 2 / S) / t / 1e9
            print(f"cuDNN backward {name} {S}: {tflops:.0f}", flush=True)
            RESULTS.append({"cell": name, "tokens": S, "engine": "cudnn", "tflops": tflops})


for step in args.steps:
    {"check": check, "bench": bench, "profile": profile, "yardsticks": yardsticks}[step]()
    for failure in FAILURES[:15]:
        print("FAIL", failure, flush=True)
    if FAILURES and step == "check":
        break
if args.out:
    args.out.write_text(json.dumps({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
                                    "date": time.strftime("%Y-%m-%d"), "results": RESULTS, "failures": FAILURES}, indent=1))
sys.exit(1 if FAILURES else 0)
