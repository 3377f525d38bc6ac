"""What checking and timing the forward kernel share: options, the extension, launches, the oracle, clocks."""

from __future__ import annotations

import argparse
import importlib.util
import pathlib
import statistics
import time

import numpy as np
import torch

from fm3_core import ColumnMask

parser = argparse.ArgumentParser()
parser.add_argument("--extension", type=pathlib.Path, required=True)
parser.add_argument(
    "--other", type=pathlib.Path, default=None, help="a second extension, timed in turns with the first"
)
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


def load(directory):
    """The extension that lies in a directory."""
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
        """The arrays as an extension's object."""
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
        """Fills the arrays."""
        C.prepare_mask(
            *[x.data_ptr() for x in self.vectors],
            self.native,
            self.buffers[3].data_ptr(),
            self.block_rows,
            torch.cuda.current_stream().cuda_stream,
        )

    def row_blocks(self) -> np.ndarray:
        """The records {row block, first, last, count}, by falling work."""
        n = self.mask.batch * self.mask.heads * -(-self.mask.num_rows // self.block_rows) * 16
        return (
            self.buffers[2][:n].cpu().numpy().view(np.int32).reshape(self.mask.batch, self.mask.heads, -1, 4)
        )


def row_tensor(x, module):
    """A tensor as an extension's object."""
    return module.RowTensor(x.data_ptr(), list(x.shape), [x.stride(0), x.stride(1), x.stride(2)])


COUNTER = torch.zeros(1, dtype=torch.int32, device=DEV)


def instance_name(q, suffix=""):
    """The compiled kernel's name for these queries."""
    return f"{'bf16' if q.dtype == torch.bfloat16 else 'fp16'}_dim{q.shape[-1]}{suffix}"


def launch(q, k, v, prepared, out, lse, *, suffix="", num_ctas=0, scale=None, section_mb=None, module=None):
    """Starts one forward pass into out and lse."""
    module = module or C
    native = prepared.native if module is C else prepared.describe(module)
    B, _S, H, D = q.shape
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
    """One forward pass into poisoned outputs."""
    out = torch.full(q.shape, float("nan"), dtype=q.dtype, device=DEV)
    lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), float("nan"), device=DEV)
    launch(q, k, v, prepared, out, lse, **options)
    return out, lse


def oracle(q, k, v, visible, dtype=torch.float32):
    """Dense attention in dtype; visible bool [Bm, Hm, S, T] on the device."""
    _B, _S, H, D = q.shape
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
RESULTS: list[dict] = []


def tensors(B, S, T, H, G, D, dtype, seed=0):
    """Random queries, keys and values."""
    g = torch.Generator(device=DEV).manual_seed(seed)
    return [
        torch.randn(B, n, h, D, device=DEV, generator=g, dtype=torch.float32).to(dtype)
        for n, h in ((S, H), (T, G), (T, G))
    ]


def timed_once(call, budget_ms):
    """Mean time of a call, many calls between two events."""
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
    """Median time of one call."""
    return interleaved_ms({"": call})[""]
