"""What an exchange moves, by counting, and what its options cost on CPU backends.

Counted, the same on every machine: traffic that pruning leaves of an all-gather, by planner and chunk size,
on the 128K-token batches of benchmarks/data/document_lengths.json at 16 ranks; what crosses between nodes on
flat and hierarchical routes; ranks pulled from; bytes that loopback moved against those predicted. Timed, on
this machine: routes, 2, 4 and 8 backward segments, float32 and bfloat16 gradients.

Run: python benchmarks/bench_exchange.py [--json FILE] [--batches N].
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from fm3_comm import (
    ExchangeBackend,
    backends,
    gather_bytes,
    hops,
    loopback,
    make_exchange,
    reduce_bytes,
)
from fm3_core import Cluster, ColumnMask, Exchange, Partition, needs, patterns
from fm3_planner import PlanProblem, plan

LENGTHS_FILE = Path(__file__).parent / "data" / "document_lengths.json"
NUM_TOKENS = 131072
NUM_RANKS = 16
RANKS_PER_NODE = 8
CHUNK_SIZES = (512, 1024, 2048)
PLANNERS = ("contiguous", "zigzag", "striped", "lpt", "ipo", "hcc_ipo")

TIMED_TOKENS, TIMED_CHUNK, TIMED_RANKS, TIMED_RANKS_PER_NODE = 8192, 128, 4, 2
HEADS, HEAD_DIM = 4, 64
COMPUTE_SECONDS = 0.2


def main() -> None:
    """Run every measurement, print the tables and write the JSON file that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="file for the rows")
    parser.add_argument("--batches", type=int, help="128K batches to count; all by default")
    parser.add_argument("--repeats", type=int, default=5, help="repeats of timed calls; the best counts")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    masks = document_masks(arguments.batches)
    found = {
        "pulls between nodes": pulls_rows(),
        "traffic": traffic_rows(masks),
        "loopback against prediction": loopback_rows(),
        "gradient wire": wire_rows(),
        "timed": timed_rows(arguments.repeats),
        "segments": segment_rows(arguments.repeats),
    }
    for title, rows in found.items():
        print(f"\n{title}")
        for row in rows:
            print("  " + "  ".join(f"{key} {_text(value)}" for key, value in row.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def document_masks(num_batches: int | None) -> dict[str, list[ColumnMask]]:
    """Return the masks of the 128K batches by pattern."""
    batches = json.loads(LENGTHS_FILE.read_text(encoding="utf-8"))["batches"][str(NUM_TOKENS)][:num_batches]
    return {
        "causal document": [patterns.causal_document(batch["lengths"]) for batch in batches],
        "prefix document": [
            patterns.prefix_lm_document(list(zip(batch["prefix"], batch["lengths"], strict=True)))
            for batch in batches
        ],
    }


def pulls_rows() -> list[dict[str, object]]:
    """Count from how many ranks of other nodes each rank receives when everybody sees everything."""
    rows: list[dict[str, object]] = []
    for num_ranks, per_node in ((32, 8), (16, 8), (64, 8), (11, 4)):
        row: dict[str, object] = {"ranks": num_ranks, "ranks_per_node": per_node}
        partition = Partition(num_ranks, 1, tuple((rank,) for rank in range(num_ranks)))
        everything = np.ones((num_ranks, num_ranks), dtype=bool)
        for route in ("flat", "hierarchical"):
            exchange = make_exchange(partition, everything, Cluster(num_ranks, per_node), route=route)
            pairs = {(hop.source, hop.destination) for hop in between_nodes(exchange)}
            row[route] = max(sum(end == rank for _, end in pairs) for rank in range(num_ranks))
        rows.append(row)
    return rows


def traffic_rows(masks: dict[str, list[ColumnMask]]) -> list[dict[str, object]]:
    """Count what pruning leaves, as means over the batches, against an all-gather of everything.

    `moved` is chunks' tokens over ranks over those of an all-gather; `between_nodes` the same of what crosses
    between two nodes of 8 ranks, against an all-gather in which every rank pulls for itself.
    """
    rows: list[dict[str, object]] = []
    for pattern, all_masks in masks.items():
        for chunk_size in CHUNK_SIZES:
            seen = [needs(mask, chunk_size=chunk_size) for mask in all_masks]
            problems = [
                PlanProblem.from_mask(
                    mask, chunk_size=chunk_size, num_ranks=NUM_RANKS, ranks_per_node=RANKS_PER_NODE
                )
                for mask in all_masks
            ]
            for planner in PLANNERS:
                shares = [
                    traffic_shares(plan(problem, planner).partition, needed)
                    for problem, needed in zip(problems, seen, strict=True)
                ]
                moved, flat, hierarchical = np.mean(shares, axis=0).tolist()
                rows.append(
                    {
                        "mask": pattern,
                        "chunk_size": chunk_size,
                        "planner": planner,
                        "moved": moved,
                        "pruned": 1 - moved,
                        "between_nodes_flat": flat,
                        "between_nodes_hierarchical": hierarchical,
                    }
                )
    return rows


def traffic_shares(partition: Partition, needed: np.ndarray) -> tuple[float, float, float]:
    """Return the share moved, and the shares that cross nodes on flat and hierarchical routes."""
    cluster = Cluster(NUM_RANKS, RANKS_PER_NODE)
    flat, hierarchical = (
        make_exchange(partition, needed, cluster, route=route) for route in ("flat", "hierarchical")
    )
    everything = partition.num_tokens * (NUM_RANKS - 1)
    crossing = partition.num_tokens * (NUM_RANKS - RANKS_PER_NODE)
    return (
        tokens_of(flat, flat.transfers) / everything,
        tokens_of(flat, between_nodes(flat)) / crossing,
        tokens_of(hierarchical, between_nodes(hierarchical)) / crossing,
    )


def loopback_rows() -> list[dict[str, object]]:
    """Move the timed exchange by loopback and compare its bytes with the prediction, hop by hop."""
    rows: list[dict[str, object]] = []
    for route in ("flat", "hierarchical"):
        exchange = timed_exchange(route)

        def work(handle: ExchangeBackend, exchange: Exchange = exchange) -> list[dict]:
            gather_and_reduce(handle, exchange, None)
            return [handle.traffic.by_transfer]

        moved = [counts for (counts,) in loopback.run(TIMED_RANKS, work)]
        token_bytes = 2 * HEADS * HEAD_DIM * 4
        predicted = [gather_bytes(exchange, token_bytes), reduce_bytes(exchange, token_bytes)]
        by_hop: dict = {}
        for counts in moved:
            by_hop.update(counts)
        rows.append(
            {
                "route": route,
                "hops": len(hops(exchange)),
                "moved_bytes": sum(by_hop.values()),
                "predicted_bytes": sum(sum(counts.values()) for counts in predicted),
                "equal_hop_by_hop": by_hop == {**predicted[0], **predicted[1]},
            }
        )
    return rows


def wire_rows() -> list[dict[str, object]]:
    """Compare gradients that travel as float32 and as bfloat16: bytes, and the error against float64."""
    rows: list[dict[str, object]] = []
    for route in ("flat", "hierarchical"):
        exchange = timed_exchange(route)
        exact = loopback.run(TIMED_RANKS, lambda h, e=exchange: reduction(h, e, torch.float64, None))
        for name, wire in (("float32", None), ("bfloat16", torch.bfloat16)):
            sums = loopback.run(TIMED_RANKS, lambda h, e=exchange, w=wire: reduction(h, e, torch.float32, w))
            errors = [
                ((mine.double() - right).norm() / right.norm()).item()
                for (mine, _), (right, _) in zip(sums, exact, strict=True)
            ]
            rows.append(
                {
                    "route": route,
                    "wire": name,
                    "bytes": sum(moved for _, moved in sums),
                    "relative_error": max(errors),
                }
            )
    return rows


def timed_rows(repeats: int) -> list[dict[str, object]]:
    """Time a gather and a reduction by backend, route and wire; ranks are threads of this process."""
    rows: list[dict[str, object]] = []
    for name in backends.names():
        if backends.get(name).why_unavailable() is None:
            for route in ("flat", "hierarchical"):
                for wire in ("float32", "bfloat16"):
                    rows.append(timed_row(name, route, wire, repeats))
    return rows


def timed_row(name: str, route: str, wire: str, repeats: int) -> dict[str, object]:
    """Time one backend, route and wire."""
    exchange = timed_exchange(route)
    dtype = {"float32": None, "bfloat16": torch.bfloat16}[wire]

    def work(handle: ExchangeBackend) -> float:
        return best_of(
            repeats + 1, lambda: _after_barrier(handle, lambda: gather_and_reduce(handle, exchange, dtype))
        )

    seconds = max(backends.get(name).run(TIMED_RANKS, work))
    return {"backend": name, "route": route, "wire": wire, "milliseconds": 1000 * seconds}


def segment_rows(repeats: int) -> list[dict[str, object]]:
    """Time how long a reduction goes on after the last of its segments was done, by number of segments.

    The backward pass is a pause of 200 ms in equal parts: what is measured is what segments hide.
    """
    rows: list[dict[str, object]] = []
    exchange = timed_exchange("flat")
    for name in ("in_process", "shm"):
        if backends.get(name).why_unavailable() is not None:
            continue
        for segments in (1, 2, 4, 8):

            def tail(handle: ExchangeBackend, segments: int = segments) -> float:
                partials = partials_of(exchange, handle.rank, torch.float32)
                reduction = handle.open_reduce(exchange, *partials, segments=segments)  # type: ignore[attr-defined]
                for segment in range(segments):
                    time.sleep(COMPUTE_SECONDS / segments)
                    reduction.work_done(segment)
                started = time.perf_counter()
                reduction.wait()
                return time.perf_counter() - started

            def work(handle: ExchangeBackend, tail: Callable = tail) -> float:
                return min(_timed_after_barrier(handle, tail) for _ in range(repeats))

            seconds = max(backends.get(name).run(TIMED_RANKS, work))
            rows.append({"backend": name, "segments": segments, "tail_milliseconds": 1000 * seconds})
    return rows


def timed_exchange(route: str) -> Exchange:
    """Return the exchange of the first 8K batch, 4 ranks on 2 nodes."""
    batch = json.loads(LENGTHS_FILE.read_text(encoding="utf-8"))["batches"][str(TIMED_TOKENS)][0]
    mask = patterns.causal_document(batch["lengths"])
    problem = PlanProblem.from_mask(
        mask, chunk_size=TIMED_CHUNK, num_ranks=TIMED_RANKS, ranks_per_node=TIMED_RANKS_PER_NODE
    )
    partition = plan(problem, "lpt").partition
    return make_exchange(partition, problem.needs, Cluster(TIMED_RANKS, TIMED_RANKS_PER_NODE), route=route)


def gather_and_reduce(handle: ExchangeBackend, exchange: Exchange, wire: torch.dtype | None) -> None:
    """Gather float32 keys and values, and reduce partials of the same size."""
    tokens = exchange.partition.num_tokens_of(handle.rank)
    k = torch.ones(1, tokens, HEADS, HEAD_DIM)
    gathered = handle.start_gather(exchange, k, k).wait()
    handle.start_reduce(exchange, *gathered, wire_dtype=wire).wait()


def reduction(
    handle: ExchangeBackend, exchange: Exchange, dtype: torch.dtype, wire: torch.dtype | None
) -> tuple[torch.Tensor, int]:
    """Return the sums of random partials and the bytes that this rank sent."""
    partials = partials_of(exchange, handle.rank, dtype)
    total, _ = handle.start_reduce(exchange, *partials, wire_dtype=wire).wait()
    return total, handle.traffic.total


def partials_of(exchange: Exchange, rank: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random partials of a rank, drawn in float64."""
    generator = torch.Generator().manual_seed(rank)
    shape = (1, int(exchange.gathered_lengths(rank).sum()), HEADS, HEAD_DIM)
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return drawn, drawn


def between_nodes(exchange: Exchange) -> list:
    """Return the hops that cross between nodes."""
    node = exchange.cluster.node_of
    return [hop for hop in hops(exchange) if node(hop.source) != node(hop.destination)]


def tokens_of(exchange: Exchange, transfers: list) -> int:
    """Return the tokens of transfers or hops."""
    return sum(exchange.partition.chunk_length(transfer.chunk) for transfer in transfers)


def best_of(repeats: int, call: Callable[[], float]) -> float:
    """Return the least of several results."""
    return min(call() for _ in range(repeats))


def _after_barrier(handle: ExchangeBackend, call: Callable[[], None]) -> float:
    handle.barrier()
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _timed_after_barrier(handle: ExchangeBackend, call: Callable[[ExchangeBackend], float]) -> float:
    handle.barrier()
    return call(handle)


def _text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
