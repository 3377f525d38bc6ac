"""Reductions of every registered backend: sums in one fixed order, and the bytes that move."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from fm3_comm import gather_bytes, make_exchange, reduce_bytes
from fm3_core import Cluster, Partition


def _merged(by_rank):
    return {key: value for counts in by_rank for key, value in counts.items()}


def test_a_reduction_adds_the_partials_in_ascending_order_of_source_bit_for_bit(run, case):
    sums = run(
        case.num_ranks, lambda handle: handle.start_reduce(case.exchange, *case.partials(handle.rank)).wait()
    )
    for rank, pair in enumerate(sums):
        for total, right in zip(pair, case.sums(rank), strict=True):
            torch.testing.assert_close(total, right, rtol=0, atol=0)


def test_bytes_moved_are_the_predicted_ones_transfer_by_transfer(run, case):
    def work(handle):
        handle.start_gather(case.exchange, *case.local(handle.rank)).wait()
        gathered = handle.traffic.by_transfer
        handle.traffic.clear()
        handle.start_reduce(case.exchange, *case.partials(handle.rank)).wait()
        return gathered, handle.traffic.by_transfer

    gathered, reduced = zip(*run(case.num_ranks, work), strict=True)
    token_bytes = case.k.shape[0] * case.k.shape[2] * (case.k.shape[3] + case.v.shape[3]) * 4
    assert _merged(gathered) == gather_bytes(case.exchange, token_bytes)
    assert _merged(reduced) == reduce_bytes(case.exchange, token_bytes)


def test_float64_partials_are_summed_in_float64(run, make_case):
    case = make_case(3, 20, 3, density=1.0)
    sums = run(
        3,
        lambda handle: handle.start_reduce(case.exchange, *case.partials(handle.rank, torch.float64)).wait(),
    )
    total = sum(case.partials(rank, torch.float64)[0] for rank in range(3))
    for rank, (dk, _) in enumerate(sums):
        torch.testing.assert_close(dk, total[:, case.own(rank)], rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_bfloat16_on_the_wire_rounds_what_travels_and_nothing_else(run, make_case, dtype):
    case = make_case(4, 26, 3)

    def work(handle):
        partials = (partial.to(dtype) for partial in case.partials(handle.rank))
        pair = handle.start_reduce(case.exchange, *partials, wire_dtype=torch.bfloat16).wait()
        return *pair, handle.traffic.by_transfer

    done = run(4, work)
    for rank, (dk, dv, _) in enumerate(done):
        right_dk, right_dv = case.sums(rank, torch.bfloat16)
        torch.testing.assert_close(dk, right_dk.to(dtype), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(dv, right_dv.to(dtype), rtol=1e-6, atol=1e-6)
    token_bytes = case.k.shape[0] * case.k.shape[2] * (case.k.shape[3] + case.v.shape[3]) * 2
    assert _merged(sent for *_, sent in done) == reduce_bytes(case.exchange, token_bytes)


def test_a_reduction_is_bitwise_the_same_however_the_ranks_are_delayed(run, make_case):
    case = make_case(4, 40, 3, density=1.0)

    def delayed(seed):
        def work(handle):
            time.sleep(float(np.random.default_rng([seed, handle.rank]).uniform(0, 0.03)))
            return handle.start_reduce(case.exchange, *case.partials(handle.rank)).wait()

        return run(4, work)

    first = delayed(0)
    for seed in range(1, 4):
        for (dk, dv), (first_dk, first_dv) in zip(delayed(seed), first, strict=True):
            assert torch.equal(dk, first_dk)
            assert torch.equal(dv, first_dv)


def test_the_error_of_a_reduction_does_not_grow_with_the_number_of_ranks(run):
    num_tokens, generator = 64, torch.Generator().manual_seed(0)
    shares = torch.randn(num_tokens, num_tokens, 8, generator=generator, dtype=torch.float64)
    right = shares.sum(0)

    def error(num_ranks):
        chunks = tuple(tuple(range(rank, num_tokens, num_ranks)) for rank in range(num_ranks))
        partition = Partition(num_tokens, 1, chunks)
        everything = np.ones((num_tokens, num_tokens), dtype=bool)
        exchange = make_exchange(partition, everything, Cluster(num_ranks))

        def work(handle):
            rows = torch.from_numpy(partition.token_index(handle.rank))
            partial = shares[rows].float().sum(0)[None, :, None]
            dk, _ = handle.start_reduce(exchange, partial, partial).wait()
            return (dk[0, :, 0].double() - right[rows]).abs().max().item()

        return max(run(num_ranks, work))

    alone = error(1)
    assert max(error(num_ranks) for num_ranks in (2, 4, 8)) <= 2 * alone


def test_tokens_that_nobody_gathers_get_zero_gradients(run):
    needs = np.array([[True, False], [True, False]])
    exchange = make_exchange(Partition(6, 3, ((0,), (1,))), needs, Cluster(2))

    def work(handle):
        ones = torch.ones(1, 3, 1, 2)
        return handle.start_reduce(exchange, ones, ones).wait()

    (seen, _), (unseen, _) = run(2, work)
    assert torch.equal(seen, torch.full((1, 3, 1, 2), 2.0))
    assert torch.equal(unseen, torch.zeros(1, 3, 1, 2))
