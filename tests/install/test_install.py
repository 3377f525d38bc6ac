"""Installs of the source tree into an empty folder: with nvcc, without, with one too old, with an error."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEFT_OUT = shutil.ignore_patterns(".*", "benchmarks", "build", "docs", "tests", "__pycache__")
PACKAGES = {"fm3_core", "fm3_planner", "fm3_comm", "fm3_kernels", "fm3_runtime"}
NO_CUDA = "cmake.define.FM3_CUDA=OFF"

HAS_NVSHMEM = find_spec("nvidia") is not None and find_spec("nvidia.nvshmem") is not None
OVER_NVSHMEM = ["fm3_comm/_C"] if HAS_NVSHMEM else []

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc here")


@dataclass(frozen=True)
class Install:
    """What an install left in its target folder, and what it said."""

    target: Path
    log: str

    @property
    def extensions(self) -> list[str]:
        """Native files, below the target."""
        return [str(path.relative_to(self.target)) for path in sorted(self.target.rglob("*.so"))]

    def run(self, statement: str) -> str:
        """Run a statement with the installed packages before those of the environment."""
        # An editable install in the environment would come first by its own finder.
        lines = [
            "import sys",
            "sys.meta_path[:] = [f for f in sys.meta_path if 'ScikitBuild' not in type(f).__name__]",
            f"sys.path.insert(0, {str(self.target)!r})",
            statement,
        ]
        run = subprocess.run(
            [sys.executable, "-c", "\n".join(lines)],
            cwd=self.target,
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        return run.stdout.strip()


def install(source: Path, target: Path, *settings: str) -> tuple[int, Install]:
    """Run pip install as a user would, but with the dependencies and build tools that are here."""
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--verbose", "--no-deps", "--no-build-isolation"),
            *("--no-index", "--target", str(target)),
            *(f"--config-settings={setting}" for setting in settings),
            str(source),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    return run.returncode, Install(target, run.stdout + run.stderr)


def configure(
    build: Path, *definitions: str, cudacxx: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run CMake's configuration alone."""
    command = ["cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja", *definitions]
    place = [] if cudacxx is None else [f"CUDACXX={cudacxx}"]
    tools = f"PATH={Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    return subprocess.run(["env", tools, *place, *command], capture_output=True, text=True, check=False)


def configure_for_cuda(build: Path, *definitions: str) -> subprocess.CompletedProcess[str]:
    """Run CMake's configuration with this Python and its pybind11, as an install would."""
    import pybind11

    here = (f"-Dpybind11_DIR={pybind11.get_cmake_dir()}", f"-DPython_EXECUTABLE={sys.executable}")
    return configure(build, *here, *definitions, cudacxx=Path(str(shutil.which("nvcc"))))


@pytest.fixture(scope="module")
def without_cuda(tmp_path_factory: pytest.TempPathFactory) -> Install:
    folder = tmp_path_factory.mktemp("without_cuda")
    code, found = install(ROOT, folder / "target", NO_CUDA, f"build-dir={folder}/build")
    assert code == 0, found.log
    return found


@pytest.fixture
def old_nvcc(tmp_path: Path) -> Path:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.4, V12.4.131'\n")
    nvcc.chmod(0o755)
    return nvcc


@pytest.fixture
def copied_tree(tmp_path: Path) -> Path:
    return shutil.copytree(ROOT, tmp_path / "tree", ignore=LEFT_OUT)


@pytest.mark.slow
@needs_nvcc
def test_an_install_with_nvcc_has_the_extension_and_it_imports_without_a_gpu(tmp_path: Path):
    code, found = install(ROOT, tmp_path / "target")
    assert code == 0, found.log
    assert [path.split(".")[0] for path in found.extensions] == [
        *OVER_NVSHMEM,
        "fm3_comm/_shm",
        "fm3_kernels/_C",
        "fm3_planner/_C",
    ]
    assert found.run("import fm3_kernels._C as c; print(c.build_info()['architecture'])") == "90a"


@pytest.mark.slow
def test_an_install_without_cuda_compiles_plain_cpp_only_and_says_why(without_cuda: Install):
    assert [path.split(".")[0] for path in without_cuda.extensions] == [
        "fm3_comm/_shm",
        "fm3_planner/_C",
    ]
    assert "fm3_kernels._C is left out: FM3_CUDA=OFF" in without_cuda.log
    assert list((without_cuda.target.parent / "build").rglob("*.cu.o")) == []


@pytest.mark.slow
def test_an_install_without_cuda_has_all_five_packages_with_their_types(without_cuda: Install):
    assert {path.parent.name for path in without_cuda.target.rglob("py.typed")} == PACKAGES


@pytest.mark.slow
def test_an_install_without_cuda_computes_attention(without_cuda: Install):
    statement = """
import torch
from fm3_core import patterns
from fm3_kernels import attention
import fm3_kernels
q = torch.ones(1, 4, 1, 8)
print(fm3_kernels.__file__, attention(q, q, q, patterns.causal(4)).sum().item())
"""
    assert without_cuda.run(statement) == f"{without_cuda.target}/fm3_kernels/__init__.py 32.0"


@pytest.mark.slow
def test_an_installed_command_answers(without_cuda: Install):
    assert "attend" in without_cuda.run(
        "sys.argv = ['fm3', '--help']; from fm3_runtime.cli import main; main()"
    )


@pytest.mark.slow
@needs_nvcc
def test_a_compile_error_fails_the_install(copied_tree: Path, tmp_path: Path):
    bindings = copied_tree / "csrc" / "bindings" / "kernels.cpp"
    bindings.write_text(f"#error deliberate\n{bindings.read_text()}")
    code, found = install(copied_tree, tmp_path / "target")
    assert code != 0
    assert "deliberate" in found.log
    assert found.extensions == []


def test_an_nvcc_that_is_too_old_is_left_alone_with_its_version(tmp_path: Path, old_nvcc: Path):
    result = configure(tmp_path / "build", cudacxx=old_nvcc)
    assert result.returncode == 0, result.stderr
    assert f"is left out: nvcc 12.4.131 ({old_nvcc}) is older than 12.8" in " ".join(result.stdout.split())


def test_an_nvcc_that_is_not_there_is_left_alone(tmp_path: Path):
    result = configure(tmp_path / "build", cudacxx=tmp_path / "nowhere" / "nvcc")
    assert result.returncode == 0, result.stderr
    assert "is left out: " in result.stdout
    assert "nowhere" in result.stdout


def test_cuda_on_demand_fails_without_nvcc(tmp_path: Path, old_nvcc: Path):
    result = configure(tmp_path / "build", "-DFM3_CUDA=ON", cudacxx=old_nvcc)
    assert result.returncode != 0
    assert "FM3_CUDA=ON, but nvcc 12.4.131" in result.stderr


@needs_nvcc
def test_where_there_is_no_nvshmem_its_extension_is_left_out_with_the_way_to_get_it(tmp_path: Path):
    result = configure_for_cuda(tmp_path / "build", f"-DFM3_NVSHMEM={tmp_path}")
    assert result.returncode == 0, result.stderr
    assert f"fm3_comm._C is left out: {tmp_path} has no include/nvshmem.h" in " ".join(result.stdout.split())


@pytest.mark.skipif(not HAS_NVSHMEM, reason="the package nvidia-nvshmem-cu13 is not here")
@needs_nvcc
def test_where_nvshmem_is_its_extension_is_built_with_it(tmp_path: Path):
    result = configure_for_cuda(tmp_path / "build")
    assert result.returncode == 0, result.stderr
    assert "building fm3_comm._C with NVSHMEM" in result.stdout
