"""A model of tiles that wait for keys: the forward kernel's time while chunks arrive, by order of tiles.

    python benchmarks/model_late_chunks.py [TOKENS [HEADS]]

CTAs take tiles in their order; a tile walks its key blocks in ascending order, each takes BLOCK_US once its
chunk is there. Chunks arrive evenly over a share of the time that all tiles take without waiting. Prints the
time with every chunk there, relative to the order without flags, and for each share the time relative to the
longer of arrival and compute, plus one chunk. Sections of heads are worked on whole, in turns after a band of
row blocks, or all heads are one; that fewer heads share L2 is not part of the model.
"""

from __future__ import annotations

import heapq
import sys

import numpy as np

from fm3_core import BlockMap, patterns

BLOCK, CHUNK_BLOCKS, SECTION_HEADS, BAND_TILES = 128, 4, 4, 64
CTAS, BLOCK_US, TILE_US = 116, 1.46, 2.0
SHARES = (0.5, 1.0, 2.0)
DOCUMENT = 2048


def simulate(tiles, arrival):
    """Return microseconds until all tiles are done, from their key blocks and the times of chunks."""
    free = [0.0] * CTAS
    for blocks in tiles:
        start = heapq.heappop(free) + TILE_US
        still_to_come = np.arange(len(blocks), 0, -1) * BLOCK_US
        ends = np.maximum(arrival[blocks // CHUNK_BLOCKS], start) + still_to_come
        heapq.heappush(free, float(ends.max(initial=start)))
    return max(free)


def in_order(rows, heads, order, band_rows, section_heads):
    """Return the key blocks of every tile, as `locate_tile` of csrc/attention/scheduler.cuh orders them."""
    counts = np.array([len(blocks) for blocks in rows])
    last = np.array([blocks[-1] if len(blocks) else -1 for blocks in rows])
    places = np.lexsort((-counts, last) if order == "as keys arrive" else (-counts,))
    return [
        rows[place]
        for band in range(0, len(rows), band_rows)
        for section in range(0, heads, section_heads)
        for place in places[band : band + band_rows]
        for _ in range(min(section_heads, heads - section))
    ]


def main(tokens=16384, heads=16):
    """Print the table."""
    masks = {
        "causal": patterns.causal(tokens),
        "causal_document": patterns.causal_document([DOCUMENT] * (tokens // DOCUMENT), num_tokens=tokens),
        "full": patterns.full(tokens),
    }
    chunks = -(-tokens // (BLOCK * CHUNK_BLOCKS))
    layouts = {
        "whole": (tokens, SECTION_HEADS),
        "in turns": (-(-BAND_TILES // SECTION_HEADS), SECTION_HEADS),
        "one": (tokens, heads),
    }
    print(
        "| mask | order | sections | all there | " + " | ".join(f"over {share:g}" for share in SHARES) + " |"
    )
    print("| --- | --- | --- |" + " --- |" * (1 + len(SHARES)))
    for name, mask in masks.items():
        visible = BlockMap.from_mask(mask, BLOCK, BLOCK).kinds[0, 0] != 0
        rows = [np.flatnonzero(seen) for seen in visible]
        usual = simulate(in_order(rows, heads, "heaviest first", *layouts["whole"]), np.zeros(chunks))
        for order in ("heaviest first", "as keys arrive"):
            for sections, layout in layouts.items():
                tiles = in_order(rows, heads, order, *layout)
                figures = [simulate(tiles, np.zeros(chunks)) / usual]
                for share in SHARES:
                    arrival = np.arange(1, chunks + 1) * share * usual / chunks
                    longer = max(share, 1.0) * usual + share * usual / chunks
                    figures.append(simulate(tiles, arrival) / longer)
                print(f"| {name} | {order} | {sections} | " + " | ".join(f"{x:.2f}" for x in figures) + " |")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
