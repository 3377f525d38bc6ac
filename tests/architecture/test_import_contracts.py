"""The contracts of pyproject.toml can fail: import-linter is run on a copy of src with one line too many."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# An editable install finds the packages by a finder of its own, before the folders of sys.path; without it
# the copy is looked at.
LINT = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
sys.path.insert(0, "src")
from importlinter.cli import lint_imports
sys.exit(lint_imports(config_filename="pyproject.toml", no_cache=True, no_logo=True))
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LINT], cwd=folder, capture_output=True, text=True, check=False, timeout=120
    )


def add_line(folder: Path, path: str, line: str) -> None:
    file = folder / "src" / path
    file.write_text(f"{file.read_text() if file.exists() else ''}\n{line}\n")


def test_the_sources_keep_the_contracts(copy: Path):
    result = lint(copy)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("path", "line", "contract"),
    [
        ("fm3_core/mask.py", "import fm3_planner.cost", "shared nouns are in core"),
        ("fm3_comm/traffic.py", "import fm3_kernels.merge", "shared nouns are in core"),
        ("fm3_planner/lpt.py", "import torch", "Core and planner work without torch"),
        ("fm3_core/errors.py", "import fm3_core.mask", "Inside fm3_core"),
        ("fm3_core/in_no_layer.py", "", "Inside fm3_core"),
        ("fm3_planner/problem.py", "import fm3_planner.planning", "Inside fm3_planner"),
        ("fm3_comm/layout.py", "import fm3_comm.connect", "Inside fm3_comm"),
        ("fm3_kernels/device_mask.py", "import fm3_kernels.ops", "Inside fm3_kernels"),
        ("fm3_runtime/attention.py", "import fm3_runtime.cli.app", "Inside fm3_runtime"),
    ],
)
def test_a_line_that_breaks_a_contract_fails(copy: Path, path: str, line: str, contract: str):
    add_line(copy, path, line)
    result = lint(copy)
    assert result.returncode != 0
    assert f"{contract} BROKEN" in " ".join(result.stdout.split()), result.stdout
