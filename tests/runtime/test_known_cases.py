"""Inputs on which systems of this kind have failed, where no layer's own file has them; and neighbours."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fm3_comm import ExchangeBackend, loopback
from fm3_core import ColumnMask, patterns
from fm3_runtime import ContextParallel, attention

HIDDEN_BLOCKS = (1, 3)
BLOCK = 128


def _normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _without_key_blocks(mask: ColumnMask) -> ColumnMask:
    """Hide the keys of HIDDEN_BLOCKS from everybody."""
    block = np.arange(mask.num_keys) // BLOCK
    hidden = np.where(np.isin(block, HIDDEN_BLOCKS), mask.num_rows, 0)[None, None]
    nobody = ColumnMask(
        np.zeros_like(hidden), hidden, *np.zeros((2, *hidden.shape), int), num_rows=mask.num_rows
    )
    return mask & nobody


def _on_a_rank(
    backend: ExchangeBackend, mask: ColumnMask, q: torch.Tensor, kv: torch.Tensor
) -> list[torch.Tensor]:
    """Return out and the gradients of q, k and v in global order, the same on every rank."""
    step = ContextParallel(backend=backend, planner="striped", chunk_size=64).plan(mask)
    local = [step.scatter(x).clone().requires_grad_() for x in (q, kv, kv)]
    out = attention(*local, step, deterministic=True)
    gradients = torch.autograd.grad(out.square().sum(), local)
    return [step.gather(x) for x in (out.detach(), *gradients)]


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_gradients_with_key_blocks_that_nobody_sees_are_the_same_bits_every_time(num_ranks):
    mask = _without_key_blocks(patterns.causal_document([300, 724]))
    q, kv = _normal(1, 1024, 8, 16), _normal(1, 1024, 1, 16, seed=1)
    first, *others = [loopback.run(num_ranks, lambda b: _on_a_rank(b, mask, q, kv))[0] for _ in range(4)]
    assert all(torch.equal(x, y) for again in others for x, y in zip(first, again, strict=True))
    hidden = np.isin(np.arange(1024) // BLOCK, HIDDEN_BLOCKS)
    assert first[2][:, hidden].count_nonzero() == first[3][:, hidden].count_nonzero() == 0
    assert (first[2][:, ~hidden].abs().sum((0, 2, 3)) > 0).all()


def test_thousands_of_tiny_sequences_are_each_their_own():
    q = _normal(2840, 32, 16, 4)
    out = attention(q, q, q, patterns.causal(32))
    for entry in (0, 1, 1419, 2838, 2839):
        one = q[entry : entry + 1].double()
        exact = attention(one, one, one, patterns.causal(32), engine="reference")
        assert (out[entry : entry + 1] - exact).abs().max() < 1e-5


def test_two_equal_documents_in_zigzag_give_each_rank_both_heads_and_tails():
    mask = patterns.causal_document([8, 8])
    chunks = ((0, 1, 6, 7, 8, 9, 14, 15), (2, 3, 4, 5, 10, 11, 12, 13))

    class Zigzag:
        def assign(self, problem):
            return chunks

    def one_rank(backend: ExchangeBackend) -> tuple[list[int], torch.Tensor]:
        step = ContextParallel(backend=backend, planner=Zigzag(), chunk_size=1).plan(mask)
        x = step.scatter(_normal(1, 16, 2, 4).double())
        return step.position_ids().tolist(), step.gather(attention(x, x, x, step))

    whole = _normal(1, 16, 2, 4).double()
    exact = attention(whole, whole, whole, mask, engine="reference")
    visible = mask.to_dense()[0, 0].sum(axis=1)
    for rank, (tokens, out) in enumerate(loopback.run(2, one_rank)):
        assert tuple(tokens) == chunks[rank]
        assert visible[tokens].sum() == 36
        assert (out - exact).abs().max() < 1e-14


def test_a_poisoned_tail_behind_the_last_of_129_keys_changes_nothing():
    behind = torch.full((1, 300, 2, 8), torch.nan)
    behind[:, :129] = _normal(1, 129, 2, 8)
    view, alone = behind[:, :129], behind[:, :129].clone()
    results = [
        loopback.run(2, lambda b, x=x: _on_a_rank(b, patterns.causal(129), x, x))[0] for x in (view, alone)
    ]
    assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))
    assert all(x.isfinite().all() for x in results[0])


@pytest.mark.parametrize("scale", [0.7, -0.3])
@pytest.mark.parametrize("engine", ["tiled", "reference"])
def test_scale_and_engine_of_a_step_are_those_of_the_call_forward_and_backward(scale, engine):
    mask, x = patterns.causal_document([20, 13]), _normal(1, 33, 2, 4).double()

    def call(q: torch.Tensor, where: object) -> list[torch.Tensor]:
        q = q.clone().requires_grad_()
        out = attention(q, q, q, where, softmax_scale=scale, engine=engine)
        return [out.detach(), *torch.autograd.grad(out.square().sum(), q)]

    def one_rank(backend: ExchangeBackend) -> list[torch.Tensor]:
        step = ContextParallel(backend=backend, chunk_size=4).plan(mask)
        return [step.gather(y) for y in call(step.scatter(x), step)]

    for mine, whole in zip(loopback.run(3, one_rank)[0], call(x, mask), strict=True):
        assert (mine - whole).abs().max() < 1e-14 * whole.abs().max()
