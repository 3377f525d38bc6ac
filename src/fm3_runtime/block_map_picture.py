"""A block map as text for a terminal, and as a picture file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fm3_core import BlockMap
from fm3_runtime.picture import new_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CELLS = ("··", "▒▒", "██")
_COLOURS = ("#f2f2f2", "#f0a202", "#21618c")
_LABELS = ("empty: skipped", "partial: spans applied", "full: no mask applied")


def block_map_lines(blocks: BlockMap, batch: int = 0, head: int = 0) -> list[str]:
    """Return a line of text a row of blocks, two characters a block.

    Args:
        blocks: the map.
        batch: which batch entry.
        head: which mask head.
    """
    return ["".join(_CELLS[kind] for kind in row) for row in blocks.kinds[batch, head]]


def save_block_map(blocks: BlockMap, path: Path, title: str, batch: int = 0, head: int = 0) -> None:
    """Draw the map into a .png or .svg file; needs matplotlib, the extra `plot`.

    Args:
        blocks: the map.
        path: the file; its suffix is the format.
        title: written above.
        batch: which batch entry.
        head: which mask head.

    Raises:
        PictureError: another suffix, no matplotlib, or a file that cannot be written.
    """
    with new_picture(path, width=7, height=7.6) as figure:
        _draw(figure, blocks, np.asarray(blocks.kinds[batch, head]), title)


def _draw(figure: Figure, blocks: BlockMap, shown: NDArray[np.uint8], title: str) -> None:
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    axes = figure.add_subplot()
    axes.imshow(
        shown,
        cmap=ListedColormap(_COLOURS),
        vmin=0,
        vmax=2,
        interpolation="nearest",
        extent=(0, shown.shape[1] * blocks.block_keys, shown.shape[0] * blocks.block_rows, 0),
    )
    axes.set(
        title=f"{title}\nblocks of {blocks.block_rows} x {blocks.block_keys}",
        xlabel="key",
        ylabel="row",
        xlim=(0, blocks.num_keys),
        ylim=(blocks.num_rows, 0),
    )
    handles = [
        Patch(facecolor=c, edgecolor="0.5", label=label) for c, label in zip(_COLOURS, _LABELS, strict=True)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
