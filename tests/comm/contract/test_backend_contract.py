"""The contract of every exchange backend that is registered, those of entry points and users included."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch

from fm3_comm import ExchangeBackend, backends, gather_bytes, make_exchange, reduce_bytes
from fm3_core import Cluster, ExchangeError, Partition, Transfer, patterns
from fm3_core import needs as needs_of

TIMEOUT_SECONDS = 30.0
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]

CASES = {
    "one rank": (1, 11, 4, {}),
    "two ranks": (2, 24, 3, {}),
    "three ranks, an uneven tail": (3, 26, 4, {"density": 0.6}),
    "more ranks than chunks": (5, 5, 2, {}),
    "ranks without a chunk": (6, 30, 3, {"ranks_with_chunks": 3}),
    "chunks of one token": (4, 17, 1, {}),
    "nobody sees anybody": (3, 12, 2, {"density": 0.0}),
    "everybody sees everything": (4, 21, 2, {"density": 1.0}),
    "no tokens at all": (2, 0, 4, {}),
    "a batch of three, value dim 6 and key dim 2": (3, 20, 3, {"batch": 3, "key_dim": 2, "value_dim": 6}),
    "an empty batch": (2, 9, 2, {"batch": 0}),
    "eight ranks": (8, 70, 3, {"density": 0.3, "seed": 5}),
}


@pytest.fixture(params=backends.names())
def run(request):
    """Run P ranks of one backend kind."""
    kind = backends.get(request.param)
    reason = kind.why_unavailable()
    if reason is not None:
        pytest.skip(reason)
    return lambda num_ranks, fn: kind.run(num_ranks, fn, timeout_seconds=TIMEOUT_SECONDS)


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def case(request, make_case):
    """Build one of the cases."""
    num_ranks, num_tokens, chunk_size, options = request.param
    return make_case(num_ranks, num_tokens, chunk_size, **options)


def _sums_by_definition(case, rank, wire_dtype=None):
    """Add each rank's partial of each own token of `rank`, source after source, in float32."""
    sums = [torch.zeros_like(tensor, dtype=torch.float32) for tensor in (case.k, case.v)]
    for source in range(case.num_ranks):
        rounding = torch.float32 if wire_dtype is None or source == rank else wire_dtype
        for total, partial in zip(sums, case.partials(source), strict=True):
            total[:, case.gathered(source)] += partial.to(rounding).float()
    return tuple(total[:, case.own(rank)] for total in sums)


def _merged(by_rank):
    return {key: value for counts in by_rank for key, value in counts.items()}


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


def test_a_reduction_adds_the_partials_in_ascending_order_of_source_bit_for_bit(run, case):
    sums = run(
        case.num_ranks, lambda handle: handle.start_reduce(case.exchange, *case.partials(handle.rank)).wait()
    )
    for rank, pair in enumerate(sums):
        for total, right in zip(pair, _sums_by_definition(case, rank), strict=True):
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


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_float_dtype_travels_unchanged(run, make_case, dtype):
    case = make_case(3, 20, 3, dtype=dtype)
    gathered = run(3, lambda handle: handle.start_gather(case.exchange, *case.local(handle.rank)).wait())
    for rank, (k, v) in enumerate(gathered):
        assert torch.equal(k, case.k[:, case.gathered(rank)])
        assert torch.equal(v, case.v[:, case.gathered(rank)])


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
        right_dk, right_dv = _sums_by_definition(case, rank, torch.bfloat16)
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
            assert torch.equal(dk, _sums_by_definition(case, rank)[0])


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


@pytest.mark.parametrize("text", ["", "rank ä", "x" * 100_000])
def test_share_returns_every_ranks_text_by_rank(run, text):
    shared = run(3, lambda handle: handle.share(f"{handle.rank}{text}" * handle.rank))
    assert shared == [["", f"1{text}", f"2{text}2{text}"]] * 3


def test_share_takes_bytes_too(run):
    assert run(2, lambda handle: handle.share(bytes([0, handle.rank]))) == [[b"\0\0", b"\0\1"]] * 2


def test_nobody_leaves_a_barrier_before_all_have_come(run):
    came = []

    def work(handle):
        time.sleep(0.05 * handle.rank)
        came.append(handle.rank)
        handle.barrier()
        return len(came)

    assert run(3, work) == [3, 3, 3]


def test_traffic_counts_no_shares(run):
    def work(handle):
        handle.share("text")
        handle.barrier()
        return handle.traffic.total

    assert run(2, work) == [0, 0]


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


def test_sharing_something_else_than_text_is_refused(run):
    with pytest.raises(ExchangeError, match="share takes str or bytes, got int"):
        run(2, lambda handle: handle.share(3))


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


def test_ranks_can_compare_what_they_hold_before_they_exchange_anything(run):
    lengths = [[4, 12], [4, 12], [8, 8]]
    shared = run(3, lambda handle: handle.share(patterns.causal_document(lengths[handle.rank]).fingerprint))
    assert [[print_ == prints[0] for print_ in prints] for prints in shared] == [[True, True, False]] * 3


def test_an_exception_in_one_rank_stops_the_others_at_once_and_is_raised_with_its_rank(run, make_case):
    case = make_case(4, 24, 2, density=1.0)
    others = []

    def work(handle):
        if handle.rank == 2:
            raise LookupError("no such layer")
        try:
            handle.start_gather(case.exchange, *case.local(handle.rank)).wait()
        except ExchangeError as error:
            others.append(str(error))
            raise

    start = time.monotonic()
    with pytest.raises(LookupError, match="no such layer") as caught:
        run(4, work)
    assert caught.value.__notes__ == ["raised in rank 2 of 4"]
    assert time.monotonic() - start < 10
    assert len(others) == 3
    assert all("rank 2 stopped: LookupError: no such layer" in text for text in others)


def test_a_rank_that_aborts_gives_the_others_its_reason(run):
    def work(handle):
        if handle.rank == 1:
            handle.abort("out of memory")
            return "aborted"
        with pytest.raises(ExchangeError, match=f"rank {handle.rank} of 3: .*rank 1 stopped: out of memory"):
            handle.barrier()
        with pytest.raises(ExchangeError, match="rank 1 stopped: out of memory"):
            handle.share("again")
        return "told"

    assert run(3, work) == ["told", "aborted", "told"]


def test_an_aborted_rank_refuses_to_go_on(run):
    def work(handle):
        handle.abort("enough")
        with pytest.raises(ExchangeError, match=f"rank {handle.rank} stopped: enough"):
            handle.barrier()

    run(1, work)


def test_a_closed_handle_refuses_to_start_and_closes_again_in_peace(run):
    def work(handle):
        handle.barrier()
        handle.close()
        handle.close()
        with pytest.raises(ExchangeError, match=f"rank {handle.rank} of 2: this backend is closed"):
            handle.barrier()

    run(2, work)


def test_what_was_started_before_close_can_be_waited_for_after(run, make_case):
    case = make_case(2, 12, 2, density=1.0)

    def work(handle):
        pending = handle.start_gather(case.exchange, *case.local(handle.rank))
        handle.close()
        return pending.wait()

    for rank, (k, _) in enumerate(run(2, work)):
        assert torch.equal(k, case.k[:, case.gathered(rank)])


def test_no_thread_outlives_a_run_whether_it_ends_well_or_not(run):
    def work(handle):
        handle.barrier()
        raise LookupError(str(handle.rank))

    before = threading.active_count()
    run(3, lambda handle: handle.barrier())
    with pytest.raises(LookupError):
        run(3, work)
    assert threading.active_count() == before


def test_ranks_have_the_callers_gradient_mode(run):
    with torch.no_grad():
        assert run(2, lambda handle: torch.is_grad_enabled()) == [False, False]
    assert run(2, lambda handle: torch.is_grad_enabled()) == [True, True]


def test_transfers_with_relays_are_refused(run, make_case):
    case = make_case(3, 6, 2, needs=np.ones((3, 3), dtype=bool))
    transfers = [
        Transfer(t.chunk, t.source, t.destination, tuple({0, 1, 2} - {t.source, t.destination}))
        for t in case.exchange.transfers
    ]
    relayed = type(case.exchange)(
        case.exchange.partition, case.exchange.cluster, case.exchange.gathered, tuple(transfers)
    )
    with pytest.raises(ValueError, match=r"direct exchange: Transfer.* goes through relays"):
        run(3, lambda handle: handle.start_gather(relayed, *case.local(handle.rank)))


@pytest.mark.parametrize("num_ranks", [0, -1, 1.5, True])
def test_a_number_of_ranks_that_is_none_is_refused(run, num_ranks):
    with pytest.raises(ExchangeError, match="num_ranks must be"):
        run(num_ranks, lambda handle: None)
