"""Real documents, read from a folder and packed by bytes into one sequence."""

from __future__ import annotations

import stat
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fm3_core import Fm3Error
from fm3_core.check import require_int


class DocumentError(Fm3Error, ValueError):
    """A folder of documents cannot be read, or holds no text."""


@dataclass(frozen=True, kw_only=True)
class PackedDocuments:
    """Whole documents one after another, one token a byte; the last one may be cut to fill the sequence.

    Args:
        tokens: the bytes, uint8 [num_tokens].
        lengths: tokens of each document, in order.
        names: path of each document inside its folder.
        skipped: files that were left out, each with the reason.
    """

    tokens: NDArray[np.uint8]
    lengths: tuple[int, ...]
    names: tuple[str, ...]
    skipped: tuple[str, ...]


def standard_library() -> Path:
    """Return the folder of the running Python's standard library, whose sources every machine has."""
    return Path(sysconfig.get_paths()["stdlib"])


def pack_documents(folder: str | Path, num_tokens: int, pattern: str = "*") -> PackedDocuments:
    """Fill a sequence with a folder's text files in the order of their names, folders inside it included.

    Binary files (a NUL byte, or not UTF-8), empty ones and unreadable ones are left out and listed, and so
    are pipes, devices and links to folders that are read already: a folder's text counts once.

    Args:
        folder: where the documents are.
        num_tokens: tokens of the sequence; what the last document has beyond it is cut off.
        pattern: names of the files, as a glob.

    Raises:
        DocumentError: no such folder, it cannot be listed, or it holds too little text.
    """
    folder = Path(folder)
    num_tokens = require_int("num_tokens", num_tokens, minimum=1, error=DocumentError)
    texts: list[bytes] = []
    names: list[str] = []
    skipped: list[str] = []
    filled = 0
    _require_folder(folder)
    for path in _files(folder, pattern, skipped, set()):
        name = path.relative_to(folder).as_posix()
        try:
            text = path.read_bytes()
        except OSError as error:
            skipped.append(f"{name}: {error.strerror}")
            continue
        reason = _why_not_text(text)
        if reason:
            skipped.append(f"{name}: {reason}")
            continue
        texts.append(text[: num_tokens - filled])
        names.append(name)
        filled += len(texts[-1])
        if filled == num_tokens:
            break
    if filled < num_tokens:
        left_out = f"; {len(skipped)} files were left out, the first is {skipped[0]}" if skipped else ""
        raise DocumentError(
            f"{folder} holds {filled} bytes of text in {len(names)} files named {pattern!r}, "
            f"{num_tokens} tokens were asked for{left_out}"
        )
    return PackedDocuments(
        tokens=np.frombuffer(b"".join(texts), dtype=np.uint8),
        lengths=tuple(len(text) for text in texts),
        names=tuple(names),
        skipped=tuple(skipped),
    )


def _files(folder: Path, pattern: str, skipped: list[str], entered: set[tuple[int, int]]) -> Iterator[Path]:
    """Yield the files below `folder` in the order of their names; what cannot be read goes into `skipped`.

    Args:
        folder: where to look.
        pattern: names of the files, as a glob.
        skipped: gets a line for each folder or entry that is left out.
        entered: (device, inode) of the folders entered so far, this one is added: links may form a circle.
    """
    try:
        status = folder.stat()
        entries = sorted(folder.iterdir())
    except OSError as error:
        skipped.append(f"{folder}: {error.strerror}")
        return
    if (status.st_dev, status.st_ino) in entered:
        skipped.append(f"{folder}: a link to a folder that is read already")
        return
    entered.add((status.st_dev, status.st_ino))
    for entry in entries:
        try:
            mode = entry.stat().st_mode
        except OSError as error:
            skipped.append(f"{entry}: {error.strerror}")
            continue
        if stat.S_ISDIR(mode):
            yield from _files(entry, pattern, skipped, entered)
        elif fnmatch(entry.name, pattern):
            if stat.S_ISREG(mode):
                yield entry
            else:
                skipped.append(f"{entry}: no regular file")


def _require_folder(folder: Path) -> None:
    if not folder.is_dir():
        kind = "is not a folder" if folder.exists() else "does not exist"
        raise DocumentError(f"{folder} {kind}")
    try:
        next(folder.iterdir(), None)
    except OSError as error:
        raise DocumentError(f"{folder} cannot be read: {error.strerror}") from error


def _why_not_text(text: bytes) -> str | None:
    if not text:
        return "empty"
    if b"\0" in text:
        return "binary (it holds a NUL byte)"
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"binary (not UTF-8 at byte {error.start})"
    return None
