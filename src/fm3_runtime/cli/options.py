"""Options that several verbs share, and the sequence that they describe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fm3_core import ColumnMask, MaskError
from fm3_runtime.named_masks import named_mask
from fm3_runtime.packing import DocumentError, PackedDocuments, pack_documents, standard_library

DEFAULT_TOKENS = 16384

Documents = Annotated[
    Path | None,
    typer.Option(
        help="Folder of text files, packed by bytes. By default the standard library's sources.",
        metavar="FOLDER",
    ),
]
Glob = Annotated[str, typer.Option(help="Names of the files to take from the folder.")]
Tokens = Annotated[int, typer.Option(help="Tokens of the sequence.", min=1)]
Lengths = Annotated[
    str | None, typer.Option(help="Document lengths, 2538,1742,3912 for example, instead of real documents.")
]
MaskName = Annotated[
    str, typer.Option("--mask", help="Name of the mask over the documents; `fm3 mask --list` lists them.")
]
Ranks = Annotated[int, typer.Option(help="Ranks that share the sequence.", min=1)]
RanksPerNode = Annotated[
    int | None, typer.Option(help="Ranks of a node. By default all are on one node.", min=1)
]
ChunkSize = Annotated[
    int | None, typer.Option(help="Tokens of the chunks that are placed. By default chosen.", min=1)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]


def read_documents(folder: Path | None, glob: str | None, tokens: int) -> PackedDocuments:
    """Return the documents of a folder, by default the standard library's Python sources."""
    if folder is None:
        return pack_documents(standard_library(), tokens, glob or "*.py")
    return pack_documents(folder, tokens, glob or "*")


def read_mask(
    name: str, lengths: str | None, folder: Path | None, glob: str | None, tokens: int | None
) -> tuple[ColumnMask, tuple[int, ...]]:
    """Return the mask called `name` and the document lengths that it was made over."""
    if lengths is None:
        chosen = read_documents(folder, glob, tokens or DEFAULT_TOKENS).lengths
    else:
        if folder is not None or glob is not None or tokens is not None:
            raise DocumentError("--lengths says everything: leave out --documents, --glob and --tokens")
        chosen = parse_lengths(lengths)
    return named_mask(name, chosen), chosen


def parse_lengths(text: str) -> tuple[int, ...]:
    """Return the integers of a comma-separated list."""
    lengths = []
    for i, part in enumerate(text.split(",")):
        try:
            lengths.append(int(part))
        except ValueError:
            raise MaskError(f"lengths[{i}] must be an integer, got {part!r} in {text!r}") from None
        if lengths[-1] < 0:
            raise MaskError(f"lengths[{i}] must be >= 0, got {lengths[-1]}")
    return tuple(lengths)
