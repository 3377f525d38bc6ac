"""Gradients of the Hopper engine against the float64 oracle, with poisoned memory and inputs noted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from attention_compare import RESULTS, Inputs, difference, plain_errors, random_inputs, run_engine
from launch_watchdog import note_input
from torch import Tensor

from fm3_core import ColumnMask, dense
from fm3_kernels import DeviceMask, attention_backward, attention_forward, why_unsupported
from fm3_kernels.backward_lists import BackwardLists
from fm3_kernels.hopper_backward import DoneFlags, backward_prepared
from fm3_kernels.prepared_mask import prepared

DTYPES = [torch.bfloat16, torch.float16]
DIMS = [64, 128]


def why_absent() -> list[str]:
    """Return why the Hopper engine does not run here."""
    if not torch.cuda.is_available():
        return ["no CUDA device here"]
    x = torch.zeros(1, 1, 1, 64, dtype=torch.bfloat16, device="cuda")
    return why_unsupported(x, x, x, columns(1, 1), engine="hopper")


def gpu_marks() -> list[pytest.MarkDecorator]:
    """Return the marks of a module of tests for that engine."""
    reasons = why_absent()
    return [pytest.mark.gpu, pytest.mark.skipif(bool(reasons), reason="; ".join(reasons) or "it runs here")]


@dataclass(frozen=True)
class Problem:
    """What a random problem is made from; its repr repeats it."""

    rows: int
    keys: int
    batch: int = 1
    kv_heads: int = 1
    group: int = 1  # query heads of a kv head
    dim: int = 128
    dtype: torch.dtype = torch.bfloat16
    scale: float | None = None
    seed: int = 0

    def inputs(self, mask: ColumnMask, *, seed: int | None = None) -> Inputs:
        """Return random inputs under a mask."""
        return random_inputs(
            mask,
            batch=self.batch,
            query_heads=self.kv_heads * self.group,
            kv_heads=self.kv_heads,
            dim=self.dim,
            value_dim=self.dim,
            dtype=self.dtype,
            scale=self.scale,
            seed=self.seed if seed is None else seed,
        )


def columns(rows: int, keys: int, lts=None, lte=None, uts=0, ute=0) -> ColumnMask:  # type: ignore[no-untyped-def]
    """Return a mask of one head from vectors or numbers; by default nothing is hidden."""
    ends = (rows if lts is None else lts, rows if lte is None else lte, uts, ute)
    return ColumnMask(*(np.broadcast_to(x, (1, 1, keys)).astype(np.int32) for x in ends), num_rows=rows)


def random_spans(rows: int, keys: int, heads: int, batch: int, style: str, seed: int) -> ColumnMask:
    """Return a mask of random spans, which overlap.

    Styles: "free", each column on its own; "runs", the same spans over runs of 97 columns, so that blocks are
    EMPTY and FULL too; "causal", a causal span beside a random one.
    """
    rng = np.random.default_rng(seed)
    spans = np.sort(rng.integers(0, rows + 1, (2, 2, batch, heads, keys)), axis=1).astype(np.int32)
    if style == "runs":
        spans = np.repeat(spans[..., ::97], 97, axis=-1)[..., :keys]
    (lts, lte), (uts, ute) = spans
    if style == "causal":
        uts = np.zeros_like(uts)
        ute = np.broadcast_to(np.clip(np.arange(keys) - (keys - rows), 0, rows), ute.shape).astype(np.int32)
    return ColumnMask(lts, lte, uts, ute, num_rows=rows)


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Let torch fill every tensor that is not initialised with NaN, or the largest integer."""
    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.utils.deterministic.fill_uninitialized_memory = before[1]


@contextmanager
def noted(what: str) -> Iterator[None]:
    """Run a block of launches; `what` is enough to repeat it."""
    note_input(what)
    yield


def on_gpu(inputs: Inputs) -> Inputs:
    """Return the same problem on the CUDA device."""
    tensors = {name: getattr(inputs, name).cuda() for name in ("q", "k", "v", "dout", "dlse")}
    return Inputs(**tensors, mask=inputs.mask, scale=inputs.scale)


def run_hopper(
    inputs: Inputs,
    what: str,
    *,
    num_ctas: int = 0,
    kv_grad_dtype: torch.dtype | None = None,
    done: DoneFlags | None = None,
) -> dict[str, Tensor]:
    """Return the engine's five results, on the device; inputs on the device, memory poisoned."""
    x = inputs
    mask = DeviceMask.from_mask(x.mask, "cuda")
    with noted(what), poisoned_memory():
        out, lse = attention_forward(x.q, x.k, x.v, mask, softmax_scale=x.scale, engine="hopper")
        if num_ctas == 0 and done is None:
            gradients = attention_backward(
                x.dout, x.q, x.k, x.v, out, lse, mask, dlse=x.dlse, softmax_scale=x.scale,
                engine="hopper", kv_grad_dtype=kv_grad_dtype,
            )  # fmt: skip
        else:
            arrays = prepared(mask)
            lists = BackwardLists.from_prepared(arrays, kv_heads=x.k.shape[2])
            gradients = backward_prepared(
                x.dout, x.q, x.k, x.v, out, lse, arrays, lists, dlse=x.dlse, num_ctas=num_ctas, done=done,
                kv_grad_dtype=kv_grad_dtype,
                softmax_scale=x.q.shape[3] ** -0.5 if x.scale is None else x.scale,
            )  # fmt: skip
        torch.cuda.synchronize()
    return dict(zip(RESULTS, (out, lse, *gradients), strict=True))


def assert_right(problem: Problem, mask: ColumnMask, what: str = "", **options: object) -> None:
    """Fail unless all results are as near to the oracle's as plain arithmetic, and exactly 0 where hidden."""
    inputs = problem.inputs(mask)
    what = f"{what} {problem} {options}"
    got = run_hopper(on_gpu(inputs), what, **options)  # type: ignore[arg-type]
    truth = run_engine(inputs.to(torch.float64), "reference")
    draws = [inputs, problem.inputs(mask, seed=problem.seed + 1000)]
    errors = [plain_errors(draw) for draw in draws]
    found = [
        difference(name, got[name].cpu(), truth[name], max(error[name] for error in errors))
        for name in RESULTS
    ]
    found += hidden_but_not_zero(inputs, got)
    assert [message for message in found if message] == [], what


def hidden_but_not_zero(inputs: Inputs, got: dict[str, Tensor]) -> list[str]:
    """Say which gradients of rows that see nothing, or of keys that nobody sees, are not exactly 0."""
    heads, kv_heads = inputs.q.shape[2], inputs.k.shape[2]
    seen = torch.tensor(dense.visible(inputs.mask)).repeat_interleave(heads // inputs.mask.heads, dim=1)
    seen = seen.expand(inputs.q.shape[0], -1, -1, -1)
    rows = seen.any(3).transpose(1, 2)
    keys = seen.any(2).unflatten(1, (kv_heads, -1)).any(2).transpose(1, 2)
    return [
        f"{name} of what is hidden from everybody is not exactly 0"
        for name, used in (("dq", rows), ("dk", keys), ("dv", keys))
        if (got[name].cpu()[~used] != 0).any()
    ]


def differing(
    first: dict[str, Tensor], again: dict[str, Tensor], names: Sequence[str] = RESULTS
) -> list[str]:
    """Return which results are not the same bits."""
    return [name for name in names if not torch.equal(first[name], again[name])]
