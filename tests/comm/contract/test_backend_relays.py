"""Hierarchical routes on every registered backend."""

from __future__ import annotations

import torch

from fm3_comm import gather_bytes, hops, reduce_bytes


def _merged(by_rank):
    return {key: value for counts in by_rank for key, value in counts.items()}


def test_a_relayed_gather_returns_what_a_direct_one_would(run, relayed_case):
    case = relayed_case
    gathered = run(
        case.num_ranks, lambda handle: handle.start_gather(case.exchange, *case.local(handle.rank)).wait()
    )
    for rank, (k, v) in enumerate(gathered):
        torch.testing.assert_close(k, case.k[:, case.gathered(rank)], rtol=0, atol=0)
        torch.testing.assert_close(v, case.v[:, case.gathered(rank)], rtol=0, atol=0)


def _sum_along_the_trees(case, chunk, everywhere):
    """Add partials of a chunk: each station its children and itself in ascending order, in float32."""
    partition = case.exchange.partition
    first = partition.chunk_start(chunk)
    partials = everywhere[:, :, first : first + partition.chunk_length(chunk)]
    below = {}
    for hop in hops(case.exchange):
        below.setdefault((hop.chunk, hop.source), []).append(hop.destination)

    def station(rank):
        total = torch.zeros_like(partials[0])
        for source in sorted([*below.get((chunk, rank), []), rank]):
            total += partials[rank] if source == rank else station(source)
        return total

    return station(int(partition.owner[chunk]))


def test_a_relayed_reduction_adds_at_each_station_in_ascending_order_bit_for_bit(run, relayed_case):
    case = relayed_case
    sums = run(
        case.num_ranks, lambda handle: handle.start_reduce(case.exchange, *case.partials(handle.rank)).wait()
    )
    everywhere = torch.zeros(case.num_ranks, *case.k.shape)
    for rank in range(case.num_ranks):
        everywhere[rank][:, case.gathered(rank)] = case.partials(rank)[0]
    for rank, (dk, _) in enumerate(sums):
        chunks = [_sum_along_the_trees(case, c, everywhere) for c in case.exchange.partition.chunks_of(rank)]
        right = torch.cat([case.k[:, :0], *chunks], dim=1)
        torch.testing.assert_close(dk, right, rtol=0, atol=0)


def test_relayed_bytes_are_the_predicted_ones_hop_by_hop(run, relayed_case):
    case = relayed_case

    def work(handle):
        handle.start_gather(case.exchange, *case.local(handle.rank)).wait()
        gathered = handle.traffic.by_transfer
        handle.traffic.clear()
        handle.start_reduce(case.exchange, *case.partials(handle.rank), wire_dtype=torch.bfloat16).wait()
        return gathered, handle.traffic.by_transfer

    gathered, reduced = zip(*run(case.num_ranks, work), strict=True)
    token_values = case.k.shape[0] * case.k.shape[2] * (case.k.shape[3] + case.v.shape[3])
    assert _merged(gathered) == gather_bytes(case.exchange, 4 * token_values)
    assert _merged(reduced) == reduce_bytes(case.exchange, 2 * token_values)


def test_relays_pass_on_whatever_order_their_ranks_wait_in(run, make_case):
    cases = [
        make_case(4, 24, 2, seed=seed, density=0.9, ranks_per_node=2, route="hierarchical") for seed in (0, 1)
    ]

    def work(handle):
        pending = [handle.start_gather(case.exchange, *case.local(handle.rank)) for case in cases]
        turned = 1 - 2 * (handle.rank % 2)
        return [one.wait() for one in pending[::turned]][::turned]

    for rank, results in enumerate(run(4, work)):
        for case, (k, v) in zip(cases, results, strict=True):
            assert torch.equal(k, case.k[:, case.gathered(rank)])
            assert torch.equal(v, case.v[:, case.gathered(rank)])
