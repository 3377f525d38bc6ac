"""Every registered backend kind, and the cases that it must serve."""

from __future__ import annotations

import pytest

from fm3_comm import backends

TIMEOUT_SECONDS = 30.0

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
    return lambda num_ranks, fn: kind.run(num_ranks, fn, timeout_seconds=TIMEOUT_SECONDS)


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def case(request, make_case):
    """Build one of the cases."""
    num_ranks, num_tokens, chunk_size, options = request.param
    return make_case(num_ranks, num_tokens, chunk_size, **options)
