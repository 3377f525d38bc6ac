from __future__ import annotations

from pathlib import Path

import pytest
from file_shape import drawers, long_files

ROOT = Path(__file__).parents[2]


def test_no_file_is_longer_than_500_lines():
    assert long_files(ROOT) == []


def test_no_file_is_named_as_a_drawer():
    assert drawers(ROOT) == []


@pytest.mark.parametrize(
    "path", ["src/p/a.py", "csrc/ptx/a.cuh", "csrc/b.cu", "csrc/c.h", "csrc/d.cpp", "tests/e.py"]
)
def test_a_file_of_501_lines_is_found(tmp_path: Path, path: str):
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text("\n" * 501)
    (tmp_path / path).with_stem("fits").write_text("\n" * 500)
    assert long_files(tmp_path) == [f"{path}: 501 lines"]


@pytest.mark.parametrize("path", ["src/p/utils.py", "src/helpers/a.py", "csrc/common/a.h"])
def test_a_drawer_is_found(tmp_path: Path, path: str):
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).touch()
    assert drawers(tmp_path) == [path]
