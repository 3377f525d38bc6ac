# One command each, from a fresh checkout: every target sets up what it needs in .venv first, once, and again
# only when the files that the set-up depends on have changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BUILD_TOOLS := cmake ninja pybind11 scikit-build-core
NATIVE := CMakeLists.txt $(shell find csrc cmake -type f 2>/dev/null)
CXX_FILES := $(shell find csrc -name '*.cpp' -o -name '*.cu' -o -name '*.h' -o -name '*.cuh')
TEST_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help install run test lint format bench clean

help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 20

# The tools that build the extensions come first: the project is then built with them, not in an isolated
# environment that would have to be downloaded anew each time.
$(VENV)/.tools: constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt pip $(BUILD_TOOLS)
	@touch $@

# pyproject.toml, constraints, C++ and CUDA; Python sources are not listed: an editable install follows them.
$(VENV)/.installed: $(VENV)/.tools pyproject.toml $(NATIVE)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation \
		--config-settings=build.verbose=false --editable '.[dev,plot]'
	@touch $@

install: $(VENV)/.installed ## set up .venv with everything that the other targets need

run: install ## attention over real documents (the standard library's sources), 16K tokens, 4 ranks
	$(BIN)/fm3 attend --tokens 16384 --ranks 4

# Two workers with one thread each: the suite is many small computations.
test: install ## every test that this machine can run; TEST_ARGS='-k mask' chooses
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal $(TEST_ARGS)

lint: install ## ruff, mypy --strict, import contracts, clang-format
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run --Werror $(CXX_FILES)

format: install ## rewrite Python and C++ sources in the project's format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(CXX_FILES)

bench: install ## every benchmark, one after the other
	@set -e; for bench in benchmarks/bench_*.py; do echo "== $$bench"; $(BIN)/python $$bench; done

clean: ## remove .venv, builds and caches
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
