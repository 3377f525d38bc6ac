"""What the command prints: tables and pictures on a console, or one JSON object."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fm3_core import Fm3Error


class OutputError(Fm3Error, ValueError):
    """A file that was asked for cannot be written."""


FILE_WIDTH = 120
"""Columns of what is not printed on a terminal."""

_on_terminal = sys.stdout is not None and sys.stdout.isatty()  # None where a caller has closed it
console = Console(highlight=False, width=None if _on_terminal else FILE_WIDTH)
messages = Console(stderr=True, highlight=False)


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object on standard output."""
    print(json.dumps(value, indent=2), flush=True)


def write_text(path: Path, text: str) -> None:
    """Write a file, or raise OutputError with its name and the reason."""
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}") from error


def print_error(message: str, as_json: bool) -> None:
    """Say in one sentence what is wrong: on standard error, or as a JSON object on standard output."""
    if as_json:
        print_json({"error": message})
    else:
        messages.print("[bold red]error:[/]", end=" ")
        messages.print(message, markup=False)


def new_table(*columns: str, text: tuple[str, ...] = ()) -> Table:
    """Return a table: the first column and those in `text` are left aligned, the others right aligned.

    Args:
        columns: headings.
        text: headings of columns that hold sentences, which wrap.
    """
    table = Table(header_style="bold", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        prose = column in text
        table.add_column(column, justify="right" if i and not prose else "left", no_wrap=not prose)
    return table


def bar(share: float, width: int = 20) -> str:
    """Draw a share of 1 as a bar of eighths of a character; more than 1 is cut."""
    eighths = round(max(0.0, min(share, 1.0)) * width * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(width)


def count(number: int, noun: str) -> str:
    """Write a number with its noun, in the plural unless it is 1."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_bytes(count: int) -> str:
    """Write a number of bytes with a binary unit."""
    if count < 1024:
        return f"{count} B"
    size = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size /= 1024
        if size < 1024 or unit == "TiB":
            break
    return f"{size:.1f} {unit}"


def format_seconds(seconds: float) -> str:
    """Write a duration with three digits."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s"
