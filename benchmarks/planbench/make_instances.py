"""Writes instances.json: frozen planning problems of published length distributions and of a few hard shapes.

Run in benchmarks: python -m planbench.make_instances. The file is checked in; running this again writes the
same bytes. Change an instance only under a new name, as best.json holds what is known of each.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fm3_planner import CostWeights, needs_to_hex
from fm3_planner.instance import FORMAT, VERSION
from planbench.sets import SETS

FOLDER = Path(__file__).parent
LENGTHS = json.loads((FOLDER / "length_distributions.json").read_text(encoding="utf-8"))
Fields = dict[str, Any]

# (ranks, ranks per node, chunks per rank)
DOCUMENT_SIZES = (
    (2, 2, 2),
    (2, 2, 16),
    (3, 3, 4),
    (4, 4, 2),
    (4, 2, 4),
    (4, 2, 8),
    (6, 4, 4),
    (8, 4, 2),
    (8, 4, 4),
    (8, 8, 4),
    (8, 4, 8),
    (16, 8, 4),
    (32, 8, 4),
)
LARGE_SIZES = ((32, 8, 16), (64, 8, 8), (64, 8, 1), (256, 8, 2), (256, 8, 8))
MASK_SIZES = ((4, 2, 4), (8, 4, 4), (16, 8, 4))


def main() -> None:
    """Write the file."""
    write_instances(SETS["planbench"].instances, instances())


def write_instances(path: Path, found: list[Fields]) -> None:
    """Write a file of instances, one a line."""
    cost = {
        name: getattr(CostWeights(), name)
        for name in (
            "full_forward",
            "partial_forward",
            "full_backward",
            "partial_backward",
            "block_rows",
            "block_keys",
            "provenance",
        )
    }
    lines = ",\n".join(json.dumps(fields) for fields in found)
    head = json.dumps({"format": FORMAT, "version": VERSION, "cost": cost})[:-1]
    path.write_text(f'{head}, "instances": [\n{lines}\n]}}\n', encoding="utf-8")


def instances() -> list[Fields]:
    """Return every instance."""
    found = []
    sources = ("prolong", "wlbllm", "magi", "stdlib")
    for index, sizes in enumerate(DOCUMENT_SIZES):
        for source in (sources[index % 4], sources[(index + 1) % 4]):
            found.append(of_documents("causal_document", source, sizes, seed=index))
    for index, sizes in enumerate(LARGE_SIZES):
        found.append(
            of_documents("causal_document", sources[index % 4], sizes, seed=100 + index, chunk_size=512)
        )
    for kind in ("document", "prefix_lm_document", "share_question", "causal_blockwise"):
        for index, sizes in enumerate(MASK_SIZES):
            found.append(of_documents(kind, sources[index], sizes, seed=200 + index))
    for sizes in MASK_SIZES:
        found.append(of_sequence("causal", sizes))
        found.append(of_sequence("sliding_window", sizes))
        found.append(of_sequence("global_sliding_window", sizes))
        found.append(of_sequence("random_eviction", sizes, chunk_size=512))
        found.append(of_window_in_documents(sizes, seed=300 + sizes[0]))
    return found + hard_instances()


def of_documents(
    kind: str, source: str, sizes: tuple[int, int, int], *, seed: int, chunk_size: int = 2048
) -> Fields:
    """Return an instance of a mask over documents that are sampled from `source`."""
    lengths = sample(source, total(sizes, chunk_size), seed)
    arguments = {
        "causal_document": lambda: {"lengths": lengths},
        "document": lambda: {"lengths": lengths},
        "causal_blockwise": lambda: {"lengths": lengths},
        "prefix_lm_document": lambda: {"documents": [[length // 4, length] for length in lengths]},
        "share_question": lambda: {"groups": [parts(length) for length in lengths]},
    }[kind]()
    masks = [{"pattern": kind, "arguments": arguments}]
    return fields(f"{kind}-{source}", kind, f"{source}, seed {seed}", sizes, chunk_size, masks)


def of_window_in_documents(
    sizes: tuple[int, int, int], *, seed: int, source: str = "prolong", chunk_size: int = 2048
) -> Fields:
    """Return an instance of a window that documents cut."""
    tokens = total(sizes, chunk_size)
    masks = [
        {"pattern": "causal_document", "arguments": {"lengths": sample(source, tokens, seed)}},
        {"pattern": "sliding_window", "arguments": {"num_rows": tokens, "left": 4096}},
    ]
    kind = "window_in_documents"
    return fields(f"{kind}-{source}", kind, f"{source}, seed {seed}", sizes, chunk_size, masks)


def of_sequence(kind: str, sizes: tuple[int, int, int], *, chunk_size: int = 2048) -> Fields:
    """Return an instance of a mask over one sequence without documents."""
    tokens = total(sizes, chunk_size)
    arguments = {"num_rows": tokens} | {
        "causal": {},
        "sliding_window": {"left": tokens // 16},
        "global_sliding_window": {"num_global": 16, "left": tokens // 16, "right": tokens // 16},
        "random_eviction": {"start_row": tokens // 2, "seed": 0},
    }[kind]
    masks = [{"pattern": kind, "arguments": arguments}]
    return fields(kind, kind, "no documents", sizes, chunk_size, masks)


def hard_instances() -> list[Fields]:
    """Return problems of plain weights that are hard, or easy to get wrong."""
    rng = np.random.default_rng(7)
    zipf = (20_000 / np.arange(1, 33)).astype(int)
    uniform = rng.integers(1, 10_000, 24)
    two_point = np.where(rng.random(32) < 0.3, 997, 100)
    sparse = np.where(rng.random(32) < 0.6, 0, rng.integers(1, 1000, 32))
    conflict = conflicting_needs(16)
    return [
        plain("all-equal", [100] * 32, (8, 4), "causal"),
        plain("one-giant", [10_000, *rng.integers(50, 150, 31).tolist()], (8, 4), "causal"),
        plain("two-point", two_point.tolist(), (8, 4), "causal"),
        plain("zipf", zipf.tolist(), (8, 4), "causal"),
        plain("zipf-shuffled", rng.permutation(zipf).tolist(), (4, 2), "causal"),
        plain("many-zero", sparse.tolist(), (8, 4), "causal"),
        plain("conflict", [100] * 16, (4, 2), needs_to_hex(conflict)),
        plain("conflict-weighted", rng.integers(90, 110, 16).tolist(), (4, 2), needs_to_hex(conflict)),
        plain("undivided-5-on-3", [21, 14, 29, 20, 20], (3, 1), "causal"),
        plain("undivided-30-on-8", rng.integers(1, 1000, 30).tolist(), (8, 4), "causal"),
        plain("undivided-70-on-32", rng.integers(1, 1000, 70).tolist(), (32, 8), "causal"),
        plain("uniform-24-on-4", uniform.tolist(), (4, 2), "causal"),
        plain("lpt-misses", [8, 7, 6, 5, 4, 2, 2, 2], (2, 1), "causal"),
    ]


def conflicting_needs(num_chunks: int) -> np.ndarray:
    """Return needs that no cut of equal parts suits: a ring, and pairs across it."""
    needs = np.eye(num_chunks, dtype=np.bool_)
    chunks = np.arange(num_chunks)
    needs[chunks, (chunks + 1) % num_chunks] = True
    needs[chunks, (5 * chunks + 3) % num_chunks] = True
    return needs


def plain(
    name: str, weights: list[int], cluster: tuple[int, int], needs: str | list[str], *, seed: int = 7
) -> Fields:
    """Return an instance of plain weights."""
    return {
        "name": f"hard-{name}",
        "group": "hard",
        "source": f"made by hand or numpy's default generator, seed {seed}",
        "num_ranks": cluster[0],
        "ranks_per_node": cluster[1],
        "chunk_size": 128,
        "weights": weights,
        "needs": needs,
        "chunk_bytes": 65536,
    }


def fields(
    name: str, group: str, source: str, sizes: tuple[int, int, int], chunk_size: int, masks: list[Fields]
) -> Fields:
    """Return an instance of masks."""
    num_ranks, ranks_per_node, per_rank = sizes
    return {
        "name": f"{name}-P{num_ranks}-G{ranks_per_node}-m{per_rank}",
        "group": group,
        "source": source,
        "num_ranks": num_ranks,
        "ranks_per_node": ranks_per_node,
        "chunk_size": chunk_size,
        "masks": masks,
    }


def total(sizes: tuple[int, int, int], chunk_size: int) -> int:
    """Return the tokens of an instance."""
    return sizes[0] * sizes[2] * chunk_size


def parts(length: int) -> list[int]:
    """Return a question of a quarter and up to three answers of a document."""
    question = max(1, length // 4)
    answers = np.diff(np.linspace(question, length, 4).astype(int)).tolist()
    return [question, *(answer for answer in answers if answer)]


def sample(source: str, tokens: int, seed: int) -> list[int]:
    """Return document lengths that sum to `tokens`, none above a quarter of it, by inverse CDF."""
    rng = np.random.default_rng(seed)
    percent, lengths = cumulative(source)
    found: list[int] = []
    left = tokens
    while left:
        length = int(np.exp(np.interp(100 * rng.random(), percent, np.log(lengths))))
        found.append(max(1, min(length, left, tokens // 4)))
        left -= found[-1]
    return found


def cumulative(source: str) -> tuple[list[float], list[float]]:
    """Return percents and the lengths below which they are."""
    if source in LENGTHS["histogram"]:
        buckets = LENGTHS["histogram"][source]
        counts = np.cumsum([0] + [bucket["documents"] for bucket in buckets])
        edges = [max(1, buckets[0]["min"])] + [bucket["max"] for bucket in buckets]
        return (100 * counts / counts[-1]).tolist(), edges
    quantiles = LENGTHS["quantiles"][source]
    return quantiles["percent"], quantiles.get("tokens") or quantiles["bytes"]


if __name__ == "__main__":
    main()
