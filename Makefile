# Everything sets itself up: `make test` and `make demo` work on a fresh clone as one command and are quick the second time.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH ?= torch==2.13.0
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
READY := $(VENV)/.ready
# The tests of a file, or of a class, run in one process.
PARALLEL := --numprocesses auto --maxprocesses 4 --dist loadscope

.DEFAULT_GOAL := help
.PHONY: help setup lint types docs test test-fast demo chaos bench format clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(READY)  ## make the virtual environment

# FFCV is compiled when it is installed, against OpenCV and libturbojpeg; whoever may install Debian's packages gets them.
SYSTEM := libopencv-dev libturbojpeg0-dev pkg-config
ASROOT := $(shell test "$$(id -u)" = 0 || echo sudo)

# torch goes first and by itself, so that its build is chosen once and every later package takes it as it is.
# Where the default index has only the build with CUDA:  make TORCH='torch --index-url https://download.pytorch.org/whl/cpu'
$(READY): pyproject.toml
	@pkg-config --exists opencv4 libturbojpeg || \
	  { $(ASROOT) apt-get update -qq && DEBIAN_FRONTEND=noninteractive $(ASROOT) apt-get install -y -qq $(SYSTEM); } >/dev/null || \
	  { echo "FFCV needs OpenCV and libturbojpeg to be compiled. Install $(SYSTEM) or what your system calls them."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(PIP) install $(TORCH)
	$(PIP) install --editable '.[dev]'
	@touch $@

lint: $(READY)  ## ruff, all rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## mypy, strict
	$(BIN)/mypy

docs: $(READY)  ## build the documentation; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

test-fast: $(READY)  ## the tests that take seconds
	$(BIN)/python -m pytest $(PARALLEL) -m 'not slow'

test: lint types docs  ## everything that continuous integration runs
	$(BIN)/python -m pytest $(PARALLEL)

demo: $(READY)  ## kill real training runs with SIGKILL, resume them, compare
	$(BIN)/python -m resumable.demo

# A part of it:  make chaos SOURCES=list,lightning POINTS=1 ; the page is written by a run of all sources.
SOURCES ?=
POINTS ?= 2
JOBS ?= 2
chaos: $(READY)  ## every kind of fault against every source; writes docs/reference/chaos.md
	$(BIN)/python -m resumable.demo.chaos --points $(POINTS) --jobs $(JOBS) \
	  $(if $(SOURCES),--sources $(SOURCES),--page docs/reference/chaos.md)

bench: $(READY)  ## the figures of docs/reference/benchmarks.md, measured anew
	$(BIN)/python -m benchmarks

format: $(READY)  ## let ruff fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove what the other targets made
	rm -rf $(VENV) site dist runs .mypy_cache .pytest_cache .ruff_cache .hypothesis
