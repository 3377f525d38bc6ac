"""The tiled engine against torch's scaled_dot_product_attention with a dense mask, on a CPU: time and memory.

Run: python benchmarks/bench_cpu_engine.py [--json FILE]. The mask is the causal document mask of two
copies of the first 8192-token batch of benchmarks/data/document_lengths.json; 8 heads of dim 64, float32.
Each engine runs in a process of its own, forward and backward; the fastest of several repeats counts. Memory
is the peak resident size of the first run above that of the process with its inputs, less the output and the
three gradients. The dense mask, which is an input of torch's, is listed apart and not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from fm3_core import ColumnMask, patterns
from fm3_kernels import DeviceMask, attention

LENGTHS_FILE = Path(__file__).parent / "data" / "document_lengths.json"
NUM_HEADS, HEAD_DIM = 8, 64
MEBIBYTE = 1 << 20


def main() -> None:
    """Run both engines, print the table and write the JSON file that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--repeats", type=int, default=5, help="repeats; the fastest counts")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch")
    parser.add_argument(
        "--engine", choices=sorted(CALLS), help="measure one engine in this process, print JSON"
    )
    arguments = parser.parse_args()
    if arguments.engine:
        print(json.dumps(measure(arguments.engine, arguments.repeats, arguments.threads)))
        return
    rows = {name: in_a_process(name, arguments.repeats, arguments.threads) for name in sorted(CALLS)}
    for name, row in rows.items():
        print(
            f"{name:<6} forward {row['forward_seconds']:7.3f} s, backward {row['backward_seconds']:7.3f} s, "
            f"memory {row['extra_mebibytes']:7.1f} MiB (dense mask {row['dense_mask_mebibytes']:.0f} MiB), "
            f"error {row['error']:.1e}"
        )
    seconds = {name: row["forward_seconds"] + row["backward_seconds"] for name, row in rows.items()}
    speedup = seconds["sdpa"] / seconds["tiled"]
    memory_ratio = rows["tiled"]["extra_mebibytes"] / rows["sdpa"]["extra_mebibytes"]
    print(f"tiled is {speedup:.2f} x as fast, forward + backward, in {memory_ratio:.3f} of the memory")
    if arguments.json:
        figures = {"speedup": speedup, "memory_ratio": memory_ratio, "rows": rows}
        text = json.dumps(about(arguments.threads) | figures, indent=2)
        arguments.json.write_text(text + "\n", encoding="utf-8")


def benchmark_mask() -> ColumnMask:
    """Return the causal document mask of 16384 tokens."""
    lengths = json.loads(LENGTHS_FILE.read_text(encoding="utf-8"))["batches"]["8192"][0]["lengths"]
    return patterns.causal_document(lengths * 2)


def in_a_process(name: str, repeats: int, threads: int) -> dict[str, float]:
    """Measure one engine in a fresh process."""
    command = [
        sys.executable,
        __file__,
        "--engine",
        name,
        "--repeats",
        str(repeats),
        "--threads",
        str(threads),
    ]
    answer: dict[str, float] = json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    )
    return answer


def measure(name: str, repeats: int, threads: int) -> dict[str, float]:
    """Return the times, the memory and the error of one engine."""
    torch.set_num_threads(threads)
    run(CALLS[name](patterns.causal(64)))  # loads libraries and starts threads
    mask = benchmark_mask()
    call = CALLS[name](mask)
    before = resident_bytes()
    times = [run(call)]
    extra = peak_resident_bytes() - before - 4 * call.inputs[0].nbytes
    times += [run(call) for _ in range(repeats - 1)]
    forward_seconds, backward_seconds = (min(seconds) for seconds in zip(*times, strict=True))
    return {
        "forward_seconds": forward_seconds,
        "backward_seconds": backward_seconds,
        "extra_mebibytes": extra / MEBIBYTE,
        "dense_mask_mebibytes": call.dense_mask_bytes / MEBIBYTE,
        "error": error_of_sampled_rows(call, mask),
    }


@dataclass(frozen=True, kw_only=True)
class Call:
    """An attention, the q, k and v that it is called with, and the gradient that comes in from behind."""

    forward: Callable[[Tensor, Tensor, Tensor], Tensor]
    inputs: list[Tensor]
    dout: Tensor
    rows_dim: int
    dense_mask_bytes: int = 0


def tiled(mask: ColumnMask) -> Call:
    """Return FM3's engine; its mask is four vectors."""
    on_device = DeviceMask.from_mask(mask)
    *inputs, dout = random_tensors(1, mask.num_rows, NUM_HEADS, HEAD_DIM)
    return Call(
        forward=lambda q, k, v: attention(q, k, v, on_device, engine="tiled"),
        inputs=inputs,
        dout=dout,
        rows_dim=1,
    )


def sdpa(mask: ColumnMask) -> Call:
    """Return torch's attention under a dense mask, its tensors head first as it likes them best."""
    visible = torch.empty(1, 1, mask.num_rows, mask.num_keys, dtype=torch.bool)
    for start in range(0, mask.num_rows, 512):
        end = min(mask.num_rows, start + 512)
        visible[:, :, start:end] = torch.from_numpy(mask.slice_rows(start, end).to_dense())
    *inputs, dout = random_tensors(1, NUM_HEADS, mask.num_rows, HEAD_DIM)
    return Call(
        forward=lambda q, k, v: scaled_dot_product_attention(q, k, v, attn_mask=visible),
        inputs=inputs,
        dout=dout,
        rows_dim=2,
        dense_mask_bytes=visible.nbytes,
    )


CALLS: dict[str, Callable[[ColumnMask], Call]] = {"tiled": tiled, "sdpa": sdpa}


def random_tensors(*shape: int) -> list[Tensor]:
    """Return q, k, v and dout, normally distributed; all but dout require gradients."""
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=generator) for _ in range(4)]
    return [x.requires_grad_() for x in tensors[:3]] + tensors[3:]


def run(call: Call) -> tuple[float, float]:
    """Return the seconds of one forward and of one backward."""
    started = time.perf_counter()
    out = call.forward(*call.inputs)
    between = time.perf_counter()
    torch.autograd.grad(out, call.inputs, call.dout)
    return between - started, time.perf_counter() - between


def error_of_sampled_rows(call: Call, mask: ColumnMask) -> float:
    """Return the largest error of out in 64 rows of head 0 against dense float64 attention."""
    with torch.no_grad():
        out = call.forward(*call.inputs)
    q, k, v, out = (x.detach().movedim(call.rows_dim, 0)[:, 0, 0].double() for x in (*call.inputs, out))
    errors = []
    for row in range(37, mask.num_rows, mask.num_rows // 64):
        seen = torch.from_numpy(mask.slice_rows(row, row + 1).to_dense()[0, 0, 0])
        weights = (k[seen] @ q[row] * HEAD_DIM**-0.5).softmax(0)
        errors.append(float((weights @ v[seen] - out[row]).abs().max()))
    return max(errors)


def resident_bytes() -> int:
    """Return this process's resident size now."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def peak_resident_bytes() -> int:
    """Return the largest resident size that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def about(threads: int) -> dict[str, object]:
    """Return what the figures depend on: machine, versions, date and the problem."""
    cpu = [
        line
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if "model name" in line
    ]
    mask = benchmark_mask()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu[0].split(":")[1].strip() if cpu else platform.processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "mask": {"pattern": "causal_document", "tokens": mask.num_rows, "density": mask.density},
        "heads": NUM_HEADS,
        "head_dim": HEAD_DIM,
        "dtype": "float32",
    }


if __name__ == "__main__":
    main()
