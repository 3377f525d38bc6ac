"""The compiler's launcher refuses matrix products that the assembler serialises, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NVCC = ["nvcc", "-std=c++20", "-gencode", "arch=compute_90a,code=sm_90a", "-I", str(ROOT / "csrc"), "-c"]
TOUCHED_TOO_EARLY = """
#include "ptx/wgmma.cuh"
using namespace fm3::ptx;
__global__ void slow(float* x, uint32_t a) {
  float d[32];
  for (int i = 0; i < 32; ++i) d[i] = x[i];
  warpgroup_arrive();
  Wgmma<Element::kBf16, 64>::product_ss<true>(d, {a, 0}, {a, 1});
  WAIT
  for (int i = 0; i < 32; ++i) d[i] *= 2.0f;
  warpgroup_arrive();
  Wgmma<Element::kBf16, 64>::product_ss<true>(d, {a, 0}, {a, 1});
  warpgroup_commit();
  warpgroup_wait<0>();
  for (int i = 0; i < 32; ++i) x[i] = d[i];
}
"""


def launch(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "cmake" / "compile_cuda.py"), *command],
        capture_output=True,
        text=True,
        check=False,
    )


def compiler(folder: Path, says: str, code: int = 0) -> list[str]:
    """Return a command that writes an object, says something and exits."""
    script = folder / "compiler.py"
    script.write_text(
        "import pathlib, sys\n"
        "pathlib.Path(sys.argv[2]).write_text('object')\n"
        f"print({says!r})\nsys.exit({code})\n"
    )
    return [sys.executable, str(script), "-o", str(folder / "x.o")]


@pytest.mark.parametrize(
    "remark",
    [
        "ptxas info : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized",
        "ptxas info    : (C7517) warpgroup.wait is injected in around line 76 by compiler",
        "ptxas info    : (C7519) warpgroup.arrive is injected in around line 115 by compiler",
    ],
)
def test_a_remark_about_serialised_products_fails_and_leaves_no_object(tmp_path: Path, remark: str):
    done = launch(*compiler(tmp_path, remark))
    assert done.returncode == 1
    assert remark in done.stdout
    assert "serialises matrix products (1 remarks" in done.stdout
    assert not (tmp_path / "x.o").exists()


def test_other_words_pass_and_are_shown(tmp_path: Path):
    done = launch(*compiler(tmp_path, "ptxas info    : Used 168 registers, used 16 barriers"))
    assert (done.returncode, done.stdout) == (0, "ptxas info    : Used 168 registers, used 16 barriers\n")
    assert (tmp_path / "x.o").exists()


def test_a_compiler_that_fails_keeps_its_exit_code(tmp_path: Path):
    assert launch(*compiler(tmp_path, "error", code=3)).returncode == 3


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc here")
@pytest.mark.parametrize(
    ("wait", "code"),
    [("", 1), ("warpgroup_commit(); warpgroup_wait<0>(); pin(d);", 0)],
    ids=["too early", "after a wait"],
)
def test_products_whose_registers_are_touched(tmp_path: Path, wait: str, code: int):
    source = tmp_path / "kernel.cu"
    source.write_text(TOUCHED_TOO_EARLY.replace("WAIT", wait))
    done = launch(*NVCC, str(source), "-o", str(tmp_path / "kernel.o"))
    assert done.returncode == code, done.stdout
