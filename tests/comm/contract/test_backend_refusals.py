"""What every registered backend refuses: tensors, exchanges and ranks that do not fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fm3_comm import make_exchange
from fm3_core import Cluster, ExchangeError, Partition


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda k, v: (k[:, 1:], v[:, 1:]),
            r"k must have 4 tokens \(dim 1\), got \[2, 3, 2, 4\]; v must have 4",
        ),
        (lambda k, v: (k, v[:1]), r"v must be \[2, 4, 2\] and any dim as k is, got \[1, 4, 2, 4\]"),
        (lambda k, v: (k, v[:, :, :1]), r"v must be \[2, 4, 2\] and any dim as k is, got \[2, 4, 1, 4\]"),
        (lambda k, v: (k, v.half()), r"v must have the dtype torch.float32 of k, got torch.float16"),
        (lambda k, v: (k, v.to("meta")), r"v must have the device cpu of k, got meta"),
        (
            lambda k, v: (k.int(), v.int()),
            r"k must have one of the dtypes torch.float16, .*, got torch.int32",
        ),
        (lambda k, v: (k[0], v[0]), r"k must be \[batch, 4, heads, dim\], got \[4, 2, 4\]; v must be"),
        (lambda k, v: (k.numpy(), v), r"k must be a tensor, got ndarray"),
    ],
)
def test_keys_and_values_that_do_not_fit_are_refused_with_the_rank(run, spoil, message):
    exchange = make_exchange(Partition(8, 4, ((0,), (1,))), np.ones((2, 2), dtype=bool), Cluster(2))
    k = torch.ones(2, 4, 2, 4)
    with pytest.raises(ExchangeError, match=r"rank [01] of 2: " + message):
        run(2, lambda handle: handle.start_gather(exchange, *spoil(k, k)).wait())


@pytest.mark.parametrize(
    ("spoil", "options", "message"),
    [
        (lambda dk, dv: (dk[:, :4], dv[:, :4]), {}, r"dk must have 8 tokens \(dim 1\), got \[2, 4, 2, 4\]"),
        (lambda dk, dv: (dk.bfloat16(), dv.bfloat16()), {}, r"dk must have one of .*, got torch.bfloat16"),
        (lambda dk, dv: (dk, dv.double()), {}, r"dv must have the dtype torch.float32 of dk"),
        (
            lambda dk, dv: (dk, dv),
            {"wire_dtype": torch.float16},
            r"wire_dtype must be None, torch.bfloat16 or",
        ),
    ],
)
def test_partials_that_do_not_fit_are_refused_with_the_rank(run, spoil, options, message):
    exchange = make_exchange(Partition(8, 4, ((0,), (1,))), np.ones((2, 2), dtype=bool), Cluster(2))
    dk = torch.ones(2, 8, 2, 4)
    with pytest.raises(ExchangeError, match=r"rank [01] of 2: " + message):
        run(2, lambda handle: handle.start_reduce(exchange, *spoil(dk, dk), **options).wait())


def test_an_exchange_for_other_ranks_is_refused(run, make_case):
    case = make_case(3, 9, 2)
    with pytest.raises(
        ExchangeError, match=r"rank [01] of 2: the exchange must be for 2 ranks, got one for 3"
    ):
        run(2, lambda handle: handle.start_gather(case.exchange, *case.local(handle.rank)))


@pytest.mark.parametrize(
    ("batches", "message"),
    [((2, 3), "batch is [23], expected [23]"), ((5, 1), "batch is [15], expected [15]")],
)
def test_ranks_with_another_batch_stop_with_a_message(run, make_case, batches, message):
    case = make_case(2, 12, 2, density=1.0, ranks_with_chunks=2)

    def work(handle):
        k = torch.ones(batches[handle.rank], len(case.own(handle.rank)), 2, 4)
        handle.start_gather(case.exchange, k, k).wait()

    with pytest.raises(ExchangeError, match=f"rank [01] of 2: gather .* rank [01]: its {message}"):
        run(2, work)


def test_ranks_with_other_exchanges_stop_with_a_message(run, make_case):
    cases = [make_case(2, 12, 2, density=1.0), make_case(2, 12, 3, density=1.0)]

    def work(handle):
        case = cases[handle.rank]
        handle.start_gather(case.exchange, *case.local(handle.rank)).wait()

    with pytest.raises(ExchangeError, match="another exchange: the ranks hold different masks or plans"):
        run(2, work)


def test_ranks_in_different_operations_stop_with_a_message(run):
    with pytest.raises(
        ExchangeError, match=r"its operation is (barrier|share text), expected (barrier|share text)"
    ):
        run(2, lambda handle: handle.share("text") if handle.rank else handle.barrier())


@pytest.mark.parametrize("num_ranks", [0, -1, 1.5, True])
def test_a_number_of_ranks_that_is_none_is_refused(run, num_ranks):
    with pytest.raises(ExchangeError, match="num_ranks must be"):
        run(num_ranks, lambda handle: None)
