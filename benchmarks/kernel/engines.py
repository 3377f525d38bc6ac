"""Engines that the benchmark times. An engine is a function of a cell that returns its passes."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from fm3_kernels import (
    DeviceMask,
    attention_backward,
    attention_forward,
    flex,
    hopper_backward_ops,
    hopper_ops,
)
from fm3_kernels.backward_lists import backward_lists
from fm3_kernels.extension import load_extension
from fm3_kernels.hopper import forward_prepared
from fm3_kernels.hopper_backward import backward_prepared
from fm3_kernels.prepared_mask import PreparedMask, prepared
from kernel.cell import Cell


@dataclass(frozen=True)
class Passes:
    """What an engine does with one cell; masks are prepared before the clock starts.

    Args:
        forward: returns out [batch, rows, heads, dim] and lse [batch, heads, rows], or out alone.
        backward: returns dq, dk and dv from a forward pass made before; None where there is no backward.
        block_rows: of forward, where blocks are counted; then backward's block_rows_back too.
        block_rows_back: of backward.
        block_keys: of both.
    """

    forward: Callable[[], object]
    backward: Callable[[], list[Tensor]] | None = None
    both: Callable[[], list[Tensor]] | None = None
    block_rows: int = 0
    block_rows_back: int = 0
    block_keys: int = 0


Engine = Callable[[Cell], "Passes | None"]


def fm3(
    cell: Cell,
    *,
    ordered: bool = False,
    section_bytes: int | None = None,
    order: Callable[[Tensor], Tensor] | None = None,
) -> Passes:
    """Return this project's kernels.

    Args:
        cell: the problem.
        ordered: backward is deterministic.
        section_bytes: K and V of the heads that are worked on side by side, None for the default.
        order: rearranges the row blocks' records of a mask head, [row blocks, 4], which come by falling work.
    """
    q, k, v = cell.q, cell.k, cell.v
    mask = DeviceMask.from_mask(cell.mask, q.device)
    arrays, lists = prepared(mask), backward_lists(mask, kv_heads=k.shape[2], deterministic=ordered)
    arrays = arrays if order is None else _reordered(arrays, order)
    scale = q.shape[3] ** -0.5

    def forward() -> tuple[Tensor, Tensor]:
        return forward_prepared(q, k, v, arrays, softmax_scale=scale)

    def backward_of(out: Tensor, lse: Tensor) -> list[Tensor]:
        return list(backward_prepared(cell.dout, q, k, v, out, lse, arrays, lists, softmax_scale=scale))

    def in_sections(call: Callable[[], object]) -> Callable[[], object]:
        def run() -> object:
            usual = hopper_ops._SECTION_BYTES
            hopper_ops._SECTION_BYTES = section_bytes
            try:
                return call()
            finally:
                hopper_ops._SECTION_BYTES = usual

        return call if section_bytes is None else run

    held: list[tuple[Tensor, Tensor]] = []

    def backward() -> list[Tensor]:
        if not held:
            held.append(forward())
        return backward_of(*held[0])

    return Passes(
        in_sections(forward), backward, lambda: backward_of(*forward()),
        block_rows=128, block_rows_back=hopper_backward_ops.BLOCK_ROWS, block_keys=hopper_ops.BLOCK_KEYS,
    )  # fmt: skip


def _reordered(mask: PreparedMask, order: Callable[[Tensor], Tensor]) -> PreparedMask:
    records = torch.stack([order(head) for head in mask.row_blocks.flatten(0, 1)])
    return replace(mask, row_blocks=records.view_as(mask.row_blocks).contiguous())


def ascending(records: Tensor) -> Tensor:
    """Order row blocks as they lie in the sequence."""
    return records[records[:, 0].argsort()]


def torch_engine(name: str) -> Engine:
    """Return an engine of fm3_kernels that runs on any device, by name."""

    def passes(cell: Cell) -> Passes:
        q, k, v = cell.q, cell.k, cell.v
        mask = DeviceMask.from_mask(cell.mask, q.device)

        def forward() -> tuple[Tensor, Tensor]:
            return attention_forward(q, k, v, mask, engine=name)

        def backward_of(out: Tensor, lse: Tensor) -> list[Tensor]:
            return list(attention_backward(cell.dout, q, k, v, out, lse, mask, engine=name))

        held = forward()
        return Passes(forward, lambda: backward_of(*held), lambda: backward_of(*forward()))

    return passes


def _differentiated(cell: Cell, attend: Callable[..., Tensor]) -> Passes:
    """Return an engine that torch differentiates; heads before rows."""
    leaves = [x.transpose(1, 2).detach().requires_grad_() for x in (cell.q, cell.k, cell.v)]
    dout = cell.dout.transpose(1, 2)
    held: list[Tensor] = []

    def backward(out: Tensor, keep: bool) -> list[Tensor]:
        return [x.transpose(1, 2) for x in torch.autograd.grad(out, leaves, dout, retain_graph=keep)]

    def backward_alone() -> list[Tensor]:
        if not held:
            held.append(attend(*leaves))
        return backward(held[0], keep=True)

    def forward() -> Tensor:
        with torch.no_grad():
            return attend(*leaves).transpose(1, 2)

    return Passes(forward, backward_alone, lambda: backward(attend(*leaves), keep=False))


def flex_attention(cell: Cell) -> Passes:
    """Return FlexAttention, compiled."""
    from torch.nn.attention.flex_attention import flex_attention as attend

    torch._dynamo.reset()
    compiled = torch.compile(attend, dynamic=False)
    blocks = None
    if cell.name != "full":
        blocks = flex.to_block_mask(cell.mask, query_heads=cell.q.shape[2], device=cell.q.device)
    grouped = cell.q.shape[2] != cell.k.shape[2]
    return _differentiated(cell, lambda q, k, v: compiled(q, k, v, block_mask=blocks, enable_gqa=grouped))


def cudnn(cell: Cell) -> Passes | None:
    """Return cuDNN's attention, which has two of the masks."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if cell.name not in ("full", "causal"):
        return None

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=cell.name == "causal", enable_gqa=q.shape[1] != k.shape[1]
            )

    return _differentiated(cell, attend)


ENGINES: dict[str, Engine] = {
    "fm3": fm3,
    "fm3 ordered": lambda cell: fm3(cell, ordered=True),
    "fm3 ascending": lambda cell: fm3(cell, order=ascending),
    "fm3 section 8 MiB": lambda cell: fm3(cell, section_bytes=8 << 20),
    "fm3 section 128 MiB": lambda cell: fm3(cell, section_bytes=128 << 20),
    "fm3 no sections": lambda cell: fm3(cell, section_bytes=1 << 60),
    "tiled": torch_engine("tiled"),
    "flex": flex_attention,
    "cudnn": cudnn,
}


def of_build(directory: Path, **options: object) -> Engine:
    """Return this project's engine through another build of fm3_kernels._C."""
    spec = importlib.util.spec_from_file_location("_C", next(directory.glob("_C*.so")))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def passes(cell: Cell) -> Passes:
        made: list[Passes] = []
        _through(module, lambda: made.append(fm3(cell, **options)))()  # type: ignore[arg-type]
        calls = {
            which: _through(module, getattr(made[0], which)) for which in ("forward", "backward", "both")
        }
        return replace(made[0], **calls)

    return passes


def _through(module: ModuleType, call: Callable[[], object]) -> Callable[[], object]:
    def run() -> object:
        hopper_ops.load_extension = hopper_backward_ops.load_extension = lambda: module
        try:
            return call()
        finally:
            hopper_ops.load_extension = hopper_backward_ops.load_extension = load_extension

    return run


def external(name: str) -> Engine:
    """Return another engine, MODULE:FUNCTION; the function takes a Cell and returns Passes or None."""
    module, function = name.split(":")
    engine: Engine = getattr(importlib.import_module(module), function)
    return engine
