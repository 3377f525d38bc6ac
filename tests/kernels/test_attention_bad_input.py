"""Bad input: one error that names the shapes and every reason."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from fm3_core import Fm3Error, UnknownNameError, UnsupportedError, patterns
from fm3_kernels import DeviceMask, attention, attention_backward, attention_forward, why_unsupported

MASK = patterns.causal(6, 5)


def tensors(**changes: object) -> dict[str, object]:
    """Return a call that fits, with changes."""
    call: dict[str, object] = {
        "q": torch.zeros(2, 6, 4, 8),
        "k": torch.zeros(2, 5, 2, 8),
        "v": torch.zeros(2, 5, 2, 3),
        "mask": MASK,
    }
    return call | changes


WRONG = [
    ({"q": torch.zeros(6, 4, 8)}, "q must be [batch, rows, query heads, dim], got rank 3"),
    ({"k": torch.zeros(2, 5, 2, 8, 1)}, "k must be [batch, keys, kv heads, dim], got rank 5"),
    ({"v": torch.zeros(2, 5, 2, 0)}, "v must have at least one head of at least one dim, got [2, 5, 2, 0]"),
    ({"q": torch.zeros(3, 6, 4, 8)}, "q, k and v must have one batch size, got 3, 2 and 2"),
    ({"v": torch.zeros(2, 4, 2, 3)}, "k has 5 keys, v has 4"),
    ({"v": torch.zeros(2, 5, 4, 3)}, "k has 2 heads, v has 4"),
    ({"k": torch.zeros(2, 5, 2, 16)}, "q has head dim 8, k has 16"),
    ({"q": torch.zeros(2, 6, 5, 8)}, "q's 5 heads are not a multiple of k's 2"),
    (
        {"k": torch.zeros(2, 5, 2, 8, dtype=torch.float64)},
        "q, k and v must have one dtype, got torch.float32, torch.float64 and torch.float32",
    ),
    (
        {"k": torch.zeros(2, 5, 2, 8, device="meta")},
        "q, k and v must be on one device, got cpu, meta and cpu",
    ),
    ({"q": np.zeros((2, 6, 4, 8))}, "q must be a tensor, got ndarray"),
    ({"mask": patterns.causal(7, 5)}, "the mask has 7 rows, q has 6"),
    ({"mask": patterns.causal(6, 4)}, "the mask has 4 keys, k has 5"),
    (
        {"mask": DeviceMask(*[torch.zeros(3, 1, 5, dtype=torch.int32)] * 4, num_rows=6)},
        "the mask's batch of 3 is neither 1 nor q's 2",
    ),
    (
        {"mask": DeviceMask(*[torch.zeros(1, 3, 5, dtype=torch.int32)] * 4, num_rows=6)},
        "the mask's 3 heads do not divide q's 4",
    ),
    ({"mask": DeviceMask.from_mask(MASK, "meta")}, "the mask is on meta, q on cpu"),
    ({"mask": torch.ones(6, 5, dtype=torch.bool)}, "mask must be a ColumnMask or a DeviceMask, got Tensor"),
    ({"softmax_scale": math.nan}, "softmax_scale must be a finite number or None, got nan"),
    ({"softmax_scale": math.inf}, "softmax_scale must be a finite number or None, got inf"),
    ({"softmax_scale": "1"}, "softmax_scale must be a finite number or None, got '1'"),
]


@pytest.mark.parametrize(("changes", "reason"), WRONG, ids=[reason for _, reason in WRONG])
def test_a_call_that_does_not_fit_is_refused_with_its_reason(changes: dict, reason: str) -> None:
    call = tensors(**changes)
    assert why_unsupported(**call) == [reason]
    for operation in (attention, attention_forward):
        with pytest.raises(UnsupportedError) as error:
            operation(**call)
        assert error.value.reasons == (reason,)
        assert str(error.value).startswith(f"{operation.__name__}(q ")


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.bool, torch.complex64], ids=str)
def test_inputs_that_are_not_floating_are_refused(dtype: torch.dtype) -> None:
    call = {name: x.to(dtype) for name, x in tensors().items() if isinstance(x, Tensor)}
    reasons = [f"{name} must be floating, got {dtype}" for name in ("q", "k", "v")]
    assert why_unsupported(**call, mask=MASK) == reasons
    with pytest.raises(UnsupportedError, match="q must be floating"):
        attention(**call, mask=MASK)


def test_every_reason_is_given_at_once_and_shapes_are_named() -> None:
    call = tensors(q=torch.zeros(2, 9, 5, 4), softmax_scale=-math.inf)
    with pytest.raises(UnsupportedError) as error:
        attention(**call)
    assert len(error.value.reasons) == 4
    assert "q [2, 9, 5, 4] float32 on cpu, k [2, 5, 2, 8] float32 on cpu, v [2, 5, 2, 3]" in str(error.value)
    assert "mask [1, 1, 6, 5]" in str(error.value)


def test_a_refusal_is_a_value_error_and_an_fm3_error() -> None:
    with pytest.raises(ValueError, match="got rank 3") as error:
        attention(**tensors(q=torch.zeros(6, 4, 8)))
    assert isinstance(error.value, Fm3Error)


def test_a_call_that_fits_has_no_reason_against_it() -> None:
    assert why_unsupported(**tensors(), softmax_scale=2, deterministic=True) == []


def test_a_mask_of_another_row_count_is_refused_and_not_cut() -> None:
    reasons = why_unsupported(**tensors(mask=patterns.causal(512, 384)))
    assert reasons == ["the mask has 512 rows, q has 6", "the mask has 384 keys, k has 5"]


def backward_call(**changes: object) -> dict[str, object]:
    """Return a backward call that fits, with changes."""
    fitting: dict[str, object] = {
        "dout": torch.zeros(2, 6, 4, 3),
        "out": torch.zeros(2, 6, 4, 3),
        "lse": torch.zeros(2, 4, 6),
    }
    return tensors() | fitting | changes


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dout": torch.zeros(2, 6, 4, 8)}, "dout must be [2, 6, 4, 3], got [2, 6, 4, 8]"),
        ({"out": torch.zeros(2, 6, 4, 3).int()}, "out must be floating, got torch.int32"),
        ({"lse": torch.zeros(2, 6, 4)}, "lse must be [2, 4, 6], got [2, 6, 4]"),
        ({"dlse": torch.zeros(1)}, "dlse must be [2, 4, 6], got [1]"),
        ({"dlse": 3.0}, "dlse must be a tensor, got float"),
        ({"dout": torch.zeros(2, 6, 4, 3, device="meta")}, "dout is on meta, q on cpu"),
        ({"q": torch.zeros(2, 6, 5, 8)}, "q's 5 heads are not a multiple of k's 2"),
    ],
)
def test_gradients_that_do_not_fit_are_refused(changes: dict, reason: str) -> None:
    with pytest.raises(UnsupportedError) as error:
        attention_backward(**backward_call(**changes))
    assert reason in error.value.reasons


def test_an_output_dtype_that_is_not_floating_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"out_dtype must be a floating torch dtype .* torch.int32"):
        attention_forward(**tensors(), out_dtype=torch.int32)


def test_a_host_mask_serves_tensors_of_any_device_without_reasons() -> None:
    q, k, v = (x.to("meta") for x in tensors().values() if isinstance(x, Tensor))
    assert why_unsupported(q, k, v, MASK, engine="tiled") == []


@pytest.mark.parametrize("engine", [3, None])
def test_what_is_no_engine_is_refused_with_the_known_names(engine):
    with pytest.raises(
        UnknownNameError, match=r"engine must be a name or an Engine, got .*'reference', 'tiled'"
    ):
        attention(**tensors(), engine=engine)


def test_sparse_tensors_are_refused():
    sparse = tensors(q=torch.zeros(2, 9, 4, 4).to_sparse())
    assert any(
        "q must be dense, got layout torch.sparse_coo" in reason for reason in why_unsupported(**sparse)
    )
