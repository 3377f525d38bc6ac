"""Bandwidth of the pull kernel, and what ready flags cost the attention kernel, on one GPU.

A rank pulls 64 MiB of keys and values from its own symmetric memory, as if a peer had them: the copy reads
and writes this GPU's memory, so a figure is what the kernel can issue, not what a link carries. Late chunks
are flags that a side stream sets one after the other; `over_the_longer` compares with arrival or compute,
whichever is longer, and one chunk more. Figures are medians of several launches.

Run: python benchmarks/bench_pull.py [--json FILE] [--flags]; needs a GPU, and fm3_comm._C but for --flags.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fm3_comm.symmetric import memories
from fm3_comm.symmetric.device_tables import PULLED

MIB = 1 << 20
CHUNK_TOKENS, HEADS, DIM = 512, 8, 128
NUM_CHUNKS = 32
CTAS = (1, 2, 4, 8, 16, 32)
LAUNCHES = 20
ATTENTION_TOKENS, ATTENTION_HEADS = 16384, 16


def main() -> None:
    """Measure, print the rows and write the JSON file that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="file for the rows")
    parser.add_argument("--flags", action="store_true", help="the attention kernel alone")
    arguments = parser.parse_args()
    if arguments.flags:
        found = {"attention with flags": flag_rows()}
    else:
        kind = memories.get("nvshmem")
        reason = kind.why_unavailable()
        if reason is not None:
            print(f"nothing to measure: {reason}")
            return
        (found,) = kind.run(1, measure, timeout_seconds=120.0)
    for title, rows in found.items():
        print(title)
        for row in rows:
            print("  " + "  ".join(f"{key} {value}" for key, value in row.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def measure(memory: Any) -> dict[str, list[dict[str, object]]]:
    """Return all rows."""
    return {"pull": pull_rows(memory), "attention with flags": flag_rows()}


def pull_rows(memory: Any) -> list[dict[str, object]]:
    """Pull 64 MiB by different numbers of CTAs."""
    token_bytes = HEADS * DIM * 2
    side = 2 * NUM_CHUNKS * CHUNK_TOKENS * token_bytes
    buffer = memory.alloc(2 * side)
    words = memory.alloc(8 * NUM_CHUNKS)
    words.words.fill_(1 << 40)
    table = np.zeros(NUM_CHUNKS, dtype=PULLED)
    for index, row in enumerate(table):
        row["source"], row["source_rank"], row["source_slot"] = buffer.address, 0, index
        row["slot"], row["num_tokens"], row["landed"] = NUM_CHUNKS + index, CHUNK_TOKENS, index
    chunks = torch.frombuffer(bytearray(table.tobytes()), dtype=torch.uint8).cuda()
    ready, finished = (torch.zeros(2 * NUM_CHUNKS, dtype=torch.int32, device="cuda") for _ in range(2))
    kernels = memory.extension
    layout = kernels.SlotLayout(
        k_start=0, v_start=side, k_token_bytes=token_bytes, v_token_bytes=token_bytes, batch=1,
        num_slots=2 * NUM_CHUNKS, chunk_tokens=CHUNK_TOKENS,
    )  # fmt: skip
    limit = kernels.WaitLimit(nanoseconds=0, report=0)
    num_bytes = 2 * NUM_CHUNKS * CHUNK_TOKENS * token_bytes
    rows: list[dict[str, object]] = []
    for num_ctas in CTAS:
        epochs = iter(range(1, 1 << 20))

        def launch(num_ctas: int = num_ctas, epochs: Any = epochs) -> None:
            kernels.pull(
                chunks=chunks.data_ptr(), num_chunks=NUM_CHUNKS, readers=0, seen=0, buffer=buffer.address,
                landed=words.address, ready=ready.data_ptr(), finished_ctas=finished.data_ptr(),
                resident_ctas=0, layout=layout, limit=limit, epoch=next(epochs), num_ctas=num_ctas,
                stream=torch.cuda.current_stream().cuda_stream,
            )  # fmt: skip

        seconds = median_seconds(launch)
        rows.append(
            {"ctas": num_ctas, "mib": num_bytes / MIB, "gb_per_second": round(num_bytes / seconds / 1e9, 1)}
        )
    return rows


def flag_rows() -> list[dict[str, object]]:
    """Time the attention kernel with and without flags, over masks and orders of rows."""
    from fm3_core import patterns
    from fm3_kernels import DeviceMask, hopper_ops
    from fm3_kernels.prepared_mask import prepared

    masks = {
        "causal": patterns.causal(ATTENTION_TOKENS),
        "causal documents of 2048": patterns.causal_document([2048] * (ATTENTION_TOKENS // 2048)),
    }
    rows: list[dict[str, object]] = []
    for name, mask in masks.items():
        arrays = prepared(DeviceMask.from_mask(mask, torch.device("cuda")))
        rows += rows_of_order(f"{name}, heaviest rows first", arrays)
        rows += rows_of_order(f"{name}, rows as their keys arrive", arrays.by_arrival())
        turns, hopper_ops._BAND_TILES = hopper_ops._BAND_TILES, 1 << 30
        for order, ordered in (
            ("heaviest rows first", arrays),
            ("rows as their keys arrive", arrays.by_arrival()),
        ):
            rows += rows_of_order(f"{name}, {order}, sections of heads whole", ordered)
        hopper_ops._BAND_TILES = turns
    return rows


def rows_of_order(name: str, mask: Any) -> list[dict[str, object]]:
    """Time one prepared mask."""
    from fm3_kernels import hopper

    shape = (1, ATTENTION_TOKENS, ATTENTION_HEADS, DIM)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    epochs = torch.ones(ATTENTION_TOKENS // CHUNK_TOKENS, dtype=torch.int32, device="cuda")
    flags = hopper.ReadyFlags(epochs=epochs, epoch=1, chunk_size=CHUNK_TOKENS)
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    rows: list[dict[str, object]] = []
    for what, ready, num_ctas in (
        ("no flags", None, 0),
        ("all flags set", flags, 0),
        ("all flags set, 16 multiprocessors left free", flags, multiprocessors - 16),
    ):

        def launch(ready: Any = ready, num_ctas: int = num_ctas) -> None:
            hopper.forward_prepared(q, k, v, mask, softmax_scale=DIM**-0.5, ready=ready, num_ctas=num_ctas)

        rows.append({"mask": name, "kernel": what, "milliseconds": round(1000 * median_seconds(launch), 3)})
    alone = rows[-1]["milliseconds"]
    late = [late_row(q, k, v, mask, flags, multiprocessors - 16, share, alone) for share in (0.5, 1.0, 2.0)]
    return rows + [{"mask": name, **row} for row in late]


def late_row(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: Any,
    flags: Any,
    num_ctas: int,
    share: float,
    compute_milliseconds: Any,
) -> dict[str, object]:
    """Time the kernel while chunks arrive over `share` of the time that it needs with all of them there."""
    from fm3_kernels import hopper

    side, caller = torch.cuda.Stream(priority=-1), torch.cuda.current_stream()
    num_chunks = len(flags.epochs)
    cycles_per_millisecond = 1e7 / (1000 * median_seconds(lambda: torch.cuda._sleep(10_000_000)))
    cycles = int(share * compute_milliseconds * cycles_per_millisecond / num_chunks)
    arrive = torch.cuda.CUDAGraph()  # one launch, so that Python does not pace what arrives
    with torch.cuda.graph(arrive, stream=side):
        for chunk in range(num_chunks):
            torch.cuda._sleep(cycles)
            flags.epochs[chunk : chunk + 1].fill_(flags.epoch)

    def launch(*, attends: bool) -> None:
        flags.epochs.zero_()
        side.wait_stream(caller)
        if attends:
            hopper.forward_prepared(q, k, v, mask, softmax_scale=DIM**-0.5, ready=flags, num_ctas=num_ctas)
        with torch.cuda.stream(side):
            arrive.replay()
        caller.wait_stream(side)

    alone, together = partial(launch, attends=False), partial(launch, attends=True)
    arrival, total = (1000 * median_seconds(call) for call in (alone, together))
    return {
        "kernel": f"chunks arriving over {share:g} of its time",
        "arrival_milliseconds": round(arrival, 3),
        "milliseconds": round(total, 3),
        "over_the_longer": round(
            total / (max(arrival, float(compute_milliseconds)) + arrival / num_chunks), 3
        ),
    }


def median_seconds(launch: Callable[[], None]) -> float:
    """Return the median time of a launch on the GPU."""
    for _ in range(3):
        launch()
    times = []
    for _ in range(LAUNCHES):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        launch()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1000)
    return statistics.median(times)


if __name__ == "__main__":
    main()
