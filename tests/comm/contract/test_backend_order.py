"""Several operations under way on every registered backend: layers, steps, threads, reused tensors."""

from __future__ import annotations

import threading
import time

import torch


def test_a_second_layer_never_reaches_into_a_slow_first_one(run, make_case):
    first = make_case(3, 24, 2, density=1.0)
    second = make_case(3, 24, 2, density=0.05, seed=1)

    def work(handle):
        time.sleep(0.1 * (handle.rank == 0))
        ones = torch.ones(1, len(first.own(handle.rank)), 1, 4)
        twos = torch.full((1, len(second.own(handle.rank)), 1, 4), 2.0)
        layers = [handle.start_gather(first.exchange, ones, ones)]
        layers.append(handle.start_gather(second.exchange, twos, twos))
        time.sleep(0.1 * (handle.rank == 1))
        return [layer.wait() for layer in layers]

    for (k1, v1), (k2, v2) in run(3, work):
        assert torch.all(k1 == 1)
        assert torch.all(v1 == 1)
        assert torch.all(k2 == 2)
        assert torch.all(v2 == 2)


def test_what_a_caller_does_to_its_tensors_after_a_start_or_a_wait_changes_nothing(run, make_case):
    case = make_case(3, 24, 2, density=1.0)

    def work(handle):
        k, v = (tensor.clone() for tensor in case.local(handle.rank))
        pending = handle.start_gather(case.exchange, k, v)
        k.fill_(torch.nan)
        v.fill_(torch.nan)
        handle.barrier()
        spoilt = handle.start_gather(case.exchange, *case.local(handle.rank)).wait()
        spoilt[0].fill_(torch.nan)
        return pending.wait()

    for rank, (k, v) in enumerate(run(3, work)):
        assert torch.equal(k, case.k[:, case.gathered(rank)])
        assert torch.equal(v, case.v[:, case.gathered(rank)])


def test_waiting_twice_returns_the_same_tensors(run, make_case):
    case = make_case(2, 8, 2)

    def work(handle):
        pending = handle.start_gather(case.exchange, *case.local(handle.rank))
        first, again = pending.wait(), pending.wait()
        return first[0] is again[0] and first[1] is again[1]

    assert run(2, work) == [True, True]


def test_operations_of_two_steps_may_be_waited_for_in_any_order(run, make_case):
    cases = [make_case(3, 24, 2, seed=0), make_case(3, 31, 4, seed=1)]

    def work(handle):
        gathers = [handle.start_gather(case.exchange, *case.local(handle.rank)) for case in cases]
        reductions = [handle.start_reduce(case.exchange, *case.partials(handle.rank)) for case in cases]
        order = [*gathers, *reductions][:: 1 - 2 * (handle.rank % 2)]
        results = [pending.wait() for pending in order]
        return results[:: 1 - 2 * (handle.rank % 2)]

    for rank, results in enumerate(run(3, work)):
        for case, (k, _), (dk, _) in zip(cases, results[:2], results[2:], strict=True):
            assert torch.equal(k, case.k[:, case.gathered(rank)])
            assert torch.equal(dk, case.sums(rank)[0])


def test_an_operation_may_run_on_another_thread_than_the_one_that_made_the_handle(run, make_case):
    case = make_case(3, 24, 2)

    def work(handle):
        results = []
        thread = threading.Thread(
            target=lambda: results.append(handle.start_gather(case.exchange, *case.local(handle.rank)).wait())
        )
        thread.start()
        thread.join()
        return results[0]

    for rank, (k, _) in enumerate(run(3, work)):
        assert torch.equal(k, case.k[:, case.gathered(rank)])
