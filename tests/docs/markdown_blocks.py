"""Runs the Python blocks of a Markdown document, in order and in one namespace, and follows its links."""

from __future__ import annotations

import ast
import io
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from itertools import takewhile
from pathlib import Path

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

_LINK = re.compile(r"\]\(([^)\s#]*)(?:#[^)\s]*)?\)")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def run_blocks(document: Path) -> int:
    """Run every block and return how many there were; the first that fails raises, with its line.

    Comment lines right behind a statement that prints are what it prints: each such run of lines must be in
    the output, behind the one before; "..." stands for anything.
    """
    examples = list(Sybil(parsers=[PythonCodeBlockParser()]).parse(document).examples())
    for example in examples:
        with redirect_stdout(io.StringIO()) as printed:
            example.evaluate()
        _compare(f"{document}:{example.line}", str(example.parsed), printed.getvalue())
    return len(examples)


def shown_outputs(source: str) -> Iterator[str]:
    """Yield what the comments behind each printing statement of a block say that it prints."""
    lines = source.splitlines()
    for statement in ast.parse(source).body:
        assert statement.end_lineno is not None
        comments = list(takewhile(lambda line: re.match("#( |$)", line), lines[statement.end_lineno :]))
        if comments and any(_is_print(node) for node in ast.walk(statement)):
            yield "\n".join(comment[2:] for comment in comments)


def _is_print(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"


def _compare(where: str, source: str, printed: str) -> None:
    output = "\n".join(line.rstrip() for line in printed.splitlines())
    start = 0
    for shown in shown_outputs(source):
        pattern = ".*".join(re.escape(part) for part in shown.split("..."))
        found = re.compile(rf"^{pattern}$", re.MULTILINE | re.DOTALL).search(output, start)
        assert found, f"{where}: the block shows\n{shown}\nbut prints\n{output[start:]}"
        start = found.end()


def broken_links(document: Path) -> list[str]:
    """Return links to files that are not there; those to other sites are not followed."""
    targets = _LINK.findall(_CODE.sub("", document.read_text(encoding="utf-8")))
    return [
        target
        for target in targets
        if target and "://" not in target and not (document.parent / target).exists()
    ]
