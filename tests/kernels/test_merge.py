"""Merging partial results over disjoint keys."""

from __future__ import annotations

import math

import pytest
import torch
from attention_compare import random_inputs
from attention_masks import MASKS
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fm3_core import UnsupportedError, patterns
from fm3_kernels import attention, attention_backward, attention_forward, merge

INF = math.inf


def part(value: float, lse: float) -> tuple[Tensor, Tensor]:
    """Return a partial result of one row and one head in float64."""
    return torch.full((1, 1, 1, 1), value).double(), torch.full((1, 1, 1), lse).double()


@pytest.mark.parametrize(
    ("first", "second", "out", "lse"),
    [
        ((1.0, 200.0), (3.0, -200.0), 1.0, 200.0),
        ((1.0, -200.0), (3.0, 200.0), 3.0, 200.0),
        ((0.0, -INF), (3.0, 5.0), 3.0, 5.0),
        ((3.0, -700.0), (0.0, -INF), 3.0, -700.0),
        ((0.0, -INF), (0.0, -INF), 0.0, -INF),
        ((1.0, 2.0), (3.0, 2.0), 2.0, 2.0 + math.log(2.0)),
        ((1.0, 1e30), (3.0, 1e30), 2.0, 1e30),
    ],
)
def test_two_parts(first: tuple[float, float], second: tuple[float, float], out: float, lse: float) -> None:
    merged_out, merged_lse = merge([part(*first), part(*second)])
    torch.testing.assert_close(merged_out, torch.full((1, 1, 1, 1), out).double())
    torch.testing.assert_close(merged_lse, torch.full((1, 1, 1), lse).double())


@pytest.mark.parametrize("lses", [(200.0, -200.0), (-INF, 5.0), (5.0, -INF), (-INF, -INF)])
def test_gradients_of_parts_are_never_nan(lses: tuple[float, float]) -> None:
    parts = [tuple(x.requires_grad_() for x in part(1.5, lse)) for lse in lses]
    out, lse = merge(parts)
    torch.autograd.backward([out, lse], [torch.ones_like(out), torch.ones_like(lse)])
    gradients = torch.stack([x.grad.flatten()[0] for pair in parts for x in pair])
    assert torch.isfinite(gradients).all()


@pytest.mark.parametrize("dlse", [1.0, math.nan])
def test_parts_that_saw_nothing_get_zero_gradients(dlse: float) -> None:
    parts = [tuple(x.requires_grad_() for x in part(0.0, -INF)) for _ in range(2)]
    out, lse = merge(parts)
    torch.autograd.backward([out, lse], [torch.ones_like(out), torch.full_like(lse, dlse)])
    assert [x.grad.item() for pair in parts for x in pair] == [0.0] * 4


def test_gradients_agree_with_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = [
        torch.randn(shape, generator=generator).double().requires_grad_()
        for shape in ((2, 3, 2, 4), (2, 2, 3)) * 3
    ]
    assert torch.autograd.gradcheck(lambda *x: merge(list(zip(x[::2], x[1::2], strict=True))), tensors)


@pytest.mark.parametrize("name", MASKS)
def test_splitting_the_keys_in_two_and_merging_equals_the_whole(name: str) -> None:
    mask = MASKS[name]
    inputs = random_inputs(mask, query_heads=4, kv_heads=2, dtype=torch.float64)
    q, k, v = (x.clone().requires_grad_() for x in (inputs.q, inputs.k, inputs.v))
    middle = mask.num_keys // 3
    whole = attention(q, k, v, mask, return_lse=True)
    halves = [
        attention(q, k[:, keys], v[:, keys], part_mask, return_lse=True)
        for keys, part_mask in (
            (slice(None, middle), mask.slice_keys(0, middle)),
            (slice(middle, None), mask.slice_keys(middle, mask.num_keys)),
        )
    ]
    merged = merge(halves)
    for mine, right in zip(merged, whole, strict=True):
        torch.testing.assert_close(mine, right)
    into = [inputs.dout, inputs.dlse]
    right_gradients = torch.autograd.grad(whole, [q, k, v], into)
    for mine, right in zip(torch.autograd.grad(merged, [q, k, v], into), right_gradients, strict=True):
        torch.testing.assert_close(mine, right)


@pytest.mark.parametrize("engine", ["tiled", "reference"])
def test_backward_of_some_keys_from_the_merged_result_is_their_part_of_the_whole(engine: str) -> None:
    mask = patterns.causal(50)
    x = random_inputs(mask, dtype=torch.float64)
    out, lse = attention_forward(x.q, x.k, x.v, mask)
    whole = attention_backward(x.dout, x.q, x.k, x.v, out, lse, mask, dlse=x.dlse)
    parts = [
        attention_backward(
            x.dout,
            x.q,
            x.k[:, start:end],
            x.v[:, start:end],
            out,
            lse,
            mask.slice_keys(start, end),
            dlse=x.dlse,
            engine=engine,
        )
        for start, end in ((0, 20), (20, 50))
    ]
    torch.testing.assert_close(parts[0][0] + parts[1][0], whole[0])
    for i in (1, 2):
        torch.testing.assert_close(torch.cat([parts[0][i], parts[1][i]], dim=1), whole[i])


@settings(max_examples=50, deadline=None)
@given(
    lses=st.lists(st.floats(-300, 300) | st.just(-INF), min_size=1, max_size=5),
    order=st.randoms(use_true_random=False),
)
def test_the_order_of_parts_matters_by_rounding_only(lses: list[float], order: object) -> None:
    parts = [part(float(i) if lse > -INF else 0.0, lse) for i, lse in enumerate(lses)]
    shuffled = order.sample(parts, len(parts))
    for mine, theirs in zip(merge(parts), merge(shuffled), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_one_part_is_itself() -> None:
    out, lse = merge([part(1.5, 3.25)])
    assert (out.item(), lse.item()) == (1.5, 3.25)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_parts_keep_their_dtype(dtype: torch.dtype) -> None:
    out, lse = part(1.5, 3.25)
    merged = merge([(out.to(dtype), lse.float())] * 2)
    assert (merged[0].dtype, merged[1].dtype) == (dtype, torch.float32)


def test_parts_that_do_not_fit_are_refused_with_every_reason() -> None:
    out, lse = part(1.0, 1.0)
    with pytest.raises(
        UnsupportedError, match=r"part 1's out must be like part 0's; part 1's lse must be"
    ) as error:
        merge([(out, lse), (out.float(), lse.float()), (out[0], lse)])
    assert "part 2 must be out [batch, rows, heads, dim]" in str(error.value)
    with pytest.raises(UnsupportedError, match="there are no parts"):
        merge([])


@pytest.mark.parametrize("parts", [[(1, 2)], [(torch.zeros(1, 2, 1, 3),)], [3]])
def test_parts_that_are_no_pairs_of_tensors_are_refused(parts):
    with pytest.raises(UnsupportedError, match=r"part 0 must be a pair of tensors \(out, lse\)"):
        merge(parts)
