"""One rank of test_shm_processes: a script, started with rank, ranks, rendezvous file and scenario."""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from fm3_comm import ExchangeBackend, connect, make_exchange
from fm3_core import Cluster, ExchangeError, Partition


def layers(handle: ExchangeBackend, count: int) -> None:
    """Gather and reduce `count` layers of different data over a relayed exchange; check every value."""
    ranks = handle.num_ranks
    partition = Partition(2 * ranks, 2, tuple((rank,) for rank in range(ranks)))
    everything = np.ones((ranks, ranks), dtype=bool)
    exchange = make_exchange(partition, everything, Cluster(ranks, 2), route="hierarchical")
    for layer in range(count):
        k = torch.full((1, 2, 1, 4), float(10 * layer + handle.rank))
        gathered, _ = handle.start_gather(exchange, k, -k).wait()
        right = np.repeat(np.arange(ranks), 2) + 10.0 * layer
        assert gathered[0, :, 0, 0].tolist() == right.tolist()
        dk, dv = handle.start_reduce(exchange, gathered, -gathered).wait()
        assert torch.equal(dk, k * ranks)
        assert torch.equal(dv, -k * ranks)


def main() -> None:
    """Work, then stop in the way that the scenario names."""
    rank, num_ranks, file, scenario = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    store = dist.FileStore(file, num_ranks)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=num_ranks, timeout=timedelta(seconds=60)
    )
    handle = connect(backend="shm", timeout_seconds=60.0)
    layers(handle, 20)
    if scenario == "killed" and rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        layers(handle, 2)
    except ExchangeError as error:
        print(error)
        sys.exit(3)
    handle.close()
    dist.destroy_process_group()
    print("finished")


if __name__ == "__main__":
    main()
