from __future__ import annotations

from pathlib import Path

import pytest
from python_imports import eager_imports, environment_reads, wrong_imports

SRC = Path(__file__).parents[2] / "src"


def write(src: Path, path: str, text: str) -> None:
    file = src / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_packages_import_only_those_below_them():
    assert wrong_imports(SRC) == []


def test_heavy_things_load_on_use():
    assert eager_imports(SRC) == []


def test_no_source_reads_environment_variables():
    assert environment_reads(SRC) == []


@pytest.mark.parametrize(
    ("path", "text", "culprit"),
    [
        ("fm3_core/mask.py", "import fm3_planner.cost", "fm3_core imports fm3_planner.cost"),
        ("fm3_core/mask.py", "from torch import Tensor", "fm3_core imports torch"),
        ("fm3_planner/lpt.py", "def f():\n    import torch", "fm3_planner imports torch"),
        ("fm3_planner/lpt.py", "importlib.import_module('torch')", "fm3_planner imports torch"),
        ("fm3_planner/lpt.py", "from fm3_comm import x", "fm3_planner imports fm3_comm"),
        ("fm3_kernels/a/b.py", "from fm3_planner import plan", "fm3_kernels imports fm3_planner"),
        ("fm3_comm/a.py", "import fm3_kernels", "fm3_comm imports fm3_kernels"),
        ("fm3_comm/a.py", "from fm3_runtime import Step", "fm3_comm imports fm3_runtime"),
    ],
)
def test_an_import_that_breaks_the_layers_is_found(tmp_path: Path, path: str, text: str, culprit: str):
    write(tmp_path, "fm3_runtime/ok.py", "import torch, fm3_core, fm3_planner\nfrom fm3_kernels import merge")
    write(tmp_path, path, text)
    assert [line.split(": ", 1)[1] for line in wrong_imports(tmp_path)] == [culprit]


@pytest.mark.parametrize(
    "text",
    [
        "import pulp",
        "from ortools.sat import x",
        "try:\n    import matplotlib.pyplot\nexcept ImportError:\n    pass",
    ],
)
def test_a_heavy_import_at_load_is_found(tmp_path: Path, text: str):
    write(tmp_path, "fm3_planner/a.py", text)
    assert len(eager_imports(tmp_path)) == 1


@pytest.mark.parametrize("text", ["def f():\n    import pulp", "if TYPE_CHECKING:\n    import pulp"])
def test_a_heavy_import_on_use_is_allowed(tmp_path: Path, text: str):
    write(tmp_path, "fm3_planner/a.py", text)
    assert eager_imports(tmp_path) == []


@pytest.mark.parametrize(
    "text", ["import os\nos.environ['A']", "import os\nos.getenv('A')", "from os import environ"]
)
def test_a_read_of_the_environment_is_found(tmp_path: Path, text: str):
    write(tmp_path, "fm3_comm/a.py", text)
    assert len(environment_reads(tmp_path)) == 1
