"""`fm3 mask`: a mask's facts and its block map, printed and drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fm3_core import BlockMap
from fm3_core.check import require_int
from fm3_runtime.block_map_picture import block_map_lines, save_block_map
from fm3_runtime.cli.options import AsJson, Documents, Lengths, MaskName, read_mask
from fm3_runtime.cli.output import console, count, print_json
from fm3_runtime.named_masks import mask_names

BLOCKS_SHOWN = 32


def mask(
    name: MaskName = "causal_document",
    documents: Documents = None,
    glob: Annotated[str | None, typer.Option(help="Names of the files to take.")] = None,
    tokens: Annotated[
        int | None, typer.Option(help="Tokens of the sequence, 16384 by default.", min=1)
    ] = None,
    lengths: Lengths = None,
    block: Annotated[
        int | None,
        typer.Option(help="Rows and keys of a block. By default as many as show 32 x 32 blocks.", min=1),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Also draw the block map into this .png or .svg file.")
    ] = None,
    list_names: Annotated[bool, typer.Option("--list", help="List the masks by name, and stop.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a mask: density, FlashMask form, and which blocks a kernel skips, masks or takes whole.

    [bold]Examples[/]

    fm3 mask --lengths 2538,1742,3912

    fm3 mask --mask global_sliding_window --tokens 8192 --save window.png
    """
    if list_names:
        print_json({"masks": mask_names()}) if as_json else console.print("\n".join(mask_names()))
        return
    column_mask, chosen = read_mask(name, lengths, documents, glob, tokens)
    largest = max(column_mask.num_rows, column_mask.num_keys, 1)
    size = require_int("block", block or -(-largest // BLOCKS_SHOWN), minimum=1)
    blocks = BlockMap.from_mask(column_mask, size, size)
    indices, causal = column_mask.to_startend_row_indices()
    title = f"{name} over {count(len(chosen), 'document')}, {count(column_mask.num_rows, 'token')}"
    if save is not None:
        save_block_map(blocks, save, title)
    if as_json:
        print_json(
            {
                "mask": name,
                "lengths": list(chosen),
                "num_rows": column_mask.num_rows,
                "num_keys": column_mask.num_keys,
                "visible_pairs": column_mask.visible_pairs().tolist(),
                "density": column_mask.density,
                "fingerprint": column_mask.fingerprint,
                "startend_row_indices": {"vectors": indices.shape[-1], "causal": causal},
                "blocks": {
                    "size": size,
                    "empty": blocks.num_empty,
                    "partial": blocks.num_partial,
                    "full": blocks.num_full,
                },
                "saved": None if save is None else str(save),
            }
        )
        return
    console.print(f"[bold]{title}[/]")
    console.print(
        f"density {column_mask.density:.4f}, {int(column_mask.visible_pairs().sum()):,} visible pairs, "
        f"fingerprint {column_mask.fingerprint[:16]}"
    )
    console.print(
        f"FlashMask form: {count(indices.shape[-1], 'vector')}, {'causal' if causal else 'not causal'}"
    )
    console.print(
        f"blocks of {size} x {size}: {blocks.num_full} full, {blocks.num_partial} partial, "
        f"{blocks.num_empty} empty"
    )
    console.print()
    if blocks.kinds.shape[2] > 4 * BLOCKS_SHOWN:
        console.print(
            f"[dim]{blocks.kinds.shape[2]} rows of blocks are too many here: --save them or raise --block[/]"
        )
    else:
        for line in block_map_lines(blocks):
            console.print(line, no_wrap=True, crop=False)
        console.print("[dim]██ full  ▒▒ partial  ·· empty; rows down, keys across[/]")
    if save is not None:
        console.print(f"drawn into {save}", markup=False)
