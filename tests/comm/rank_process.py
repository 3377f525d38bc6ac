"""One rank of test_rank_processes: a script, started with rank, ranks, rendezvous file and scenario."""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from fm3_comm import ExchangeBackend, connect, make_exchange
from fm3_comm.device_wire import DeviceWire
from fm3_comm.torch_dist import TorchDist
from fm3_core import Cluster, ExchangeError, Partition


def gathers_and_reduces(handle: ExchangeBackend) -> None:
    """Exchange ones among all ranks and check what arrives."""
    ranks = handle.num_ranks
    partition = Partition(2 * ranks, 2, tuple((rank,) for rank in range(ranks)))
    exchange = make_exchange(partition, np.ones((ranks, ranks), dtype=bool), Cluster(ranks))
    k = torch.full((1, 2, 1, 4), float(handle.rank))
    gathered, _ = handle.start_gather(exchange, k, k).wait()
    assert gathered[0, :, 0, 0].tolist() == np.repeat(np.arange(ranks), 2).tolist()
    dk, _ = handle.start_reduce(exchange, gathered, gathered).wait()
    assert torch.equal(dk, k * ranks)


def exchange_with_bodies_apart(handle: TorchDist) -> None:
    """Let bodies travel by another group in the order of operations, as NCCL needs it; over relays, too."""
    ranks = handle.num_ranks
    handle._device_wire = DeviceWire(dist.new_group(), device_type="cpu")
    gathers_and_reduces(handle)
    partition = Partition(ranks, 1, tuple((rank,) for rank in range(ranks)))
    first_sees_all = np.zeros((ranks, ranks), dtype=bool)
    first_sees_all[0] = True
    exchanges = [
        make_exchange(partition, needs, Cluster(ranks, ranks - 1), route="hierarchical")
        for needs in (np.ones((ranks, ranks), dtype=bool), first_sees_all, ~first_sees_all)
    ]
    gathers = []
    for layer in range(12):
        k = torch.full((1, 1, 1, 2), float(10 * layer + handle.rank))
        gathers.append(handle.start_gather(exchanges[layer % 3], k, -k))
        assert handle.share(f"{layer}") == [f"{layer}"] * ranks
    for layer, pending in reversed(list(enumerate(gathers))):
        k, v = pending.wait()
        right = [10.0 * layer + chunk for chunk in exchanges[layer % 3].gathered[handle.rank]]
        assert k[0, :, 0, 0].tolist() == right
        assert torch.equal(v, -k)
    handle.barrier()
    handle._device_wire = None


def main() -> None:
    """Work, then stop in the way that the scenario names."""
    rank, num_ranks, file, scenario = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    store = dist.FileStore(file, num_ranks)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=num_ranks, timeout=timedelta(seconds=60)
    )
    handle = connect()
    gathers_and_reduces(handle)
    pair = dist.new_group([1, 2])
    if rank in (1, 2):
        part = TorchDist(pair)
        assert (part.rank, part.num_ranks) == (rank - 1, 2)
        gathers_and_reduces(part)
        part.close()
    handle.barrier()
    exchange_with_bodies_apart(handle)
    if scenario == "killed" and rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        gathers_and_reduces(handle)
    except ExchangeError as error:
        print(error)
        sys.exit(3)
    handle.close()
    dist.destroy_process_group()
    print("finished")


if __name__ == "__main__":
    main()
