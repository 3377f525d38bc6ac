"""The public API: what packages export against what docs/api.md lists, and whether all of it is explained.

docs/api.md has one section `## <package>` for each package, with a table whose first column holds the public
names in backticks, one a row.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

_SECTION = re.compile(r"^## `?(\w+)`?\s*$")
_ROW = re.compile(r"^\|\s*`(\w+)[^`]*`\s*\|")


def documented_names(text: str) -> dict[str, list[str]]:
    """Return the names that each section's tables list in their first column."""
    names: dict[str, list[str]] = {}
    section: list[str] = []
    for line in text.splitlines():
        heading, row = _SECTION.match(line), _ROW.match(line)
        if heading:
            section = names.setdefault(heading[1], [])
        elif line.startswith("## "):
            section = []
        elif row:
            section.append(row[1])
    return names


def differences(package: ModuleType, documented: dict[str, list[str]]) -> list[str]:
    """Return how a package's `__all__` differs from its section."""
    listed = documented.get(package.__name__, [])
    public = list(package.__all__)
    return [
        *(f"{package.__name__}.{name} is not documented" for name in sorted(set(public) - set(listed))),
        *(
            f"{package.__name__}.{name} is documented, but not there"
            for name in sorted(set(listed) - set(public))
        ),
        *(
            f"{package.__name__}.{name} is listed twice"
            for name in sorted(_repeated(listed) | _repeated(public))
        ),
    ]


def undocumented(package: ModuleType) -> list[str]:
    """Return public names, and members of public classes and modules, without a docstring of their own."""
    explained = _explained_values(Path(inspect.getfile(package)).parent)
    return [
        f"{package.__name__}.{path}"
        for name in package.__all__
        for path, thing in _with_members(name, getattr(package, name))
        if not _has_docstring(path.split(".")[-1], thing, explained)
    ]


def _with_members(name: str, thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield a public thing and the public functions, classes and properties defined in it."""
    yield name, thing
    members = vars(thing) if inspect.isclass(thing) or inspect.ismodule(thing) else {}
    for member_name, member in members.items():
        plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        callable_here = (inspect.isfunction(plain) or inspect.isclass(plain)) and (
            not inspect.ismodule(thing) or plain.__module__ == thing.__name__
        )
        if not member_name.startswith("_") and (callable_here or _is_property(plain)):
            yield f"{name}.{member_name}", plain


def _has_docstring(name: str, thing: Any, explained: set[str]) -> bool:
    if inspect.isclass(thing) or inspect.isfunction(thing) or inspect.ismodule(thing) or _is_property(thing):
        text = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
        return bool(text) and not text.startswith(f"{name}(")  # a dataclass writes its signature there
    return name in explained


def _is_property(thing: Any) -> bool:
    return isinstance(thing, property) or type(thing).__name__ == "cached_property"


def _explained_values(folder: Path) -> set[str]:
    """Return names that some module of the package assigns and explains in the string that follows."""
    found = set()
    for file in folder.rglob("*.py"):
        body = ast.parse(file.read_text(encoding="utf-8")).body
        for statement, after in pairwise(body):
            targets = getattr(statement, "targets", [getattr(statement, "target", None)])
            if isinstance(statement, ast.Assign | ast.AnnAssign) and _is_text(after):
                found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def _is_text(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _repeated(names: list[str]) -> set[str]:
    return {name for name in names if names.count(name) > 1}
