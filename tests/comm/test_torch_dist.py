"""What only torch_dist promises: groups, timeouts, and no harm from peers that stop."""

from __future__ import annotations

import gc
import itertools
import queue
import threading
import time
import weakref
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from fm3_comm import connect, torch_dist
from fm3_comm.message import Message
from fm3_comm.torch_dist import TorchDist
from fm3_core import ExchangeError, UnsupportedError


@pytest.fixture
def default_group():
    """Initialise a default group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_a_rank_that_keeps_others_waiting_too_long_is_named():
    def work(handle):
        if handle.rank == 1:
            time.sleep(1.0)
        handle.barrier()

    start = time.monotonic()
    with pytest.raises(
        ExchangeError, match=r"rank 0 of 2: barrier \(operation 0\), rank 1: rank 1 sent nothing for"
    ):
        torch_dist.run(2, work, timeout_seconds=0.2)
    assert time.monotonic() - start < 10


def test_the_first_cause_reaches_ranks_that_only_meet_its_victims():
    def work(handle):
        if handle.rank == 0:
            raise LookupError("first cause")
        if handle.rank == 2:
            time.sleep(0.2)
        try:
            handle.barrier()
        except ExchangeError as error:
            told.append(str(error))
            raise

    told = []
    with pytest.raises(LookupError, match="first cause"):
        torch_dist.run(3, work)
    assert len(told) == 2
    assert all("rank 0 stopped: LookupError: first cause" in text for text in told)


def test_two_handles_over_one_group_share_its_order_of_operations():
    def work(handle):
        other = TorchDist(handle._wire._group)
        texts = [handle.share("a"), other.share("b"), handle.share("c")]
        other.close()
        return texts, handle.share("d")

    assert torch_dist.run(2, work) == [([["a", "a"], ["b", "b"], ["c", "c"]], ["d", "d"])] * 2


def test_a_handle_that_follows_a_closed_one_over_the_same_group_works():
    def work(handle):
        group = handle._wire._group
        handle.barrier()
        handle.close()
        second = TorchDist(group)
        second.barrier()
        second.abort("done")
        second.close()

    torch_dist.run(2, work)


class _Bodies:
    """Moves bodies between threads, as a device's wire does; what arrived is given out once it may be."""

    device_type = "cpu"

    def __init__(self, rank, mail, may_take):
        self.rank, self.mail, self.may_take = rank, mail, may_take

    def prepare(self, outgoing, expected):
        def take():
            assert self.may_take.wait(10)
            return {
                peer: Message(head, self.mail[peer, self.rank].get(timeout=10))
                for peer, head in expected.items()
            }

        def start():
            for peer, message in outgoing.items():
                self.mail[self.rank, peer].put(message.body)
            return take

        return start


def test_a_late_host_message_does_not_keep_bodies_from_moving_for_which_its_sender_waits(make_case):
    case = make_case(4, 16, 2, density=1.0, ranks_per_node=2, route="hierarchical")
    mail = {pair: queue.Queue() for pair in itertools.product(range(4), repeat=2)}

    def work(handle):
        shares_early = threading.Event()
        start = handle._start

        def noted(*operation):
            arrive = start(*operation)
            if not next(iter(operation[2].values())).exchange:
                shares_early.set()
            return arrive

        handle._start = noted
        handle._device_wire = _Bodies(handle.rank, mail, shares_early)
        # Rank 0 waits for the others' texts before its second round, and they wait for that round.
        if handle.rank != 0:
            shares_early.set()
        pending = handle.start_gather(case.exchange, *case.local(handle.rank))
        first, second = (pending.wait, lambda: handle.share("text"))[:: -1 if handle.rank == 0 else 1]
        return {type(result) for result in (first(), second())}

    assert torch_dist.run(4, work, timeout_seconds=5) == [{tuple, list}] * 4


def test_a_closed_handle_lets_go_of_its_group():
    group = dist.ProcessGroupGloo(dist.HashStore(), 0, 1, timedelta(seconds=5))
    handle = TorchDist(group)
    handle.barrier()
    handle.close()
    alive = weakref.ref(group)
    del group
    gc.collect()
    assert alive() is None


def test_a_handle_that_nobody_closes_leaves_no_thread():
    before = threading.active_count()
    handle = TorchDist(dist.ProcessGroupGloo(dist.HashStore(), 0, 1, timedelta(seconds=5)))
    handle.barrier()
    del handle
    gc.collect()
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_the_default_group_is_found(default_group):
    handle = connect()
    assert (type(handle), handle.rank, handle.num_ranks) == (TorchDist, 0, 1)
    assert handle.share("x") == ["x"]
    handle.close()


def test_without_a_default_group_the_error_says_what_to_call():
    with pytest.raises(
        UnsupportedError, match=r"torch\.distributed is not initialised; call .*init_process_group"
    ):
        connect(backend="torch_dist")


@pytest.mark.parametrize("group", ["world", 3, torch.ones(1)])
def test_something_that_is_no_group_is_refused(group):
    with pytest.raises(UnsupportedError, match=r"group must be a torch.distributed process group, got"):
        TorchDist(group)


def test_a_group_without_gloo_is_refused_with_the_way_out(default_group, monkeypatch):
    monkeypatch.setattr(dist, "get_backend_config", lambda group: "cuda:nccl")
    with pytest.raises(
        UnsupportedError, match=r"needs gloo for CPU tensors, this group has 'cuda:nccl'; make one"
    ):
        TorchDist(default_group)


@pytest.mark.parametrize(
    ("config", "has_gpus", "by_nccl"),
    [("cpu:gloo,cuda:nccl", True, True), ("cpu:gloo,cuda:nccl", False, False), ("cpu:gloo", True, False)],
)
def test_gpus_talk_by_nccl_where_the_group_has_it(default_group, monkeypatch, config, has_gpus, by_nccl):
    monkeypatch.setattr(dist, "get_backend_config", lambda group: config)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpus)
    host, device = torch_dist._groups(default_group)
    assert host is default_group
    assert device is (default_group if by_nccl else None)
