"""Engines that the benchmark times: what an engine says of a cell, and those of other people."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fm3_kernels import DeviceMask, attention_backward, attention_forward, flex
from kernel.cell import Cell
from kernel.flex_masks import usual_mask_mod


@dataclass(frozen=True, kw_only=True)
class Passes:
    """What an engine does with one cell; masks are prepared before the clock starts.

    Args:
        forward: returns out [batch, rows, heads, dim] and lse [batch, heads, rows], or out alone.
        backward: returns dq, dk and dv from a forward pass made before; None where there is no backward.
        both: forward, then backward; None likewise.
        untimed: why a pass is not timed, by pass; a pass that is None must be there.
        blocks: rows and keys of a block by pass, where counts of blocks explain its time.
        repeats_bits: two backward passes must give the same bits.
        prepare: what is done once a mask, by what it makes; timed apart.
    """

    forward: Callable[[], object]
    backward: Callable[[], list[Tensor]] | None = None
    both: Callable[[], list[Tensor]] | None = None
    untimed: Mapping[str, str] = field(default_factory=dict)
    blocks: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    repeats_bits: bool = False
    prepare: Mapping[str, Callable[[], object]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Makes passes for cells.

    Args:
        passes: returns a cell's passes, or why there are none here.
        masks: the only masks that it has; None for all.
        most_tokens: longest sequence that it is timed on; None for any.
    """

    passes: Callable[[Cell], Passes | str]
    masks: tuple[str, ...] | None = None
    most_tokens: int | None = None

    def why_not(self, mask: str, tokens: int) -> str | None:
        """Return why a cell is not for this engine, before its tensors are drawn; None if it is."""
        if self.masks is not None and mask not in self.masks:
            return f"it has only {' and '.join(self.masks)}"
        if self.most_tokens is not None and tokens > self.most_tokens:
            return f"left out by size: it is timed up to {self.most_tokens} tokens"
        return None


def torch_engine(name: str) -> Callable[[Cell], Passes]:
    """Return an engine of fm3_kernels that runs on any device, by name."""

    def passes(cell: Cell) -> Passes:
        q, k, v = cell.q, cell.k, cell.v
        mask = DeviceMask.from_mask(cell.mask, q.device)

        def forward() -> tuple[Tensor, Tensor]:
            return attention_forward(q, k, v, mask, engine=name)

        def backward_of(out: Tensor, lse: Tensor) -> list[Tensor]:
            return list(attention_backward(cell.dout, q, k, v, out, lse, mask, engine=name))

        held = forward()
        return Passes(
            forward=forward, backward=lambda: backward_of(*held), both=lambda: backward_of(*forward())
        )

    return passes


def differentiated(cell: Cell, attend: Callable[..., Tensor]) -> Passes:
    """Return the passes of a function that torch differentiates; q, k, v and out have heads before rows."""
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

    return Passes(
        forward=forward, backward=backward_alone, both=lambda: backward(attend(*leaves), keep=False)
    )


def flex_attention(cell: Cell) -> Passes:
    """Return FlexAttention, compiled, with exact blocks and the mask's usual `mask_mod`."""
    from torch.nn.attention.flex_attention import flex_attention as attend

    torch._dynamo.reset()
    compiled = torch.compile(attend, dynamic=False)
    blocks = None
    if cell.name != "full":
        blocks = flex.to_block_mask(cell.mask, query_heads=cell.q.shape[2], device=cell.q.device)
        blocks.mask_mod = usual_mask_mod(cell.name, cell.tokens, cell.q.device) or blocks.mask_mod
    grouped = cell.q.shape[2] != cell.k.shape[2]
    return differentiated(cell, lambda q, k, v: compiled(q, k, v, block_mask=blocks, enable_gqa=grouped))


def cudnn(cell: Cell) -> Passes | str:
    """Return cuDNN's attention as torch calls it."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if not cell.q.is_cuda:
        return "it needs a CUDA device"

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=cell.name == "causal", enable_gqa=q.shape[1] != k.shape[1]
            )

    return differentiated(cell, attend)


PEERS = {
    "flex": Engine(passes=flex_attention),
    "cudnn": Engine(passes=cudnn, masks=("full", "causal")),
    "tiled": Engine(passes=torch_engine("tiled"), most_tokens=4096),
}


def external(name: str) -> Engine:
    """Return another engine, MODULE:FUNCTION; the function takes a Cell and returns Passes or why not.

    Raises:
        ValueError: the name is not of that form, or the module has no such function.
    """
    module, _, function = name.partition(":")
    if not function:
        raise ValueError(f"an external engine is named MODULE:FUNCTION, got {name!r}")
    passes = getattr(importlib.import_module(module), function, None)
    if not callable(passes):
        raise ValueError(f"module {module!r} has no function {function!r}")
    return Engine(passes=passes)
