"""A picture file: its format, the library that draws it, and what can go wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fm3_core import Fm3Error

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg")


class PictureError(Fm3Error, ValueError):
    """A picture cannot be drawn here, or not in that format."""


@contextmanager
def new_picture(path: Path, *, width: float, height: float) -> Iterator[Figure]:
    """Yield an empty figure and write it into a .png or .svg file afterwards; needs the extra `plot`.

    Args:
        path: the file; its suffix is the format.
        width: in inches.
        height: likewise.

    Raises:
        PictureError: another suffix, no matplotlib, or a file that cannot be written.
    """
    if path.suffix.lower() not in FORMATS:
        raise PictureError(f"a picture's name must end in {' or '.join(FORMATS)}, got {str(path)!r}")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PictureError(
            f"drawing needs matplotlib ({error}); install it by: pip install 'fm3[plot]'"
        ) from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    yield figure
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise PictureError(f"{path} cannot be written: {error.strerror}") from error
