"""Runs the Python blocks of a Markdown document, in order and in one namespace, and follows its links."""

from __future__ import annotations

import re
from pathlib import Path

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

_LINK = re.compile(r"\]\(([^)\s#]*)(?:#[^)\s]*)?\)")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def run_blocks(document: Path) -> int:
    """Run every block and return how many there were; the first that fails raises, with its line."""
    examples = list(Sybil(parsers=[PythonCodeBlockParser()]).parse(document).examples())
    for example in examples:
        example.evaluate()
    return len(examples)


def broken_links(document: Path) -> list[str]:
    """Return links to files that are not there; those to other sites are not followed."""
    targets = _LINK.findall(_CODE.sub("", document.read_text(encoding="utf-8")))
    return [
        target
        for target in targets
        if target and "://" not in target and not (document.parent / target).exists()
    ]
