"""P ranks compute what one rank computes, for every planner; misuse is refused before anything moves."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import attend_on_rank, worst_difference

from fm3_comm import ExchangeBackend, backends, loopback
from fm3_core import (
    Cluster,
    ColumnMask,
    ExchangeError,
    MaskError,
    PartitionError,
    PlanError,
    UnknownNameError,
    UnsupportedError,
    patterns,
)
from fm3_planner import PlanProblem, balanced_chunk_size, plan, planners
from fm3_runtime import ContextParallel, attention, mask_names, named_mask

ROUNDING = 1e-12
LENGTHS = [10, 0, 20, 7, 1, 13, 48]


def _skip_if_unavailable(name: str) -> pytest.MarkDecorator:
    reason = backends.get(name).why_unavailable()
    return pytest.mark.skipif(reason is not None, reason=str(reason))


@pytest.mark.parametrize(
    "backend_name", [pytest.param(name, marks=_skip_if_unavailable(name)) for name in backends.names()]
)
@pytest.mark.parametrize("planner", planners.names())
@pytest.mark.parametrize("num_ranks", [1, 3, 5])
def test_ranks_equal_one_rank_for_every_planner_and_backend(make_problem, planner, num_ranks, backend_name):
    problem = make_problem(patterns.causal_document(LENGTHS))
    results = backends.get(backend_name).run(
        num_ranks,
        lambda backend: attend_on_rank(
            backend, problem.mask, problem.inputs, problem.dout, problem.dlse, planner=planner, chunk_size=11
        ),
    )
    assert worst_difference(results, problem.one_rank()) < ROUNDING


@pytest.mark.parametrize("name", mask_names())
def test_ranks_equal_one_rank_for_every_mask(make_problem, name):
    problem = make_problem(named_mask(name, LENGTHS), batch=1)
    results = loopback.run(
        3,
        lambda backend: attend_on_rank(
            backend, problem.mask, problem.inputs, problem.dout, problem.dlse, planner="zigzag", chunk_size=8
        ),
    )
    assert worst_difference(results, problem.one_rank()) < ROUNDING


@pytest.mark.parametrize(("tokens", "num_ranks"), [(698, 4), (7, 2), (7 * 3 + 3, 3), (5, 5), (131, 8)])
def test_any_length_is_exact_without_padding(make_problem, tokens, num_ranks):
    problem = make_problem(patterns.causal_document([tokens // 3, tokens - tokens // 3]))
    results = loopback.run(
        num_ranks,
        lambda backend: attend_on_rank(backend, problem.mask, problem.inputs, problem.dout, problem.dlse),
    )
    assert worst_difference(results, problem.one_rank()) < ROUNDING


def test_a_rank_with_padding_only_is_exact(make_problem):
    problem = make_problem(patterns.document([24], padding=8))
    results = loopback.run(
        4,
        lambda backend: attend_on_rank(
            backend,
            problem.mask,
            problem.inputs,
            problem.dout,
            problem.dlse,
            planner="contiguous",
            chunk_size=8,
        ),
    )
    assert worst_difference(results, problem.one_rank()) < ROUNDING


def test_batches_of_different_masks_and_mask_heads_share_one_placement(make_problem):
    one = patterns.random_eviction(60, 20, heads=4, batch=3, seed=3)
    problem = make_problem(one, batch=3, heads=4, kv_heads=2, dim=8, value_dim=12)
    results = loopback.run(
        3,
        lambda backend: attend_on_rank(
            backend, problem.mask, problem.inputs, problem.dout, problem.dlse, chunk_size=7
        ),
    )
    assert worst_difference(results, problem.one_rank()) < ROUNDING


def _random_masks() -> st.SearchStrategy[ColumnMask]:
    def build(drawn: tuple[int, list[tuple[int, int, int, int]]]) -> ColumnMask:
        rows, ends = drawn
        spans = [[min(x, rows) for x in column] for column in ends[:rows]]
        lts, lte, uts, ute = zip(
            *((*sorted(column[:2]), *sorted(column[2:])) for column in spans), strict=True
        )
        return ColumnMask(*([[list(vector)]] for vector in (lts, lte, uts, ute)), num_rows=rows)

    row = st.integers(0, 24)
    return st.tuples(
        st.integers(4, 24), st.lists(st.tuples(row, row, row, row), min_size=24, max_size=24)
    ).map(build)


@settings(max_examples=30)
@given(
    mask=_random_masks(),
    num_ranks=st.integers(1, 4),
    chunk_size=st.integers(1, 6),
    planner=st.sampled_from(["striped", "lpt"]),
)
def test_random_overlapping_masks_are_exact(mask, num_ranks, chunk_size, planner):
    generator = torch.Generator().manual_seed(1)
    tokens = mask.num_rows
    inputs = tuple(torch.randn(1, tokens, 2, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    dout, dlse = (
        torch.ones(1, tokens, 2, 4, dtype=torch.float64),
        torch.ones(1, 2, tokens, dtype=torch.float64),
    )
    num_ranks = min(num_ranks, -(-tokens // chunk_size))
    options = {"planner": planner, "chunk_size": chunk_size}
    split = loopback.run(num_ranks, lambda b: attend_on_rank(b, mask, inputs, dout, dlse, **options))
    whole = loopback.run(1, lambda b: attend_on_rank(b, mask, inputs, dout, dlse))
    assert worst_difference(split, whole[0]) < ROUNDING


def test_the_comparison_with_one_rank_can_fail(make_problem):
    problem = make_problem(patterns.causal_document(LENGTHS))
    other = patterns.document(LENGTHS)
    results = loopback.run(
        2, lambda b: attend_on_rank(b, other, problem.inputs, problem.dout, problem.dlse, chunk_size=11)
    )
    assert worst_difference(results, problem.one_rank()) > 1e-3


def test_documents_4_and_12_split_the_work_and_not_only_the_tokens():
    mask = patterns.causal_document([4, 12])
    step = loopback.run(2, lambda b: ContextParallel(backend=b, chunk_size=1).plan(mask))[0]
    visible = mask.to_dense()[0, 0].sum(axis=1)
    work = [int(visible[step.partition.token_index(rank)].sum()) for rank in range(2)]
    assert work == [44, 44]  # of 4 * 5 / 2 + 12 * 13 / 2; halves of the tokens are [20, 68]
    assert [step.partition.num_tokens_of(rank) for rank in range(2)] == [8, 8]


def test_another_documents_values_change_no_bit_on_any_rank_count(make_problem):
    problem = make_problem(patterns.causal_document([30, 33]))
    q, k, v = problem.inputs
    changed = v.clone()
    changed[:, 30:] *= -3
    for num_ranks in (1, 2, 4):
        outs = [
            loopback.run(
                num_ranks,
                lambda b, v=v: attend_on_rank(
                    b, problem.mask, (q, k, v), problem.dout, problem.dlse, chunk_size=5
                )[0],
            )[0]
            for v in (v, changed)
        ]
        assert torch.equal(outs[0][:, :30], outs[1][:, :30])
        assert not torch.equal(outs[0][:, 30:], outs[1][:, 30:])


def test_two_layers_with_different_data_do_not_mix(make_problem):
    first = make_problem(patterns.causal(40))
    second = patterns.sliding_window(40, 0)

    def two_layers(backend: ExchangeBackend) -> tuple[torch.Tensor, torch.Tensor]:
        cp = ContextParallel(backend=backend, chunk_size=5, planner="striped")
        near, far = cp.plan(first.mask), cp.plan(second)
        q, k, _ = (near.scatter(x) for x in first.inputs)
        ones = torch.ones_like(k)
        out_ones = attention(q, k, ones, near)
        out_twos = attention(q, k, 2 * ones, far)
        return out_ones, out_twos

    for out_ones, out_twos in loopback.run(4, two_layers):
        assert torch.allclose(out_ones, torch.ones_like(out_ones), atol=1e-14)
        assert torch.equal(out_twos, torch.full_like(out_twos, 2.0))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_steps_alive_at_once_go_backward_in_either_order(make_problem, order):
    problems = [
        make_problem(patterns.causal_document([25, 16])),
        make_problem(patterns.document([9, 20, 12])),
    ]

    def both(backend: ExchangeBackend) -> list[torch.Tensor]:
        cp = ContextParallel(backend=backend, chunk_size=6)
        held, outs, steps = [], [], []
        for problem in problems:
            step = cp.plan(problem.mask)
            inputs = [x.clone().requires_grad_() for x in problem.inputs]
            outs.append(attention(*(step.scatter(x) for x in inputs), step))
            held.append(inputs)
            steps.append(step)
        for i in order:
            outs[i].backward(steps[i].scatter(problems[i].dout))
        return [x.grad for inputs in held for x in inputs]

    results = loopback.run(3, both)
    for i, problem in enumerate(problems):
        inputs = [x.clone().requires_grad_() for x in problem.inputs]
        attention(*inputs, problem.mask).backward(problem.dout)
        for j, x in enumerate(inputs):
            total = torch.stack([result[3 * i + j] for result in results]).sum(0)
            assert torch.allclose(total, x.grad, atol=ROUNDING)


def test_checkpoint_recomputes_under_context_parallelism(make_problem):
    problem = make_problem(patterns.causal_document([25, 16]))

    def gradients(backend: ExchangeBackend, checkpointed: bool) -> list[torch.Tensor]:
        step = ContextParallel(backend=backend, chunk_size=6).plan(problem.mask)
        inputs = [x.clone().requires_grad_() for x in problem.inputs]
        local = [step.scatter(x) for x in inputs]
        layer = lambda q, k, v: attention(q, k, v, step)  # noqa: E731
        out = (
            torch.utils.checkpoint.checkpoint(layer, *local, use_reentrant=False)
            if checkpointed
            else layer(*local)
        )
        out.backward(step.scatter(problem.dout))
        return [x.grad for x in inputs]

    plain = loopback.run(2, lambda b: gradients(b, False))
    again = loopback.run(2, lambda b: gradients(b, True))
    assert all(
        torch.equal(x, y)
        for mine, theirs in zip(plain, again, strict=True)
        for x, y in zip(mine, theirs, strict=True)
    )


def test_gradient_error_does_not_grow_with_the_number_of_ranks(make_problem):
    problem = make_problem(patterns.causal(256), batch=1)
    exact = problem.one_rank()
    floats = tuple(x.float() for x in problem.inputs)

    def error(num_ranks: int) -> float:
        results = loopback.run(
            num_ranks,
            lambda b: attend_on_rank(
                b, problem.mask, floats, problem.dout.float(), problem.dlse.float(), chunk_size=16
            ),
        )
        total = torch.stack([result[3] for result in results]).double().sum(0)
        return (total - exact[3]).abs().max().item()

    one = error(1)
    assert all(error(num_ranks) <= 2 * one for num_ranks in (2, 4, 8))


def test_bfloat16_gradients_on_the_wire_are_close_and_the_default_is_closer(make_problem):
    problem = make_problem(patterns.causal(64), batch=1)
    exact = problem.one_rank()
    floats = tuple(x.float() for x in problem.inputs)

    def error(wire: str) -> float:
        results = loopback.run(
            4,
            lambda b: attend_on_rank(
                b,
                problem.mask,
                floats,
                problem.dout.float(),
                problem.dlse.float(),
                chunk_size=8,
                gradient_wire=wire,
            ),
        )
        total = torch.stack([result[3] for result in results]).double().sum(0)
        return ((total - exact[3]).abs().max() / exact[3].abs().max()).item()

    assert error("float32") < 1e-5 < error("bfloat16") < 2e-2


def test_results_are_bitwise_repeatable(make_problem):
    problem = make_problem(patterns.causal_document([30, 33]))
    runs = [
        loopback.run(
            4,
            lambda b: attend_on_rank(
                b, problem.mask, problem.inputs, problem.dout, problem.dlse, chunk_size=5
            ),
        )
        for _ in range(3)
    ]
    for again in runs[1:]:
        for mine, theirs in zip(runs[0], again, strict=True):
            assert all(torch.equal(x, y) for x, y in zip(mine, theirs, strict=True))


def test_one_rank_needs_no_group():
    cp = ContextParallel()
    step = cp.plan(patterns.causal(9))
    assert (cp.rank, cp.num_ranks, step.num_local_tokens) == (0, 1, 9)
    cp.close()


def test_a_plan_made_earlier_is_used_as_it_is():
    mask = patterns.causal_document([20, 12])
    made = plan(PlanProblem.from_mask(mask, chunk_size=4, num_ranks=2), planner="zigzag")
    steps = loopback.run(
        2, lambda b: ContextParallel(backend=b, planner="contiguous").plan(mask, result=made)
    )
    assert steps[0].partition == made.partition


def test_a_plan_for_another_mask_length_or_cluster_is_refused_with_every_reason():
    made = plan(PlanProblem.from_mask(patterns.causal(512), chunk_size=32, num_ranks=4))
    with pytest.raises(
        PlanError, match=r"fingerprint.*512 tokens, the mask has 384.*num_ranks=4.*num_ranks=1"
    ):
        ContextParallel().plan(patterns.causal(384), result=made)


def test_a_plan_for_another_mask_of_the_same_length_is_refused():
    made = plan(PlanProblem.from_mask(patterns.causal(64), chunk_size=32, num_ranks=1))
    with pytest.raises(PlanError, match="the plan does not fit: its mask's fingerprint"):
        ContextParallel().plan(patterns.full(64), result=made)


def test_ranks_that_hold_different_masks_are_named():
    def plan_own(backend: ExchangeBackend) -> None:
        mask = patterns.causal(24) if backend.rank == 2 else patterns.full(24)
        with pytest.raises(
            MaskError, match=r"different masks: ranks 0, 1: [0-9a-f]{12}; rank 2: [0-9a-f]{12}"
        ):
            ContextParallel(backend=backend).plan(mask, verify=True)

    loopback.run(3, plan_own)


def test_ranks_that_hold_different_plans_are_named():
    def plan_own(backend: ExchangeBackend) -> None:
        planner = "striped" if backend.rank == 1 else "contiguous"
        with pytest.raises(PlanError, match=r"different plans: ranks 0, 2: .*; rank 1: "):
            ContextParallel(backend=backend, planner=planner, chunk_size=4).plan(
                patterns.full(24), verify=True
            )

    loopback.run(3, plan_own)


def test_fewer_tokens_than_ranks_is_refused():
    def plan_short(backend: ExchangeBackend) -> None:
        with pytest.raises(PartitionError, match="3 tokens cannot be shared by 4 ranks"):
            ContextParallel(backend=backend).plan(patterns.causal(3))

    loopback.run(4, plan_short)


def test_more_ranks_than_chunks_is_refused():
    def plan_few(backend: ExchangeBackend) -> None:
        with pytest.raises(PlanError, match="chunk"):
            ContextParallel(backend=backend, chunk_size=32).plan(patterns.causal(64))

    loopback.run(4, plan_few)


def test_rows_and_keys_must_be_the_same_tokens():
    with pytest.raises(MaskError, match="num_rows=8 and num_keys=9 differ"):
        ContextParallel().plan(patterns.causal(8, 9))


def test_a_device_mask_cannot_be_planned():
    with pytest.raises(MaskError, match="plan takes a ColumnMask, got str"):
        ContextParallel().plan("causal")


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"gradient_wire": "int8"},
            UnknownNameError,
            "unknown gradient_wire 'int8'; known: float32, bfloat16",
        ),
        ({"backend": "pigeon"}, UnknownNameError, "unknown backend 'pigeon'; known: .*loopback"),
        ({"gradient_wire": ["float32"]}, UnknownNameError, r"unknown gradient_wire \['float32'\]"),
        ({"backend": 3}, UnknownNameError, "backend must be a name or a handle of an open backend, got 3"),
        ({"chunk_size": 0}, PartitionError, "chunk_size must be >= 1, got 0"),
        ({"planner": 3}, PlanError, "planner must be a name or an object with assign"),
        ({"planner": "best"}, UnknownNameError, "unknown planner 'best'; known: "),
    ],
)
def test_unknown_names_and_sizes_are_refused_when_the_object_is_made(options, error, text):
    with pytest.raises(error, match=text):
        ContextParallel(**options)


def test_tensors_of_another_length_are_refused_with_both_lengths():
    step = ContextParallel().plan(patterns.causal(64))
    q = torch.zeros(1, 32, 2, 8)
    with pytest.raises(
        UnsupportedError,
        match=r"rank 0 of 1: q of shape \(1, 32, 2, 8\).*owns 64 of the 64.*k of shape.*v of",
    ):
        attention(q, q, q, step)


@pytest.mark.parametrize(
    ("q_shape", "k_shape", "dtype"),
    [
        ((1, 8, 3, 4), (1, 8, 2, 4), torch.float32),
        ((1, 8, 2, 4), (1, 8, 2, 5), torch.float32),
        ((1, 8, 2, 4), (1, 8, 2, 4), torch.int64),
    ],
)
def test_tensors_that_do_not_fit_are_refused_before_anything_moves(q_shape, k_shape, dtype):
    step = ContextParallel().plan(patterns.causal(8))
    q, k = torch.zeros(q_shape, dtype=dtype), torch.zeros(k_shape, dtype=dtype)
    with pytest.raises(UnsupportedError):
        attention(q, k, torch.zeros(1, 8, 2, 4, dtype=dtype), step)
    assert step.backend.traffic.total == 0


def test_what_is_no_tensor_is_refused_with_every_reason():
    step = ContextParallel().plan(patterns.causal(8))
    with pytest.raises(
        UnsupportedError, match="q must be a tensor, got NoneType; k must be a tensor, got list"
    ):
        attention(None, [1], torch.zeros(1, 8, 2, 4), step)


def test_what_is_no_plan_is_refused_by_type():
    with pytest.raises(PlanError, match="result must be a PlanResult or None, got int"):
        ContextParallel().plan(patterns.causal(8), result=3)


def test_a_rank_that_raises_stops_the_others_with_its_number():
    def one_fails(backend: ExchangeBackend) -> None:
        step = ContextParallel(backend=backend).plan(patterns.causal(32))
        if backend.rank == 1:
            raise RuntimeError("out of luck")
        x = torch.zeros(1, step.num_local_tokens, 1, 4)
        attention(x, x, x, step)

    with pytest.raises(RuntimeError, match="out of luck") as caught:
        loopback.run(2, one_fails)
    assert caught.value.__notes__ == ["raised in rank 1 of 2"]


def test_chunks_are_chosen_for_the_mask_where_no_size_is_given():
    def chosen(backend: ExchangeBackend, mask: ColumnMask) -> int:
        return ContextParallel(backend=backend).plan(mask).partition.chunk_size

    for mask in (patterns.full(2048), patterns.causal(2048)):
        assert loopback.run(2, lambda b, m=mask: chosen(b, m)) == 2 * [balanced_chunk_size(mask, num_ranks=2)]
    even, uneven = (balanced_chunk_size(m, num_ranks=2) for m in (patterns.full(2048), patterns.causal(2048)))
    assert even > uneven


def test_ranks_per_node_reaches_the_cluster():
    steps = loopback.run(4, lambda b: ContextParallel(backend=b, ranks_per_node=2).plan(patterns.causal(64)))
    assert steps[0].exchange.cluster == Cluster(4, 2)


def test_an_error_inside_the_block_reaches_the_other_ranks():
    def one_fails(backend: ExchangeBackend) -> None:
        with ContextParallel(backend=backend) as cp:
            step = cp.plan(patterns.causal(32))
            if cp.rank == 1:
                with pytest.raises(RuntimeError, match="out of luck"), cp:
                    raise RuntimeError("out of luck")
                return
            x = torch.zeros(1, step.num_local_tokens, 1, 4)
            with pytest.raises(ExchangeError, match="rank 1 stopped: RuntimeError: out of luck"):
                attention(x, x, x, step)

    loopback.run(2, one_fails)
