"""This project's Hopper kernels as engines: as they are, without an idea, of another build."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from fm3_kernels import DeviceMask, hopper_backward_ops, hopper_ops, why_unsupported
from fm3_kernels.backward_lists import BackwardLists, backward_lists, repeat_heads
from fm3_kernels.extension import load_extension
from fm3_kernels.hopper import forward_prepared
from fm3_kernels.hopper_backward import backward_prepared
from fm3_kernels.made_on import MadeOn
from fm3_kernels.prepared_mask import BLOCK_KEYS, BLOCK_ROWS, PreparedMask, prepared
from kernel.cell import Cell
from kernel.engines import Engine, Passes
from kernel_variants.edits import ANY_ORDER, VARIANTS

FORWARD_ALONE = {"backward": "a change of the forward kernel alone", "both": "the same"}


def fm3(cell: Cell) -> Passes | str:
    """Return the product's passes."""
    reasons = why_unsupported(cell.q, cell.k, cell.v, cell.mask, engine="hopper")
    if reasons:
        return "; ".join(reasons)
    q, k, v = cell.q, cell.k, cell.v
    mask = repeat_heads(
        DeviceMask.from_mask(cell.mask, q.device), query_heads=q.shape[2], kv_heads=k.shape[2]
    )
    arrays, lists = prepared(mask), backward_lists(mask, kv_heads=k.shape[2])
    scale = q.shape[3] ** -0.5
    held: list[tuple[Tensor, Tensor]] = []

    def forward() -> tuple[Tensor, Tensor]:
        return forward_prepared(q, k, v, arrays, softmax_scale=scale)

    def backward_of(out: Tensor, lse: Tensor) -> list[Tensor]:
        return list(backward_prepared(cell.dout, q, k, v, out, lse, arrays, lists, softmax_scale=scale))

    def backward() -> list[Tensor]:
        if not held:
            held.append(forward())
        return backward_of(*held[0])

    return Passes(
        forward=forward,
        backward=backward,
        both=lambda: backward_of(*forward()),
        blocks={
            "forward": (BLOCK_ROWS, BLOCK_KEYS),
            "backward": (hopper_backward_ops.BLOCK_ROWS, BLOCK_KEYS),
        },
        repeats_bits=True,
        prepare={
            "forward": lambda: PreparedMask.from_mask(mask),
            "backward": lambda: BackwardLists.from_prepared(arrays, kv_heads=k.shape[2]),
        },
    )


def any_order(cell: Cell) -> Passes | str:
    """Return the passes of a build whose sums of dQ come in any order."""
    made = fm3(cell)
    if isinstance(made, str):
        return made
    return replace(made, repeats_bits=False, untimed={"forward": "the same kernel as fm3's"})


def forward_only(
    cell: Cell,
    *,
    section_bytes: int | None = None,
    order: Callable[[Tensor], Tensor] | None = None,
    listed: bool = False,
) -> Passes | str:
    """Return the forward pass with something changed that it takes at run time.

    Args:
        cell: the problem.
        section_bytes: K and V of the heads that are worked on side by side, None for the product's.
        order: rearranges the row blocks' records of a mask head, [row blocks, 4], which come by falling work.
        listed: the map of blocks holds lists; only a variant of the kernel reads it so.
    """
    reasons = why_unsupported(cell.q, cell.k, cell.v, cell.mask, engine="hopper")
    if reasons:
        return "; ".join(reasons)
    mask = DeviceMask.from_mask(cell.mask, cell.q.device)
    arrays = _listed(mask) if listed else prepared(mask)
    if order is not None:
        records = torch.stack([order(head) for head in arrays.row_blocks.flatten(0, 1)])
        arrays = replace(arrays, row_blocks=records.view_as(arrays.row_blocks).contiguous())

    def forward() -> tuple[Tensor, Tensor]:
        with _sections(section_bytes):
            return forward_prepared(cell.q, cell.k, cell.v, arrays, softmax_scale=cell.q.shape[3] ** -0.5)

    return Passes(forward=forward, untimed=FORWARD_ALONE)


def _listed(mask: DeviceMask) -> PreparedMask:
    """Prepare a mask with lists of blocks, eight bytes for each, where a map of blocks to keep would be."""
    row_blocks, key_blocks = -(-mask.num_rows // BLOCK_ROWS), -(-mask.num_keys // BLOCK_KEYS)
    shape = (mask.batch, mask.heads, row_blocks, key_blocks * 8)
    lists = torch.empty(shape, dtype=torch.uint8, device=mask.device)
    columns, extrema, records = hopper_ops.prepare_mask(
        *(x.contiguous() for x in mask.vectors), lists, mask.num_rows, BLOCK_ROWS
    )
    return PreparedMask(
        columns=columns, extrema=extrema, row_blocks=records, keep=lists,
        num_rows=mask.num_rows, num_keys=mask.num_keys, made=MadeOn.now(mask.device),
    )  # fmt: skip


@contextmanager
def _sections(section_bytes: int | None) -> Iterator[None]:
    usual = hopper_ops._SECTION_BYTES
    hopper_ops._SECTION_BYTES = usual if section_bytes is None else section_bytes
    try:
        yield
    finally:
        hopper_ops._SECTION_BYTES = usual


def ascending(records: Tensor) -> Tensor:
    """Order row blocks as they lie in the sequence."""
    return records[records[:, 0].argsort()]


def of_build(directory: Path, make: Callable[[Cell], Passes | str]) -> Engine:
    """Return an engine that goes through another build of fm3_kernels._C.

    Raises:
        FileNotFoundError: the directory has none.
    """
    files = sorted(directory.glob("_C*.so"))
    if not files:
        raise FileNotFoundError(f"{directory} has no build of fm3_kernels._C")
    # A name of its own: pybind11 gives the module that it has made before to whoever asks for the same name.
    spec = importlib.util.spec_from_file_location(f"{directory.resolve().name}._C", files[0])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def passes(cell: Cell) -> Passes | str:
        made = _through(module, lambda: make(cell))()
        if isinstance(made, str):
            return made
        calls = {
            which: _through(module, call)
            for which in ("forward", "backward", "both")
            if (call := getattr(made, which)) is not None
        }
        prepare = {name: _through(module, call) for name, call in made.prepare.items()}
        return replace(made, **calls, prepare=prepare)

    return Engine(passes=passes)


def _through(module: ModuleType, call: Callable[[], object]) -> Callable[[], object]:
    def run() -> object:
        hopper_ops.load_extension = hopper_backward_ops.load_extension = lambda: module
        try:
            return call()
        finally:
            hopper_ops.load_extension = hopper_backward_ops.load_extension = load_extension

    return run


PRODUCT = {"fm3": Engine(passes=fm3)}

RUN_TIME_ABLATIONS = {
    "ascending": Engine(passes=lambda cell: forward_only(cell, order=ascending)),
    "sections_8_mib": Engine(passes=lambda cell: forward_only(cell, section_bytes=8 << 20)),
    "sections_128_mib": Engine(passes=lambda cell: forward_only(cell, section_bytes=128 << 20)),
    "no_sections": Engine(passes=lambda cell: forward_only(cell, section_bytes=1 << 60)),
}

LACKS = {
    "ascending": ("heaviest row blocks first", "row blocks in the order of the sequence"),
    "sections_8_mib": ("heads grouped for L2", "8 MiB of K and V side by side, where the kernel has 32"),
    "sections_128_mib": ("heads grouped for L2", "128 MiB of K and V side by side"),
    "no_sections": ("heads grouped for L2", "all heads side by side"),
    **{name: (variant.lacks, variant.instead) for name, variant in VARIANTS.items()},
}
"""What each ablation lacks and does instead, in the order of the tables."""


def ablations(variants: Path) -> tuple[dict[str, Engine], list[str]]:
    """Return the ablations that can be timed, and lines about those whose build is not in `variants`."""
    engines, absent = dict(RUN_TIME_ABLATIONS), []
    passes = {
        name: lambda cell, listed=variant.listed: forward_only(cell, listed=listed)
        for name, variant in VARIANTS.items()
    }
    for name, make in {**passes, ANY_ORDER.name: any_order}.items():
        try:
            engines[name] = of_build(variants / name, make)
        except (FileNotFoundError, ImportError) as failure:
            absent.append(f"{name}: {failure} (benchmarks/kernel_variants/build.py makes it)")
    return engines, absent
