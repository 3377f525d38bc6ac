"""Every registered backend kind, and the cases that it must serve."""

from __future__ import annotations

import numpy as np
import pytest
from rank_kinds import ranks_are_threads, runner

from fm3_comm import backends

TIMEOUT_SECONDS = 30.0

SEEN_BY_THE_LAST_RANK = np.repeat([[False], [False], [False], [True]], 4, axis=1)

CASES = {
    "one rank": (1, 11, 4, {}),
    "two ranks": (2, 24, 3, {}),
    "three ranks, an uneven tail": (3, 26, 4, {"density": 0.6}),
    "more ranks than chunks": (5, 5, 2, {}),
    "ranks without a chunk": (6, 30, 3, {"ranks_with_chunks": 3}),
    "chunks of one token": (4, 17, 1, {}),
    "nobody sees anybody": (3, 12, 2, {"density": 0.0}),
    "everybody sees everything": (4, 21, 2, {"density": 1.0}),
    "no tokens at all": (2, 0, 4, {}),
    "a batch of three, value dim 6 and key dim 2": (3, 20, 3, {"batch": 3, "key_dim": 2, "value_dim": 6}),
    "an empty batch": (2, 9, 2, {"batch": 0}),
    "eight ranks": (8, 70, 3, {"density": 0.3, "seed": 5}),
}


@pytest.fixture(params=backends.names())
def run(request):
    """Run P ranks of one backend kind."""
    kind = backends.get(request.param)
    reason = kind.why_unavailable()
    if reason is not None:
        pytest.skip(reason)
    if not ranks_are_threads(request.param):
        request.getfixturevalue("ranks_share_gpus")
    return runner(kind, request.param, TIMEOUT_SECONDS)


@pytest.fixture
def run_threads(run, request):
    """Run P ranks of a kind whose ranks are threads of this process, so that they share what a test holds."""
    name = request.node.callspec.params["run"]
    if not ranks_are_threads(name):
        pytest.skip(f"ranks of {name!r} are processes")
    return run


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def case(request, make_case):
    """Build one of the cases."""
    num_ranks, num_tokens, chunk_size, options = request.param
    return make_case(num_ranks, num_tokens, chunk_size, **options)


RELAYED = {
    "two nodes of two": (4, 26, 2, {"ranks_per_node": 2}),
    "three nodes of two, everything seen": (6, 30, 2, {"ranks_per_node": 2, "density": 1.0}),
    "an uneven last node": (5, 31, 2, {"ranks_per_node": 3, "density": 0.5}),
    "a last node of one rank": (7, 40, 3, {"ranks_per_node": 3, "density": 0.4}),
    "one rank a node": (3, 20, 2, {"ranks_per_node": 1}),
    "relays that see nothing themselves": (4, 8, 2, {"ranks_per_node": 2, "needs": SEEN_BY_THE_LAST_RANK}),
    "ranks without a chunk": (6, 24, 3, {"ranks_per_node": 2, "ranks_with_chunks": 3, "density": 0.9}),
}


@pytest.fixture(params=RELAYED.values(), ids=RELAYED.keys())
def relayed_case(request, make_case):
    """Build one of the cases with a hierarchical route."""
    num_ranks, num_tokens, chunk_size, options = request.param
    return make_case(num_ranks, num_tokens, chunk_size, route="hierarchical", **options)
