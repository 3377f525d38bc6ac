"""Tables of docs/performance.md, drawn from result files: python -m kernel.page prints the page's tables."""

from __future__ import annotations

from pathlib import Path

from kernel.masks import MASKS
from kernel.results import PEER_SHAPE, Results, best_peers, geometric_mean, ratios

FOLDER = Path(__file__).parents[1] / "results"
SHAPES = {
    "kernel_h200.json": [
        ("32 heads of dim 128", PEER_SHAPE),
        ("32 query heads, 8 KV heads of dim 128", {**PEER_SHAPE, "kv_heads": 8}),
    ],
    "kernel_h200_dim64.json": [
        ("64 heads of dim 64", {**PEER_SHAPE, "heads": 64, "kv_heads": 64, "dim": 64})
    ],
}


def tables() -> str:
    """Return every table, in Markdown, with a line on where it comes from."""
    parts = []
    for name, shapes in SHAPES.items():
        results = Results.read(FOLDER / name)
        for title, shape in shapes:
            for which in ("forward", "backward"):
                if results.rates("fm3", which, shape):
                    parts.append(_table(results, name, title, shape, which))
    return "\n\n".join(parts)


def _table(results: Results, name: str, title: str, shape: dict[str, object], which: str) -> str:
    mine, best = results.rates("fm3", which, shape), best_peers(which)
    lengths = sorted({tokens for _, tokens in mine})
    with_peers = shape == PEER_SHAPE
    head = " | ".join(f"{tokens // 1024}K" for tokens in lengths)
    lines = [
        f"### {which.capitalize()}, {title}",
        "",
        f"TFLOP/s{'; in brackets the ratio to the best published figure' if with_peers else ''}. Measured on "
        f"{results.content['gpu']}, torch {results.content['torch']}, {results.content['date']} "
        f"(`benchmarks/results/{name}`).",
        "",
        f"| mask | {head} |",
        "| --- |" + " --- |" * len(lengths),
    ]
    for mask in (mask for mask in MASKS if any((mask, tokens) in mine for tokens in lengths)):
        cells = []
        for tokens in lengths:
            rate = mine.get((mask, tokens))
            ratio = f" ({rate / best[mask, tokens]:.2f})" if rate and with_peers else ""
            cells.append(f"{rate:.0f}{ratio}" if rate else "")
        lines.append(f"| {mask} | " + " | ".join(cells) + " |")
    if with_peers:
        means = (
            geometric_mean(ratios({key: rate for key, rate in mine.items() if key[1] == tokens}, best))
            for tokens in lengths
        )
        lines.append(
            "| **geometric mean of the ratios** | " + " | ".join(f"{mean:.3f}" for mean in means) + " |"
        )
        overall = geometric_mean(ratios(mine, best))
        lines += ["", f"Geometric mean over all {len(mine)} cells: {overall:.3f}."]
    return "\n".join(lines)


if __name__ == "__main__":
    print(tables())
