"""Rules about what Python sources import and read, checked on their syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

MAY_IMPORT = {
    "fm3_core": frozenset(),
    "fm3_planner": frozenset({"fm3_core"}),
    "fm3_comm": frozenset({"fm3_core"}),
    "fm3_kernels": frozenset({"fm3_core"}),
    "fm3_runtime": frozenset({"fm3_core", "fm3_planner", "fm3_comm", "fm3_kernels"}),
}
WITHOUT_TORCH = frozenset({"fm3_core", "fm3_planner"})
LOADED_ON_USE = frozenset({"ortools", "pulp", "matplotlib", "nvshmem"})
ENVIRONMENT = frozenset({"environ", "environb", "getenv", "getenvb"})


def wrong_imports(src: Path) -> list[str]:
    """Return imports, wherever in a file, of a package that the importing one must not know, or of torch."""
    found = []
    for package, path, tree in _trees(src):
        forbidden = set(MAY_IMPORT) - MAY_IMPORT[package] - {package}
        if package in WITHOUT_TORCH:
            forbidden.add("torch")
        found += [
            f"{path}:{line}: {package} imports {name}"
            for line, name in _imports(ast.walk(tree))
            if name.split(".")[0] in forbidden
        ]
    return found


def eager_imports(src: Path) -> list[str]:
    """Return imports of heavy, optional things that run when the module is loaded."""
    return [
        f"{path}:{line}: {name} is imported with the module, not on use"
        for _, path, tree in _trees(src)
        for line, name in _imports(_at_load(tree))
        if name.split(".")[0] in LOADED_ON_USE
    ]


def environment_reads(src: Path) -> list[str]:
    """Return uses of environment variables: a result is a function of its arguments."""
    found = []
    for _, path, tree in _trees(src):
        for node in ast.walk(tree):
            attribute = isinstance(node, ast.Attribute) and node.attr in ENVIRONMENT
            imported = isinstance(node, ast.ImportFrom) and node.module == "os"
            if attribute or (imported and any(alias.name in ENVIRONMENT for alias in node.names)):
                found.append(f"{path}:{node.lineno}: reads the environment")
    return found


def _trees(src: Path) -> Iterator[tuple[str, Path, ast.Module]]:
    """Yield package, path below src, and syntax tree of every source."""
    for file in sorted(src.rglob("*.py")):
        path = file.relative_to(src)
        yield path.parts[0], path, ast.parse(file.read_text(encoding="utf-8"), filename=str(path))


def _imports(nodes: Iterator[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of what the nodes import, import_module("name") among them."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from ((node.lineno, arg.value) for arg in node.args[:1] if isinstance(arg, ast.Constant))


def _at_load(node: ast.AST) -> Iterator[ast.AST]:
    """Walk what runs when a module is loaded: all but the bodies of functions and of `if TYPE_CHECKING`."""
    yield node
    for child in ast.iter_child_nodes(node):
        function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        typing_only = isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")
        if not function and not typing_only:
            yield from _at_load(child)
