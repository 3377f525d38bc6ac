"""Writes held_out.json: instances that hcc_ipo's seed, runs and temperatures were not chosen on.

Run in benchmarks: python -m planbench.make_held_out. Other seeds, other sizes and other pairs of mask and
source than instances.json; the same rules hold: the file is checked in, and running this again writes the
same bytes.
"""

from __future__ import annotations

import numpy as np

from planbench.make_instances import Fields, of_documents, of_window_in_documents, plain, write_instances
from planbench.sets import SETS

SOURCES = ("prolong", "wlbllm", "magi", "stdlib")
# (ranks, ranks per node, chunks per rank)
SIZES = (
    (4, 2, 5),
    (6, 2, 8),
    (8, 4, 6),
    (8, 2, 10),
    (10, 4, 4),
    (12, 4, 8),
    (16, 4, 4),
    (16, 8, 8),
    (24, 8, 5),
)
MASK_SIZES = ((6, 3, 5), (8, 4, 8), (16, 4, 6))
KINDS = ("document", "prefix_lm_document", "share_question", "causal_blockwise")
FIRST_SEED = 7000


def main() -> None:
    """Write the file."""
    write_instances(SETS["held_out"].instances, instances())


def instances() -> list[Fields]:
    """Return every instance."""
    found: list[Fields] = []
    for sizes in SIZES:
        for source in SOURCES:
            seed = FIRST_SEED + len(found)
            found.append(of_documents("causal_document", source, sizes, seed=seed, chunk_size=1024))
    for kind in KINDS:
        for index, sizes in enumerate(MASK_SIZES):
            source, seed = SOURCES[(index + 1 + KINDS.index(kind)) % 4], FIRST_SEED + len(found)
            found.append(of_documents(kind, source, sizes, seed=seed, chunk_size=1024))
    for index, sizes in enumerate(MASK_SIZES):
        seed = FIRST_SEED + len(found)
        found.append(of_window_in_documents(sizes, seed=seed, source=SOURCES[index + 1], chunk_size=1024))
    return found + uneven_instances(FIRST_SEED + len(found))


def uneven_instances(seed: int) -> list[Fields]:
    """Return problems of plain weights whose chunks the ranks do not divide."""
    rng = np.random.default_rng(seed)
    return [
        plain(
            f"undivided-{len(weights)}-on-{cluster[0]}",
            weights.astype(int).tolist(),
            cluster,
            "causal",
            seed=seed,
        )
        for weights, cluster in (
            (rng.integers(1, 1000, 29), (6, 3)),
            (rng.lognormal(6, 1, 50), (12, 4)),
            (100 * rng.pareto(2.0, 101), (24, 8)),
        )
    ]


if __name__ == "__main__":
    main()
