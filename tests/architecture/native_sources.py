"""Rules about C++ and CUDA sources: who includes whom, where assembly stands, what a header needs."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

MAY_INCLUDE = {
    "ptx": {"ptx"},
    "tile": {"tile", "ptx"},
    "host": {"host"},
    "planner": {"planner"},
    "attention": {"attention", "tile", "ptx", "host"},
    "comm": {"comm", "tile", "ptx", "host"},
    "bindings": {"bindings", "attention", "comm", "planner", "host"},
}
SUFFIXES = (".h", ".cuh", ".cpp", ".cu")
_INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
_TORCH = re.compile(r"^(torch|ATen|c10|caffe2)/")
_ASM = re.compile(r"\b(asm|__asm__|__asm)\b")
_ENVIRONMENT = re.compile(r"\b(secure_)?getenv\b")
_COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\\n])*")', re.DOTALL)


def wrong_includes(csrc: Path) -> list[str]:
    """Return includes of a folder that the including one must not know, and those not written from csrc/."""
    found = []
    for path, text in _sources(csrc):
        for mark, name in _INCLUDE.findall(text):
            target = name.split("/")[0]
            own = mark == '"' or target in MAY_INCLUDE
            if own and target not in MAY_INCLUDE.get(path.parts[0], ()):
                found.append(f"{path}: {path.parts[0]} includes {name}")
    return found


def torch_headers(csrc: Path) -> list[str]:
    """Return includes of torch: bindings take addresses, sizes and a stream."""
    return [
        f"{path}: includes {name}"
        for path, text in _sources(csrc)
        for _, name in _INCLUDE.findall(text)
        if _TORCH.match(name)
    ]


def asm_outside_ptx(csrc: Path) -> list[str]:
    """Return files with assembly that are not under ptx/."""
    return [str(path) for path, text in _sources(csrc) if path.parts[0] != "ptx" and _ASM.search(_code(text))]


def environment_reads(csrc: Path) -> list[str]:
    """Return files that read environment variables."""
    return [str(path) for path, text in _sources(csrc) if _ENVIRONMENT.search(_code(text))]


def unparsable_headers(csrc: Path, *include: Path) -> list[str]:
    """Return what g++ says of each .h that it cannot read by itself."""
    folders = [f"-I{folder}" for folder in (csrc, *include)]
    found = []
    for path, _ in _sources(csrc, (".h",)):
        command = ["g++", "-std=c++20", "-fsyntax-only", "-x", "c++", *folders, str(csrc / path)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            found.append(f"{path}: {result.stderr}")
    return found


def cuda_include_folder() -> Path | None:
    """Return the folder of the CUDA headers, as nvcc tells it, or None where there is no nvcc."""
    try:
        answer = subprocess.run(
            ["nvcc", "--dryrun", "-x", "cu", "/dev/null"], capture_output=True, text=True, check=False
        ).stderr
    except FileNotFoundError:
        return None
    found = re.search(r'INCLUDES="-I([^"]+)"', answer)
    return Path(found[1]) if found else None


def _sources(csrc: Path, suffixes: tuple[str, ...] = SUFFIXES) -> Iterator[tuple[Path, str]]:
    """Yield path below csrc and text of every source."""
    for file in sorted(csrc.rglob("*")):
        if file.suffix in suffixes:
            yield file.relative_to(csrc), file.read_text(encoding="utf-8")


def _code(text: str) -> str:
    """Return the text without comments and strings."""
    return _COMMENT.sub(" ", text)
