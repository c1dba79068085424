# Everything sets itself up: `make demo` and `make test` work on a fresh clone as one command, and are quick the second time.
#
# Four environments, so that nobody waits for what they do not use: .venv-demo, .venv-docs and .venv-peers, made by pip alone
# from the extra of their name, and .venv with every framework, for which FFCV is compiled.

PYTHON ?= python3
BIN := .venv/bin
# What sees every framework, transformers too.
ALL := .venv/transformers/bin/python
TORCH ?= torch==2.13.0
PIP := -m pip --disable-pip-version-check install
# The tests of a file, or of a class, run in one process; tests/conftest.py orders them, the longest first.
PARALLEL := --numprocesses auto --maxprocesses 4 --dist loadscope --no-loadscope-reorder
# Nothing is compiled at each of a thousand starts of Python, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=
PYTEST := PYTHONUNBUFFERED=1 $(BIN)/python -m pytest $(PARALLEL)
# Each phase says when it begins, in seconds since make did; the text is one argument to make, and in quotes to the shell.
BEGAN := $(shell date +%s)
say = @echo "[$$(($$(date +%s) - $(BEGAN))) s] $(1)"

.DEFAULT_GOAL := help
.PHONY: help setup lint types docs test test-fast test-long test-matrix coverage demo demo-all chaos bench compare peers release-check format clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: .venv-demo/.ready  ## kill real training runs with SIGKILL, resume them, compare
	$(call say,demo: training runs are killed and resumed)
	@PYTHONUNBUFFERED=1 .venv-demo/bin/python -m examples.demo

demo-all: .venv/.ready  ## the same with every source, DALI, FFCV, TensorFlow and Hugging Face included
	$(call say,demo-all: training runs of every source are killed and resumed)
	@PYTHONUNBUFFERED=1 $(ALL) -m examples.demo

# No --quiet: it drops warnings before --strict counts them. -W error is for Python's warnings, which --strict ignores.
docs: .venv-docs/.ready  ## build the documentation; any warning or broken link fails
	$(call say,docs: mkdocs with every warning as an error)
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -W error -m mkdocs build --strict
	@.venv-docs/bin/python tests/docs/site_links.py site

test: lint types docs  ## everything that continuous integration runs
	$(call say,tests: pytest without what only test-long runs)
	$(PYTEST) -m 'not long'
	$(call say,done)

test-fast: .venv/.ready  ## the tests that take seconds
	$(PYTEST) -m 'not slow and not long'

test-long: lint types docs  ## every test, whole grids included; run before each release
	$(call say,tests: pytest with whole grids)
	$(PYTEST)
	$(call say,done)

# Environments .venv-matrix-*, made by pip. What cannot be installed is named on the page; with COMPLETE=1 it fails.
test-matrix: TORCH = torch
test-matrix:  ## a part of the tests with old and new Pythons and packages; writes docs/reference/versions.md
	$(call say,test-matrix: old and new versions of Python and of the packages)
	@PYTHONPATH=. $(PYTHON) tests/versions/support_matrix.py $(if $(COMPLETE),--complete) $(TORCH)

coverage: .venv/.ready  ## lines and branches that the tests reach, child processes included, as a table per folder
	$(PYTEST) -m 'not long' --cov --cov-report=json:.coverage.json
	@$(BIN)/python tests/coverage_by_folder.py .coverage.json

lint: .venv/.ready  ## ruff, all rules
	$(call say,lint: ruff with all rules)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

# mypy only warns of an option that it does not know, on stderr.
types: .venv/.ready  ## mypy, strict
	$(call say,types: mypy in strict mode)
	@warnings=$$(mktemp); $(BIN)/mypy 2>$$warnings; status=$$?; cat $$warnings >&2; \
	  test ! -s $$warnings || status=1; rm $$warnings; exit $$status

# A part of it:  make chaos SOURCES=list,lightning POINTS=1 ; the page is written by a run of all sources.
SOURCES ?=
POINTS ?= 2
JOBS ?= 2
chaos: .venv/.ready  ## every kind of fault against every source, and planted programs; writes docs/reference/chaos-results.md
	$(ALL) -m examples.demo.chaos --points $(POINTS) --jobs $(JOBS) \
	  $(if $(SOURCES),--sources $(SOURCES),--page docs/reference/chaos-results.md)
	$(if $(SOURCES),,$(BIN)/python tests/chaos/planted_programs.py docs/reference/chaos-results.md)

bench: .venv/.ready peers  ## measure the numbers of docs/reference/benchmarks.md again
	$(BIN)/python -m benchmarks --without peers --without peers-resume --without formats --markdown benchmarks/results.md
	.venv-peers/bin/python -m benchmarks --only peers --only peers-resume --only formats --markdown benchmarks/results.md
	$(BIN)/python -m benchmarks.page
	$(BIN)/python docs/draw_scale.py

compare: .venv-peers/.ready  ## stop and resume the same job with eleven libraries; writes docs/reference/comparison.md
	$(call say,compare: every library in every situation; about 20 minutes)
	.venv-peers/bin/python -W ignore -m benchmarks.compare
	.venv-peers/bin/python -m benchmarks.compare.page

peers: .venv-peers/.ready  ## make the environment of the libraries that are compared

release-check:  ## build the archives of a release, install them, and run the README and the command line from them
	$(call say,release-check: the wheel and the source distribution)
	@$(PYTHON) tests/release_check.py $(TORCH)

format: .venv/.ready  ## let ruff fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove what the other targets made
	rm -rf .venv .venv-demo .venv-docs .venv-peers .venv-matrix-* site dist runs .coverage* .mypy_cache .pytest_cache .ruff_cache .hypothesis

setup: .venv/.ready  ## make the environment with every framework

# torch goes first and by itself, so that its build is chosen once and every later package takes it as it is.
# Where the default index has only the build with CUDA:  make demo TORCH='torch --index-url https://download.pytorch.org/whl/cpu'
# Unlike pip, Python compiles only the modules that are imported: that is half of the time.
.venv-demo/.ready: pyproject.toml
	$(call say,making .venv-demo: torch and scikit-learn and Lightning as wheels; about 1 GB)
	@test -x .venv-demo/bin/python || $(PYTHON) -m venv .venv-demo
	$(call say,pip install $(TORCH))
	@.venv-demo/bin/python -c 'import torch' 2>/dev/null || .venv-demo/bin/python $(PIP) --no-compile $(TORCH)
	$(call say,pip install this package and its extra demo)
	@.venv-demo/bin/python $(PIP) --no-compile --editable '.[demo]'
	@touch $@

.venv-docs/.ready: pyproject.toml
	$(call say,making .venv-docs: mkdocs and its plugins; about 100 MB)
	@test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	@.venv-docs/bin/python $(PIP) --no-compile --editable '.[docs]'
	@touch $@

# MosaicML Streaming brings torchvision, whose build has to be that of torch: so pip chooses both.
.venv-peers/.ready: pyproject.toml
	$(call say,making .venv-peers: Grain and LanceDB and LitData and Megatron and MosaicML Streaming and so on; about 5 GB)
	@test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	@.venv-peers/bin/python $(PIP) --no-compile --editable '.[peers]'
	@touch $@

# FFCV is compiled when it is installed, against OpenCV and libturbojpeg; whoever may install Debian's packages gets them.
SYSTEM := libopencv-dev libturbojpeg0-dev pkg-config
ASROOT := $(shell test "$$(id -u)" = 0 || echo sudo)

.venv/.ready: pyproject.toml
	$(call say,making .venv: every framework; about 5 GB and some minutes)
	@pkg-config --exists opencv4 libturbojpeg || \
	  { $(ASROOT) apt-get update -qq && DEBIAN_FRONTEND=noninteractive $(ASROOT) apt-get install -y -qq $(SYSTEM); } >/dev/null || \
	  { echo "FFCV needs OpenCV and libturbojpeg to be compiled. Install $(SYSTEM) or what your system calls them."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(call say,pip install $(TORCH))
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/python $(PIP) --no-compile $(TORCH)
	$(call say,pip install this package and its extra dev)
	@$(BIN)/python $(PIP) --no-compile --editable '.[dev]'
	$(call say,compiling what was installed; on all cores unlike pip)
	@$(BIN)/python -m compileall -q -j 0 .venv/lib >/dev/null 2>&1 || true  # some packages ship files of no Python
	$(call on_top,transformers,'resumable-data[trl]')
	$(call on_top,ray,'$(RAY)')
	$(call on_top,titan,'$(TITAN)')
	@touch $@

# Lightning imports transformers where it finds it, and each start of it takes a second more; torchtitan wants older packages.
# So what only a few tests need is in environments that see the packages of .venv, and have those that are missing there.
RAY ?= ray[train]==2.60.0
TITAN ?= torchtitan==0.3.0
ON_TOP = import pathlib, sysconfig as s; \
  here, there = s.get_path("purelib"), s.get_path("purelib", vars={"base": ".venv/$(1)"}); \
  pathlib.Path(there, "on_top.pth").write_text(f"import site; site.addsitedir({here!r})")
define on_top
	$(call say,making .venv/$(1): $(1) on top of .venv; 100 to 300 MB)
	@$(BIN)/python -m venv --without-pip .venv/$(1)
	@$(BIN)/python -c '$(ON_TOP)'
	@$(BIN)/python -m pip --python .venv/$(1)/bin/python --disable-pip-version-check install --no-compile $(2)
endef
