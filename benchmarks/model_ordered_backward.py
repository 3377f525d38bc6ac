"""A model of the deterministic order: how long CTAs wait for each other's additions to dQ.

    python benchmarks/model_ordered_backward.py [TOKENS [MASK,MASK,...]]

Each block of a tile takes BLOCK_US; its dQ goes out once the tile before it in the order has added to the
same row block. A writer is busy with an addition for ADD_US, the next in the order sees it SEE_US later.
Prints unordered time over ordered time.
"""

from __future__ import annotations

import heapq
import json
import pathlib
import sys

import numpy as np

from fm3_core import BlockMap, patterns

LENGTHS_FILE = pathlib.Path(__file__).parent / "data" / "document_lengths.json"
BLOCK_US, TILE_US, READ_US, ADD_US, SEE_US, CTAS = 2.6, 3.0, 0.6, 2.8, 0.8, 132


def simulate(visible, order, side_by_side, pairs, writers, ahead, ordered):
    """Microseconds until all tiles are done; visible: bool [key blocks, row blocks], of every pair."""
    turn, count = np.zeros(visible.shape, int), np.zeros(visible.shape[1], int)
    for k in order:
        turn[k, visible[k]] = count[visible[k]]
        count[visible[k]] += 1
    rows = [np.nonzero(x)[0] for x in visible]
    tiles = [
        (p, k)
        for s in range(0, pairs, side_by_side)
        for k in order
        for p in range(s, min(s + side_by_side, pairs))
    ]
    taken, done, waiting, events, end = 0, {}, {}, [], 0.0
    queues = [[] for _ in range(CTAS)]
    ctas = [
        {"tile": None, "n": 0, "time": 0.0, "ready": None, "room": 0.0, "busy": [0.0] * writers, "writer": 0}
        for _ in range(CTAS)
    ]

    def take(c):
        nonlocal taken
        if taken < len(tiles):
            queues[c].append(taken)
            taken += 1

    def start(c, now):
        if not queues[c]:
            take(c)
        if queues[c]:
            ctas[c].update(tile=tiles[queues[c].pop(0)], n=0, time=now + TILE_US)
            while ahead and taken < len(tiles) and len(queues[c]) < ahead:
                take(c)
            heapq.heappush(events, (ctas[c]["time"], c))

    for _ in range(ahead + 1):
        for c in range(CTAS):
            take(c)
    for c in range(CTAS):
        start(c, 0.0)
    while events:
        now, c = heapq.heappop(events)
        state = ctas[c]
        pair, key = state["tile"]
        if state["n"] == len(rows[key]):
            end = max(end, now)
            start(c, now)
            continue
        row = rows[key][state["n"]]
        ready = max(state["time"] + BLOCK_US, state["room"]) if state["ready"] is None else state["ready"]
        turn_at = 0.0
        if ordered and turn[key, row] > 0:
            before = (pair, row, turn[key, row] - 1)
            if before not in done:
                state["ready"] = ready
                waiting.setdefault(before, []).append(c)
                continue
            turn_at = done[before] + SEE_US
        writer = state["writer"]
        begin = max(ready, turn_at, state["busy"][writer])
        finish = begin + (ADD_US if ordered else READ_US)
        state["busy"][writer] = finish
        state.update(
            ready=None, writer=(writer + 1) % writers, room=begin + READ_US, time=ready, n=state["n"] + 1
        )
        if ordered:
            here = (pair, row, turn[key, row])
            done[here] = finish
            for other in waiting.pop(here, []):
                heapq.heappush(events, (max(finish, ctas[other]["ready"]), other))
        heapq.heappush(events, (state["time"], c))
    assert taken == len(tiles)
    assert not waiting, "some tile waits for ever"
    return end


def main():
    """Print a line for each mask."""
    tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 8192
    lengths = json.loads(LENGTHS_FILE.read_text())["batches"][str(tokens)][0]
    masks = {
        "full": lambda: patterns.full(tokens),
        "causal": lambda: patterns.causal(tokens),
        "sliding_window": lambda: patterns.sliding_window(tokens, tokens // 16 - 1),
        "causal_document": lambda: patterns.causal_document(lengths["lengths"]),
        "document": lambda: patterns.document(lengths["lengths"]),
        "share_question": lambda: patterns.share_question(lengths["question_then_answers"]),
        "global_sliding_window": lambda: patterns.global_sliding_window(
            tokens, 16, tokens // 16, tokens // 16
        ),
    }
    for name in sys.argv[2].split(",") if len(sys.argv) > 2 else masks:
        visible = np.asarray(BlockMap.from_mask(masks[name](), 64, 128, "extrema").kinds[0, 0]).T != 0
        blocks = range(len(visible))
        heaviest = sorted(blocks, key=lambda k: (-visible[k].sum(), k))
        latest = sorted(blocks, key=lambda k: (-np.append(np.nonzero(visible[k])[0], visible.shape[1])[0], k))
        pairs = 64 if tokens <= 8192 else 24
        free = simulate(visible, heaviest, 2, pairs, 2, 1, False)
        line = f"{name:22s}"
        for side_by_side, writers, ahead in ((8, 1, 4), (8, 2, 4), (8, 1, 0), (8, 2, 0), (16, 2, 0)):
            ordered = simulate(visible, latest, side_by_side, pairs, writers, ahead, True)
            line += f"  {side_by_side} heads, {writers} writers, {ahead} ahead: {free / ordered:.2f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
