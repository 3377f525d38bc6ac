"""Time and memory of the core at one million keys, on one core of a CPU.

    python benchmarks/bench_core.py [--keys 1048576] [--repeats 5] [--output benchmarks/results/core.json]

Prints a table with each figure beside its target and writes the same as JSON.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fm3_core import (
    BlockExtrema,
    ColumnMask,
    block_counts,
    documents,
    localize,
    needs,
    pack,
    patterns,
    visible_pairs_by_chunk,
    visible_pairs_by_row_range,
)

_DATA = Path(__file__).parent / "data" / "document_lengths.json"
_RESULT = Path(__file__).parent / "results" / "core.json"

PATTERN_SECONDS = 0.5
LOCALIZE_SECONDS = 0.05
PLANNING_SECONDS = 0.3
NUM_CHUNKS = 2048
RANK_CHUNKS = 512
BLOCK = 128


@dataclass(frozen=True)
class Figure:
    """What one operation took."""

    name: str
    seconds: float
    peak_mib: float
    target_seconds: float

    @property
    def verdict(self) -> str:
        """Say whether the target is met."""
        return "met" if self.seconds <= self.target_seconds else "MISSED"


def measure(name: str, call: Callable[[], object], target: float, repeats: int) -> Figure:
    """Run once for memory, then `repeats` times and keep the fastest."""
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return Figure(name, min(seconds), peak / 2**20, target)


def sample_lengths(keys: int) -> dict[str, list]:
    """Repeat the benchmark's 128K batch of documents until it fills the keys; the last document is cut."""
    batch = json.loads(_DATA.read_text())["batches"]["131072"][0]
    bounds = np.minimum(np.cumsum(batch["lengths"] * -(-keys // 131072)), keys)
    lengths = [length for length in np.diff(bounds, prepend=0).tolist() if length]
    prefixes = (batch["prefix"] * -(-keys // 131072))[: len(lengths)]
    starts = np.cumsum([0, *lengths[:-1]]).tolist()
    return {
        "lengths": lengths,
        "prefixed": [(min(prefix, length), length) for prefix, length in zip(prefixes, lengths, strict=True)],
        "groups": [[length - length // 4 * 3, *[length // 4] * 3] for length in lengths],
        "stretches": list(zip(starts, lengths, strict=True))[::2],
    }


def pattern_calls(keys: int) -> Iterator[tuple[str, Callable[[], ColumnMask]]]:
    """Yield the twelve patterns, and those over documents once more over documents of one token each."""
    sample, window = sample_lengths(keys), keys // 16
    yield "full", lambda: patterns.full(keys)
    yield "causal", lambda: patterns.causal(keys)
    yield "sliding_window", lambda: patterns.sliding_window(keys, window - 1)
    yield "causal_document", lambda: patterns.causal_document(sample["lengths"])
    yield "document", lambda: patterns.document(sample["lengths"])
    yield "share_question", lambda: patterns.share_question(sample["groups"])
    yield "global_sliding_window", lambda: patterns.global_sliding_window(keys, 16, window, window)
    yield "causal_blockwise", lambda: patterns.causal_blockwise(sample["lengths"])
    yield "prefix_lm_document", lambda: patterns.prefix_lm_document(sample["prefixed"])
    yield "prefix_lm_causal", lambda: patterns.prefix_lm_causal(keys, keys // 2)
    yield "qk_sparse", lambda: patterns.qk_sparse(keys, sample["stretches"])
    yield "random_eviction", lambda: patterns.random_eviction(keys, keys // 2, seed=0)
    ones = [1] * keys
    yield "causal_document, one token each", lambda: patterns.causal_document(ones)
    yield "prefix_lm_document, one token each", lambda: patterns.prefix_lm_document([(1, 1)] * keys)
    yield "share_question, two tokens each", lambda: patterns.share_question([[1, 1]] * (keys // 2))


def operation_calls(keys: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield every operation in O(keys), each on a mask that has cached nothing yet."""
    lengths = sample_lengths(keys)["lengths"]
    mask = patterns.causal_document(lengths)
    window, prefix = patterns.sliding_window(keys, 1000), patterns.prefix_lm_causal(keys, keys // 2)
    indices, causal = mask.to_startend_row_indices()
    order = np.random.default_rng(0).permutation(keys)
    halves = mask.slice_keys(0, keys // 2).slice_rows(0, keys // 2), patterns.causal(keys - keys // 2)

    def fresh() -> ColumnMask:
        return mask.slice_keys(0, keys)

    yield "construct and validate", lambda: ColumnMask(*mask.vectors, num_rows=keys)
    yield "canonical", lambda: fresh().canonical()
    yield "fingerprint", lambda: fresh().fingerprint
    yield "equality", lambda: fresh() == fresh()
    yield "visible_pairs", lambda: fresh().visible_pairs()
    yield "&", lambda: mask & window
    yield "|", lambda: fresh() | prefix
    yield "~", lambda: ~patterns.sliding_window(keys, 1000, 1000)
    yield "slice_rows", lambda: mask.slice_rows(keys // 4, keys // 2)
    yield "slice_keys", lambda: mask.slice_keys(keys // 4, keys // 2)
    yield "take_keys, shuffled", lambda: mask.take_keys(order)
    yield "pack", lambda: pack(halves)
    yield "from_startend_row_indices", lambda: ColumnMask.from_startend_row_indices(indices, causal=causal)
    yield "to_startend_row_indices", lambda: fresh().to_startend_row_indices()
    yield (
        "lengths_from_document_ids",
        lambda: documents.lengths_from_document_ids(documents.document_ids(lengths)),
    )
    yield (
        "lengths_from_position_ids",
        lambda: documents.lengths_from_position_ids(documents.position_ids(lengths)),
    )
    yield (
        "visible_pairs_by_row_range",
        lambda: visible_pairs_by_row_range(mask, np.arange(0, keys + 1, BLOCK)),
    )
    yield "block extrema", lambda: BlockExtrema.from_mask(mask, BLOCK)


def planning_calls(keys: int) -> Iterator[tuple[str, Callable[[], object], float]]:
    """Yield localization and the planner's inputs, with their targets."""
    chunk = -(-keys // NUM_CHUNKS)
    row_bounds = np.append(np.arange(0, keys, BLOCK), keys)
    sample = sample_lengths(keys)
    every_other = np.arange(0, keys, 2 * -(-keys // (2 * RANK_CHUNKS)))
    sizes = np.minimum(-(-keys // (2 * RANK_CHUNKS)), keys - every_other)
    masks = {
        "causal_document": patterns.causal_document(sample["lengths"]),
        "causal_blockwise": patterns.causal_blockwise(sample["lengths"]),
        "global_sliding_window": patterns.global_sliding_window(keys, 16, keys // 16, keys // 16),
        "random_eviction": patterns.random_eviction(keys, keys // 2, seed=0),
    }
    for name, mask in masks.items():
        yield (
            f"localize, {len(sizes)} chunks: {name}",
            lambda m=mask: localize(m, every_other, sizes),
            LOCALIZE_SECONDS,
        )
        yield (
            f"weights and needs, {NUM_CHUNKS} chunks: {name}",
            lambda m=mask: (block_counts(m, row_bounds, BLOCK), needs(m, chunk_size=chunk)),
            PLANNING_SECONDS,
        )
    mask = masks["causal_document"]
    yield (
        f"visible pairs by chunk, {NUM_CHUNKS} chunks: causal_document",
        lambda: visible_pairs_by_chunk(mask, chunk_size=chunk),
        PLANNING_SECONDS,
    )


def machine() -> dict[str, str]:
    """Return what the figures were measured on."""
    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(
            (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model
        )
    return {
        "cpu": model,
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def main() -> int:
    """Measure, print, write; 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=1 << 20, help="keys of each mask (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="runs, of which the fastest counts")
    parser.add_argument("--output", type=Path, default=_RESULT, help="JSON file (default: %(default)s)")
    options = parser.parse_args()

    calls = [
        *((f"pattern: {name}", call, PATTERN_SECONDS) for name, call in pattern_calls(options.keys)),
        *((f"operation: {name}", call, PATTERN_SECONDS) for name, call in operation_calls(options.keys)),
        *planning_calls(options.keys),
    ]
    print(f"{options.keys} keys, fastest of {options.repeats}; " + ", ".join(machine().values()))
    print(f"{'':58}{'ms':>9}{'target':>9}{'peak MiB':>10}")
    figures = []
    for name, call, target in calls:
        figure = measure(name, call, target, options.repeats)
        figures.append(figure)
        milliseconds, goal = figure.seconds * 1e3, target * 1e3
        print(f"{name:58}{milliseconds:9.1f}{goal:9.0f}{figure.peak_mib:10.1f}  {figure.verdict}", flush=True)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    written = {"machine": machine(), "keys": options.keys, "figures": [asdict(f) for f in figures]}
    options.output.write_text(json.dumps(written, indent=1) + "\n")
    missed = [figure.name for figure in figures if figure.seconds > figure.target_seconds]
    print(f"{len(figures) - len(missed)} of {len(figures)} targets met; written to {options.output}")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
