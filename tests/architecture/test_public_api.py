from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from public_api import differences, documented_names, undocumented

API = Path(__file__).parents[2] / "docs" / "api.md"
PACKAGES = ("fm3_core", "fm3_planner", "fm3_comm", "fm3_kernels", "fm3_runtime")

GOOD = '''
"""A package."""
from dataclasses import dataclass
__all__ = ["Thing", "act", "things"]

@dataclass
class Thing:
    """A thing."""
    size: int

    @property
    def half(self):
        """Half the size."""

    @classmethod
    def make(cls):
        """Make one."""

    def _private(self): ...

def act():
    """Act."""

things = {}
"""All things."""
'''

MakePackage = Callable[[str], ModuleType]


@pytest.fixture
def make_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakePackage:
    def make(text: str) -> ModuleType:
        (tmp_path / "made_up_package").mkdir()
        (tmp_path / "made_up_package" / "__init__.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "made_up_package", raising=False)
        return importlib.import_module("made_up_package")

    return make


@pytest.mark.parametrize("package", PACKAGES)
def test_the_public_names_are_the_documented_ones(package: str):
    documented = documented_names(API.read_text(encoding="utf-8"))
    assert differences(importlib.import_module(package), documented) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_a_docstring(package: str):
    assert undocumented(importlib.import_module(package)) == []


def test_names_are_read_from_the_first_column_of_each_section():
    table = "| name | what |\n| --- | --- |\n"
    text = f"## one\n{table}| `a` | uses `b` |\n| `c(x)` | |\n## Else\n| `d` | |\n## `two`\n{table}| `e` | |"
    assert documented_names(text) == {"one": ["a", "c"], "two": ["e"], "Else": ["d"]}


def test_a_package_that_agrees_with_its_section_passes(make_package: MakePackage):
    package = make_package(GOOD)
    assert differences(package, {"made_up_package": ["Thing", "act", "things"]}) == []
    assert undocumented(package) == []


@pytest.mark.parametrize(
    ("listed", "difference"),
    [
        (["Thing", "act"], "made_up_package.things is not documented"),
        (["Thing", "act", "things", "gone"], "made_up_package.gone is documented, but not there"),
        (["Thing", "act", "things", "act"], "made_up_package.act is listed twice"),
    ],
)
def test_a_difference_from_the_documentation_is_found(
    make_package: MakePackage, listed: list[str], difference: str
):
    assert differences(make_package(GOOD), {"made_up_package": listed}) == [difference]


@pytest.mark.parametrize(
    ("docstring", "culprit"),
    [
        ('"""A thing."""', "Thing"),
        ('"""Half the size."""', "Thing.half"),
        ('"""Make one."""', "Thing.make"),
        ('"""Act."""', "act"),
        ('"""All things."""', "things"),
    ],
)
def test_a_missing_docstring_is_found(make_package: MakePackage, docstring: str, culprit: str):
    package = make_package(GOOD.replace(docstring, "..."))
    assert undocumented(package) == [f"made_up_package.{culprit}"]
