from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from native_sources import (
    asm_outside_ptx,
    cuda_include_folder,
    environment_reads,
    torch_headers,
    unparsable_headers,
    wrong_includes,
)

CSRC = Path(__file__).parents[2] / "csrc"
CUDA_INCLUDE = cuda_include_folder()
needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")


def write(csrc: Path, path: str, text: str) -> None:
    file = csrc / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_folders_include_only_those_below_them():
    assert wrong_includes(CSRC) == []


def test_no_source_includes_torch():
    assert torch_headers(CSRC) == []


def test_assembly_stands_under_ptx_only():
    assert asm_outside_ptx(CSRC) == []


def test_no_source_reads_environment_variables():
    assert environment_reads(CSRC) == []


@needs_gxx
@pytest.mark.skipif(CUDA_INCLUDE is None, reason="no nvcc here, so no CUDA headers")
def test_every_header_parses_with_gxx_alone():
    assert unparsable_headers(CSRC, CUDA_INCLUDE) == []


@pytest.mark.parametrize(
    ("path", "text", "culprit"),
    [
        ("ptx/a.cuh", '#include "tile/b.cuh"', "ptx includes tile/b.cuh"),
        ("tile/a.cuh", '#include "attention/b.h"', "tile includes attention/b.h"),
        ("attention/a.cu", '#include "comm/b.h"', "attention includes comm/b.h"),
        ("attention/a.cu", "#  include <bindings/b.h>", "attention includes bindings/b.h"),
        ("comm/a.cu", '#include "attention/b.h"', "comm includes attention/b.h"),
        ("host/a.cpp", '#include "attention/b.h"', "host includes attention/b.h"),
        ("bindings/a.cpp", '#include "ptx/b.cuh"', "bindings includes ptx/b.cuh"),
        ("attention/a.cu", '#include "neighbour.h"', "attention includes neighbour.h"),
        ("attention/a.cu", '#include "../host/b.h"', "attention includes ../host/b.h"),
        ("drawer/a.h", '#include "host/b.h"', "drawer includes host/b.h"),
    ],
)
def test_an_include_that_breaks_the_layers_is_found(tmp_path: Path, path: str, text: str, culprit: str):
    write(tmp_path, "attention/ok.cu", '#include <cuda.h>\n#include "tile/a.cuh"\n#include "host/error.h"\n')
    write(tmp_path, path, f"#pragma once\n{text}\n")
    assert wrong_includes(tmp_path) == [f"{path}: {culprit}"]


@pytest.mark.parametrize("header", ["torch/extension.h", "ATen/ATen.h", "c10/cuda/CUDAStream.h"])
def test_a_torch_header_is_found(tmp_path: Path, header: str):
    write(tmp_path, "bindings/a.cpp", f"#include <{header}>")
    assert torch_headers(tmp_path) == [f"bindings/a.cpp: includes {header}"]


@pytest.mark.parametrize(
    "text", ['asm volatile("bar.sync 0;");', '  asm("exit;" ::: "memory");', '__asm__("x");']
)
def test_assembly_elsewhere_is_found(tmp_path: Path, text: str):
    write(tmp_path, "ptx/ok.cuh", text)
    write(tmp_path, "tile/a.cuh", f"void f() {{ {text} }}")
    assert asm_outside_ptx(tmp_path) == ["tile/a.cuh"]


def test_the_word_asm_in_a_comment_or_a_string_is_allowed(tmp_path: Path):
    write(tmp_path, "tile/a.cuh", '// asm is under ptx\n/* asm */ const char* s = "no asm here";')
    assert asm_outside_ptx(tmp_path) == []


def test_a_read_of_the_environment_is_found(tmp_path: Path):
    write(tmp_path, "host/a.cpp", 'auto x = std::getenv("A");')
    assert environment_reads(tmp_path) == ["host/a.cpp"]


@needs_gxx
def test_a_header_that_needs_nvcc_or_another_header_is_found(tmp_path: Path):
    write(tmp_path, "host/a.h", "#include <cstdint>\ninline int32_t f() { return 1; }")
    write(tmp_path, "host/b.h", "__device__ int f();")
    write(tmp_path, "host/c.h", "inline std::vector<int> f();")
    found = unparsable_headers(tmp_path)
    assert [text.split(":")[0] for text in found] == ["host/b.h", "host/c.h"]
