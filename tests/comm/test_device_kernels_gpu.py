"""The kernels of fm3_comm._C on a GPU, in processes that fork from here: this one must not use CUDA."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest
import torch
from rank_kinds import runner
from reduce_rows import row

from fm3_comm import backends, make_exchange
from fm3_comm.symmetric import DeviceBackend, DeviceOptions, memories
from fm3_comm.symmetric.reduce_tables import PUT, SUMMED
from fm3_core import Cluster, ColumnMask, ExchangeError, Partition

REASON = memories.get("nvshmem").why_unavailable()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
    pytest.mark.usefixtures("ranks_share_gpus"),
]
RANKS = [1, 2, 4, 8]


@pytest.fixture
def run():
    """Run P ranks of the backend."""
    return runner(backends.get("nvshmem"), "nvshmem", 60.0)


@pytest.fixture
def on_memory():
    """Run P ranks of the memory."""
    return runner(memories.get("nvshmem"), "nvshmem", 60.0)


def _on_device(rows):
    return torch.frombuffer(bytearray(rows.tobytes() or b"\0"), dtype=torch.uint8).cuda()


@pytest.mark.parametrize("num_ranks", RANKS)
@pytest.mark.parametrize("route", ["flat", "hierarchical"])
def test_pulled_chunks_are_those_of_their_owners(run, make_case, num_ranks, route):
    cases = [
        make_case(
            num_ranks, 37 * num_ranks + 5, 8, density=d, seed=s, batch=2, heads=2, key_dim=64, value_dim=32,
            dtype=torch.bfloat16, ranks_per_node=2, route=route,
        )
        for s, d in enumerate((0.6, 1.0, 0.1))
    ]  # fmt: skip

    def work(handle):
        results = []
        for case in cases * 3:
            gathered = handle.start_gather(case.exchange, *(x.cuda() for x in case.local(handle.rank))).wait()
            results.append([x.cpu() for x in gathered])
        return results

    for rank, results in enumerate(run(num_ranks, work)):
        for case, (k, v) in zip(cases * 3, results, strict=True):
            assert torch.equal(k, case.k[:, case.gathered(rank)])
            assert torch.equal(v, case.v[:, case.gathered(rank)])


def test_a_second_layer_never_reaches_into_a_slow_first_one(run, make_case):
    first = make_case(4, 64, 8, density=1.0, heads=1, key_dim=64, value_dim=64, dtype=torch.bfloat16)
    second = make_case(
        4, 64, 8, density=0.05, seed=1, heads=1, key_dim=64, value_dim=64, dtype=torch.bfloat16
    )

    def work(handle):
        ones = torch.ones(1, len(first.own(handle.rank)), 1, 64, dtype=torch.bfloat16, device="cuda")
        twos = torch.full_like(ones[:, :1], 2).expand(1, len(second.own(handle.rank)), 1, 64)
        seen = []
        for _ in range(5):
            pending = handle.start_gather(first.exchange, ones, ones)
            if handle.rank == 0:
                torch.cuda._sleep(20_000_000)
            layer = pending.wait()[0]
            handle.start_gather(second.exchange, twos, twos).wait()
            seen.append(layer.unique().tolist())
        return seen

    assert run(4, work) == [[[1.0]] * 5] * 4


def test_a_peer_that_does_not_come_is_named_within_the_timeout_and_leaves_nan(on_memory, make_case):
    case = make_case(2, 32, 8, density=1.0, heads=1, key_dim=64, value_dim=64, dtype=torch.bfloat16)

    def work(memory):
        handle = DeviceBackend(memory, timeout_seconds=30, device=DeviceOptions(timeout_seconds=0.5))
        own = [x.cuda() for x in case.local(memory.rank)]
        handle.start_gather(case.exchange, *own).wait()
        handle.barrier()
        if memory.rank == 1:
            time.sleep(3)
            return None
        k, _ = handle.start_gather(case.exchange, *own).wait()
        torch.cuda.synchronize()
        with pytest.raises(ExchangeError, match="a kernel waited for a chunk from rank 1"):
            handle.start_gather(case.exchange, *own)
        return torch.isnan(k).any().item(), torch.isnan(k).all().item()

    assert on_memory(2, work)[0] == (True, False)


@pytest.mark.parametrize("seed", range(4))
def test_the_sparsity_check_is_exact(on_memory, seed):
    rng = np.random.default_rng(seed)
    rows, keys, chunk = 50, 333, 16
    spans = np.sort(rng.integers(0, rows + 1, (2, keys, 2)), axis=2)
    spans[0, rng.random(keys) < 0.7] = (0, rows)
    vectors = [spans[0, :, 0], spans[0, :, 1], spans[1, :, 0], spans[1, :, 1]]
    mask = ColumnMask(*([[vector.tolist()]] for vector in vectors), num_rows=rows)
    visible = mask.to_dense()[0, 0].any(axis=0)
    right = [bool(visible[first : first + chunk].any()) for first in range(0, keys, chunk)]

    def work(memory):
        arrays = [torch.tensor(vector, dtype=torch.int32).cuda() for vector in vectors]
        seen = torch.full((len(right),), 9, dtype=torch.uint8, device="cuda")
        memory.extension.find_seen_chunks(
            **{name: x.data_ptr() for name, x in zip(("lts", "lte", "uts", "ute"), arrays, strict=True)},
            seen=seen.data_ptr(), num_masks=1, num_keys=keys, num_rows=rows, chunk_tokens=chunk,
            stream=torch.cuda.current_stream().cuda_stream,
        )  # fmt: skip
        return seen.tolist()

    assert on_memory(1, work) == [[int(s) for s in right]]


@pytest.mark.parametrize("num_ranks", RANKS)
@pytest.mark.parametrize("wire", ["FLOAT32", "BFLOAT16"])
def test_partials_are_put_and_added_in_ascending_order_of_rank_bit_for_bit(on_memory, num_ranks, wire):
    tokens, heads, dim, batch, owner = 24, 2, 32, 2, num_ranks // 2
    partials = [
        torch.randn(2, batch, tokens, heads, dim, generator=torch.Generator().manual_seed(rank))
        for rank in range(num_ranks)
    ]
    rounding = {"FLOAT32": torch.float32, "BFLOAT16": torch.bfloat16}[wire]
    right = torch.zeros(2, batch, tokens, heads, dim)
    for rank, partial in enumerate(partials):
        right += partial if rank == owner else partial.to(rounding).float()
    contribution_bytes = 2 * batch * tokens * heads * dim * 4
    others = [rank for rank in range(num_ranks) if rank != owner]

    def work(memory):
        ext, stream = memory.extension, torch.cuda.current_stream().cuda_stream
        buffer, words = memory.alloc((num_ranks + 1) * contribution_bytes), memory.alloc(8 * (1 + num_ranks))
        final = torch.zeros(2, dtype=torch.int32, device="cuda")
        finished = torch.zeros(1, dtype=torch.int32, device="cuda")
        layout = ext.SlotLayout(
            k_start=0, v_start=0, k_token_bytes=4 * heads * dim, v_token_bytes=4 * heads * dim, batch=batch,
            num_slots=1, chunk_tokens=tokens,
        )  # fmt: skip
        limit = ext.WaitLimit(nanoseconds=0, report=0)
        results = []
        for epoch in (1, 2, 3):
            dk, dv = (partials[memory.rank][i].cuda() for i in range(2))
            shared = {
                "num_chunks": 1,
                "dk": dk.data_ptr(),
                "dv": dv.data_ptr(),
                "final": final.data_ptr(),
                "words": words.address,
                "buffer": buffer.address,
                "finished_ctas": finished.data_ptr(),
                "layout": layout,
                "limit": limit,
                "epoch": epoch,
                "contributions_start": 0,
                "contribution_bytes": contribution_bytes,
                "wire": getattr(ext.Wire, wire),
                "rank": memory.rank,
                "num_ctas": 4,
                "stream": stream,
            }
            final.fill_(epoch)
            if memory.rank == owner:
                opened = np.array(
                    [(rank, 1 + owner) for rank in others], dtype=[("rank", "<i4"), ("word", "<i4")]
                )
                table = _on_device(opened)
                ext.signal(
                    signals=table.data_ptr(), num_signals=len(others), words=words.address, value=epoch,
                    stream=stream,
                )  # fmt: skip
                bits = sum(1 << rank for rank in others)
                expected = torch.tensor([bits], dtype=torch.int64, device="cuda")
                rows = _on_device(row(
                    SUMMED, num_contributions=len(others), own_place=owner, num_tokens=tokens, bits=0,
                    summed=1, own_final=0,
                ))  # fmt: skip
                ext.reduce(chunks=rows.data_ptr(), expected=expected.data_ptr(), words_per_mask=1, **shared)
                torch.cuda.synchronize()
                assert memory.read(words, 0) == 0
                assert final.tolist() == [epoch, epoch]
                results.append(torch.stack([dk, dv]).cpu())
            else:
                rows = _on_device(row(
                    PUT, target=memory.peer_ptr(buffer, owner) or 0, target_rank=owner,
                    contribution=others.index(memory.rank), num_tokens=tokens, opened=1 + owner,
                ))  # fmt: skip
                ext.put(chunks=rows.data_ptr(), staging_start=num_ranks * contribution_bytes, **shared)
                torch.cuda.synchronize()
            memory.barrier(range(num_ranks), 60)
        return results

    for total in on_memory(num_ranks, work)[owner]:
        assert torch.equal(total, right)


def test_a_killed_peer_stops_the_others_within_the_timeout_and_no_process_stays(run):
    everything = np.ones((3, 3), dtype=bool)
    exchange = make_exchange(Partition(24, 8, ((0,), (1,), (2,))), everything, Cluster(3))

    def work(handle):
        k = torch.ones(1, 8, 1, 64, dtype=torch.bfloat16, device="cuda")
        handle.start_gather(exchange, k, k).wait()
        torch.cuda.synchronize()
        handle.barrier()
        if handle.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        handle.barrier()

    start = time.monotonic()
    with pytest.raises(ExchangeError, match="rank 2"):
        run(3, work)
    assert time.monotonic() - start < 100
