"""Scatter, gather and position ids of a step, with their gradients."""

from __future__ import annotations

import pytest
import torch

from fm3_comm import ExchangeBackend, loopback
from fm3_core import PartitionError, UnsupportedError, patterns
from fm3_runtime import ContextParallel, Step

MASK = patterns.causal_document([13, 10])


def _step(backend: ExchangeBackend) -> Step:
    return ContextParallel(backend=backend, planner="striped", chunk_size=4).plan(MASK)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]
)
@pytest.mark.parametrize(
    ("shape", "dim"), [((23,), 0), ((2, 23), 1), ((2, 23, 3), -2), ((3, 2, 23), 2), ((23, 0), 0)]
)
def test_gather_undoes_scatter(dtype, shape, dim):
    x = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    for gathered in loopback.run(3, lambda b: _step(b).gather(_step(b).scatter(x, dim=dim), dim=dim)):
        assert gathered.dtype == dtype
        assert torch.equal(gathered, x)


def test_integers_of_all_sizes_survive_a_gather():
    x = torch.tensor([2**63 - 1, -(2**63), -1, 0] * 5 + [2**53 + 1] * 3)
    for gathered in loopback.run(2, lambda b: _step(b).gather(_step(b).scatter(x, dim=0), dim=0)):
        assert torch.equal(gathered, x)


def test_position_ids_are_the_global_tokens_of_each_rank():
    ids = loopback.run(3, lambda b: _step(b).position_ids())
    assert torch.equal(torch.cat(ids).sort().values, torch.arange(23))
    assert ids[1].tolist() == [4, 5, 6, 7, 16, 17, 18, 19]


def test_position_ids_are_a_copy():
    step = ContextParallel().plan(MASK)
    step.position_ids().zero_()
    assert torch.equal(step.position_ids(), torch.arange(23))


def test_three_dimensional_position_ids_scatter_along_dim_2():
    ids = torch.arange(23).expand(3, 2, 23)
    for local, positions in loopback.run(
        3, lambda b: (_step(b).scatter(ids, dim=2), _step(b).position_ids())
    ):
        assert torch.equal(local, positions.expand(3, 2, -1))


def test_the_gradient_of_scatter_is_in_place_with_zeros_elsewhere():
    def gradient(backend: ExchangeBackend) -> torch.Tensor:
        x = torch.ones(1, 23, 2, requires_grad=True)
        (_step(backend).scatter(x) * (backend.rank + 1)).sum().backward()
        return x.grad

    gradients = loopback.run(3, gradient)
    for rank, positions in enumerate(loopback.run(3, lambda b: _step(b).position_ids())):
        expected = torch.zeros(1, 23, 2)
        expected[:, positions] = rank + 1
        assert torch.equal(gradients[rank], expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_gradient_of_gather_is_the_sum_over_ranks(dtype):
    def gradient(backend: ExchangeBackend) -> tuple[torch.Tensor, torch.Tensor]:
        step = _step(backend)
        x = torch.ones(2, step.num_local_tokens, dtype=dtype, requires_grad=True)
        weights = torch.arange(23, dtype=dtype) * (backend.rank + 1)
        (step.gather(x) * weights).sum().backward()
        return x.grad, step.position_ids()

    for got, positions in loopback.run(3, gradient):
        assert torch.equal(got, (6 * positions).to(dtype).expand(2, -1))


def test_a_loss_that_every_rank_computes_is_divided_by_the_number_of_ranks():
    x = torch.linspace(-1, 1, 23, dtype=torch.float64)

    def gradient(backend: ExchangeBackend) -> torch.Tensor:
        step = _step(backend)
        held = x.clone().requires_grad_()
        whole = step.gather(step.scatter(held, dim=0), dim=0)
        (whole.square().sum() / step.num_ranks).backward()
        return held.grad

    assert torch.allclose(torch.stack(loopback.run(3, gradient)).sum(0), 2 * x)


def test_wrong_lengths_and_dims_name_shape_rank_and_dim():
    step = ContextParallel().plan(MASK)
    with pytest.raises(
        PartitionError,
        match=r"scatter on rank 0 of 1: x of shape \(2, 22\) must have 23 tokens along dim 1, got 22",
    ):
        step.scatter(torch.zeros(2, 22))
    with pytest.raises(
        PartitionError,
        match=r"gather on rank 0 of 1: x of shape \(5,\) must have 23 tokens along dim 0, got 5",
    ):
        step.gather(torch.zeros(5), dim=0)
    with pytest.raises(PartitionError, match=r"scatter: dim must be in -2\.\.1, got 2"):
        step.scatter(torch.zeros(2, 23), dim=2)


def test_masks_move_to_a_device_once():
    step = ContextParallel().plan(MASK)
    assert step.device_mask(torch.device("cpu")) is step.device_mask(torch.device("cpu"))


def test_plans_are_kept_by_meaning():
    cp = ContextParallel()
    first, second = cp.plan(MASK), cp.plan(patterns.causal_document([13, 10]))
    assert first.result is second.result
    assert cp.plan(patterns.full(23)).result is not first.result


def test_a_step_says_its_rank_and_share_in_one_line():
    text = repr(loopback.run(3, _step)[1])
    assert text.startswith("Step(rank=1 of 3, 8 of 23 tokens in chunks of 4, planner='striped', mask ")
    assert len(text) < 120


def test_what_is_no_tensor_is_refused_by_type():
    with pytest.raises(PartitionError, match="scatter: x must be a tensor, got int"):
        ContextParallel().plan(MASK).scatter(3)


def test_complex_tokens_are_refused_and_not_cut():
    with pytest.raises(UnsupportedError, match=r"floating, integer or bool, got torch\.complex64"):
        ContextParallel().plan(MASK).gather(torch.zeros(1, 23, dtype=torch.complex64))
