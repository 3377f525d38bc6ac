"""One rank of test_nccl_multigpu: a script, started with rank, ranks and rendezvous file; one GPU a rank."""

from __future__ import annotations

import sys
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from fm3_comm import ExchangeBackend, connect, make_exchange
from fm3_core import Cluster, Partition

TOKENS_PER_CHUNK = 64


def exchange_of(num_ranks: int, route: str):
    """Return an exchange in which half of the chunks are seen, two chunks a rank, two ranks a node."""
    chunks = 2 * num_ranks
    partition = Partition(
        chunks * TOKENS_PER_CHUNK,
        TOKENS_PER_CHUNK,
        tuple((rank, rank + num_ranks) for rank in range(num_ranks)),
    )
    needs = np.random.default_rng(0).random((chunks, chunks)) < 0.5
    return make_exchange(partition, needs, Cluster(num_ranks, 2), route=route)


def check(handle: ExchangeBackend, route: str, device: torch.device, layers: int) -> None:
    """Start gathers and reductions of several layers, and compare each with what every rank can compute."""
    exchange = exchange_of(handle.num_ranks, route)
    tokens = exchange.partition.num_tokens
    own = torch.from_numpy(exchange.partition.token_index(handle.rank))
    seen = torch.from_numpy(exchange.key_index(handle.rank))
    whole = [
        torch.randn(1, tokens, 2, 64, generator=torch.Generator().manual_seed(layer), dtype=torch.float32)
        for layer in range(layers)
    ]
    gathers = [handle.start_gather(exchange, k[:, own].to(device), -k[:, own].to(device)) for k in whole]
    ones = torch.ones(1, len(seen), 1, 8, device=device)
    reductions = [handle.start_reduce(exchange, ones * layer, ones) for layer in range(layers)]
    readers = torch.zeros(tokens)
    for rank in range(handle.num_ranks):
        readers[torch.from_numpy(exchange.key_index(rank))] += 1
    for layer in reversed(range(layers)):
        k, v = gathers[layer].wait()
        assert k.device == v.device == device
        assert torch.equal(k.cpu(), whole[layer][:, seen])
        assert torch.equal(v, -k)
        dk, dv = reductions[layer].wait()
        assert torch.equal(dv.cpu()[0, :, 0, 0], readers[own])
        assert torch.equal(dk, dv * layer)


def main() -> None:
    """Exchange over NCCL, directly and over relays."""
    rank, num_ranks, file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl",
        store=dist.FileStore(file, num_ranks),
        rank=rank,
        world_size=num_ranks,
        timeout=timedelta(seconds=120),
    )
    handle = connect(timeout_seconds=60.0)
    for route in ("flat", "hierarchical"):
        check(handle, route, device, layers=4)
    handle.barrier()
    handle.close()
    dist.destroy_process_group()
    print("finished")


if __name__ == "__main__":
    main()
