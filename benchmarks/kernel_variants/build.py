"""Builds variants of the kernels, one extension a folder: bf16, head dim 128, forward unless backward varies.

Run: python benchmarks/kernel_variants/build.py [NAMES] [--out DIRECTORY] [--python PYTHON]
     python benchmarks/bench_kernel.py --ablations --variants DIRECTORY

"kept" is the forward kernel as it is, built the same way. Warnings, spills and serialised products fail a
build, as the product's do. A variant takes about a minute and a half on one core; `--jobs` at a time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import pybind11

from kernel_variants.edits import ANY_ORDER, CSRC, VARIANTS, Edit, Variant

KEPT = Variant(name="kept", lacks="nothing", instead="", predicted="", edits=())
CHOICES = {"kept": KEPT, **VARIANTS, ANY_ORDER.name: ANY_ORDER}
ONE_FORWARD = (
    Edit(
        "attention/instances/fwd_instances.cpp",
        """  return {&kFwdBf16Dim64,      &kFwdBf16Dim128,      &kFwdFp16Dim64,      &kFwdFp16Dim128,
          &kFwdBf16Dim64Float, &kFwdBf16Dim128Float, &kFwdFp16Dim64Float, &kFwdFp16Dim128Float};
""",
        "  return {&kFwdBf16Dim128};\n",
    ),
)
FORWARD_ALONE = (
    *ONE_FORWARD,
    Edit("bindings/kernels.cpp", '#include "bindings/backward.h"\n', ""),
    Edit("bindings/kernels.cpp", "  fm3::bindings::bind_backward(module);\n", ""),
)
ONE_BACKWARD = (
    *ONE_FORWARD,
    Edit(
        "attention/instances/bwd_instances.cpp",
        "{&kBwdBf16Dim64, &kBwdBf16Dim128, &kBwdFp16Dim64, &kBwdFp16Dim128}",
        "{&kBwdBf16Dim128}",
    ),
)
HOST_SOURCES = (
    "attention/instances/fwd_instances.cpp",
    "bindings/attention.cpp",
    "bindings/kernels.cpp",
    "host/tensor_map.cpp",
)
DEVICE_SOURCES = ("attention/instances/fwd_bf16_dim128.cu", "attention/mask_prepare.cu")
BACKWARD_SOURCES = (
    "attention/bwd_prepare.cu",
    "attention/bwd_rows.cu",
    "attention/instances/bwd_bf16_dim128.cu",
    "attention/instances/bwd_instances.cpp",
    "bindings/backward.cpp",
)
ARCHITECTURE = ("-gencode", "arch=compute_90a,code=sm_90a")
OPTIONS = (
    *("-std=c++20", "-O3", "-DNDEBUG", "-Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra,-Werror"),
    *("--Werror=all-warnings", "-Xptxas=--warning-as-error,--warn-on-spills", "--expt-relaxed-constexpr"),
    *('-DFM3_CUDA_ARCHITECTURE="90a"', '-DFM3_NVCC_VERSION="variant"'),
)


def main(arguments: list[str] | None = None) -> None:
    """Build what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(CHOICES), help=", ".join(CHOICES))
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "scratch/variants")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that will load them")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args(arguments)
    chosen = [CHOICES[name] for name in options.names]
    objects = options.out / "objects"
    includes = include_options(options.python)
    host = {}
    for backward, edits in ((False, FORWARD_ALONE), (True, ONE_BACKWARD)):
        if any(variant.backward == backward for variant in chosen):
            made = Variant(name="", lacks="", instead="", predicted="", edits=edits)
            shared = write_sources(made, objects / ("both" if backward else "forward"))
            host[backward] = [compile_source(shared, name, includes) for name in HOST_SOURCES]
    with ThreadPoolExecutor(options.jobs) as pool:
        for line in pool.map(
            lambda variant: build(variant, host[variant.backward], options.out, options.python), chosen
        ):
            print(line, flush=True)


def build(variant: Variant, host: list[Path], out: Path, python: str) -> str:
    """Build one variant and return a line about it."""
    tree = write_sources(variant, out / "objects" / variant.name)
    if variant.backward:
        write_sources(replace(variant, edits=(*ONE_BACKWARD, *variant.edits)), tree)
    names = (*DEVICE_SOURCES, *(BACKWARD_SOURCES if variant.backward else ()))
    device = [compile_source(tree, name, include_options(python)) for name in names]
    folder = out / variant.name
    folder.mkdir(parents=True, exist_ok=True)
    suffix = ask(python, "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))")
    extension = folder / f"_C{suffix}"
    run("nvcc", "-shared", *ARCHITECTURE, "-cudart", "static", "-o", extension, *host, *device)
    return f"{variant.name}: {extension}"


def write_sources(variant: Variant, folder: Path) -> Path:
    """Write csrc with a variant's edits and return the folder."""
    shutil.copytree(CSRC, folder, dirs_exist_ok=True)
    for file, text in variant.sources().items():
        (folder / file).write_text(text, encoding="utf-8")
    return folder


def compile_source(tree: Path, name: str, includes: list[str]) -> Path:
    """Compile one source of a tree and return its object; serialised products are refused."""
    made = tree / f"{name.replace('/', '_')}.o"
    guard = (sys.executable, CSRC.parent / "cmake" / "compile_cuda.py") if name.endswith(".cu") else ()
    run(*guard, "nvcc", *ARCHITECTURE, *OPTIONS, f"-I{tree}", *includes, "-c", tree / name, "-o", made)
    return made


def include_options(python: str) -> list[str]:
    """Return where headers of pybind11 and of the target's Python are."""
    headers = ask(python, "import sysconfig; print(sysconfig.get_paths()['include'])")
    return ["-isystem", pybind11.get_include(), "-isystem", headers]


def ask(python: str, question: str) -> str:
    """Return what a Python program prints."""
    return subprocess.run([python, "-c", question], check=True, capture_output=True, text=True).stdout.strip()


def run(*command: str | Path) -> None:
    """Run a command; its output is shown where it fails."""
    done = subprocess.run(
        [os.fspath(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}")


if __name__ == "__main__":
    main()
