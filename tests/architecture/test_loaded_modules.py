from __future__ import annotations

from pathlib import Path

import pytest
from loaded_modules import loaded

SOLVERS = {"ortools", "pulp", "z3"}
PICTURES = {"matplotlib", "PIL"}


@pytest.mark.parametrize("package", ["fm3_core", "fm3_planner"])
def test_the_numpy_packages_load_neither_torch_nor_a_solver(package: str):
    assert loaded(f"import {package}", {"torch", "rich", "typer"} | SOLVERS | PICTURES) == []


@pytest.mark.parametrize("package", ["fm3_kernels", "fm3_comm", "fm3_runtime"])
def test_the_torch_packages_load_no_solver_and_no_picture_library(package: str):
    assert loaded(f"import {package}", SOLVERS | PICTURES) == []


def test_the_help_of_the_command_loads_no_solver_and_no_picture_library():
    statement = "sys.argv = ['fm3', '--help']\nfrom fm3_runtime.cli import main\nmain()"
    assert loaded(statement, SOLVERS | PICTURES) == []


def test_a_package_that_loads_a_solver_is_found(tmp_path: Path):
    (tmp_path / "made_up.py").write_text("import heavy_solver")
    (tmp_path / "heavy_solver.py").touch()
    assert loaded("import made_up", {"heavy_solver", "torch"}, path=tmp_path) == ["heavy_solver"]


def test_a_package_that_does_not_import_is_no_silent_pass():
    with pytest.raises(AssertionError, match="no_such_package"):
        loaded("import no_such_package", SOLVERS)
