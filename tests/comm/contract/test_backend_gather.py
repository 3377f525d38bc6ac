"""Gathers of every registered backend: the right keys, unchanged, whatever form they come in."""

from __future__ import annotations

import pytest
import torch

from fm3_comm import ExchangeBackend, make_exchange
from fm3_core import Cluster, Partition, patterns
from fm3_core import needs as needs_of

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def test_handles_satisfy_the_protocol_and_know_their_rank(run):
    handles = run(3, lambda handle: (isinstance(handle, ExchangeBackend), handle.rank, handle.num_ranks))
    assert handles == [(True, 0, 3), (True, 1, 3), (True, 2, 3)]


def test_a_gather_returns_the_keys_that_the_ranks_rows_see_in_global_order(run, case):
    gathered = run(
        case.num_ranks, lambda handle: handle.start_gather(case.exchange, *case.local(handle.rank)).wait()
    )
    for rank, (k, v) in enumerate(gathered):
        torch.testing.assert_close(k, case.k[:, case.gathered(rank)], rtol=0, atol=0)
        torch.testing.assert_close(v, case.v[:, case.gathered(rank)], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_float_dtype_travels_unchanged(run, make_case, dtype):
    case = make_case(3, 20, 3, dtype=dtype)
    gathered = run(3, lambda handle: handle.start_gather(case.exchange, *case.local(handle.rank)).wait())
    for rank, (k, v) in enumerate(gathered):
        assert torch.equal(k, case.k[:, case.gathered(rank)])
        assert torch.equal(v, case.v[:, case.gathered(rank)])


def test_strided_views_travel_like_contiguous_tensors(run, make_case):
    case = make_case(3, 20, 3, heads=4, density=0.7)

    def work(handle):
        k, v = case.local(handle.rank)
        wide = torch.stack([k, -k], dim=-1).flatten(-2)[..., ::2]
        swapped = v.transpose(1, 2).contiguous().transpose(1, 2)
        return handle.start_gather(case.exchange, wide, swapped).wait()

    for rank, (k, v) in enumerate(run(3, work)):
        assert torch.equal(k, case.k[:, case.gathered(rank)])
        assert torch.equal(v, case.v[:, case.gathered(rank)])


def test_inputs_that_require_a_gradient_give_results_without_one(run, make_case):
    case = make_case(2, 12, 2, density=1.0)

    def work(handle):
        k, v = (tensor.requires_grad_() for tensor in case.local(handle.rank))
        gathered = handle.start_gather(case.exchange, k, v).wait()
        return [tensor.requires_grad for tensor in gathered]

    assert run(2, work) == [[False, False]] * 2


def test_another_documents_values_change_no_bit_of_what_a_rank_gathers(run):
    mask = patterns.causal_document([10, 14])
    generator = torch.Generator().manual_seed(0)
    k, v = (torch.randn(1, 24, 2, 4, generator=generator) for _ in range(2))
    changed = torch.cat([v[:, :10] + 1, v[:, 10:]], dim=1)

    def gathered(num_ranks, values):
        chunks = tuple(tuple(range(rank, 12, num_ranks)) for rank in range(num_ranks))
        partition = Partition(24, 2, chunks)
        exchange = make_exchange(partition, needs_of(mask, chunk_size=2), Cluster(num_ranks))

        def work(handle):
            own = torch.from_numpy(partition.token_index(handle.rank))
            _, all_v = handle.start_gather(exchange, k[:, own], values[:, own]).wait()
            return all_v[:, torch.from_numpy(exchange.key_index(handle.rank)) >= 10]

        return run(num_ranks, work)

    for num_ranks in (1, 2, 4):
        for before, after in zip(gathered(num_ranks, v), gathered(num_ranks, changed), strict=True):
            assert torch.equal(before, after)


def test_ranks_have_the_callers_gradient_mode(run):
    with torch.no_grad():
        assert run(2, lambda handle: torch.is_grad_enabled()) == [False, False]
    assert run(2, lambda handle: torch.is_grad_enabled()) == [True, True]
