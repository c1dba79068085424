"""What all tests share."""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
from collections import Counter
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING
from zlib import crc32

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

# The same examples in each process: without this, hypothesis draws from the constants of those modules that are loaded.
providers._get_local_constants = lambda: providers._local_constants
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.process import BaseProcess
    from pathlib import Path

# Several processes share the cores, and threads that wait for each other there take eight times the processor's time.
os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch reads it when it is imported, here and in what tests start
# FFCV sets it to 2 in its process; torch starts a thread there, for which a process that is forked later looks in vain.
os.environ.setdefault("OMP_THREAD_LIMIT", "1")

gc.disable()  # until all tests are collected: it takes a quarter of the time in which everything is imported

_GRID = 24  # cells of a fast test, above which `make test` runs some of them
_SEEN = 2  # cells that each value of a parameter has then
_SLOW_TESTS = 2  # of a file, in `make test`
_SLOW = 30  # times what another test takes, about
_FOLDER = pytest.StashKey[str]()
_UNSEEDED = (1 << 64) - 59  # a seed as a process has it in which nobody set one


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give all that the tests start one folder for temporary files; those of killed processes go with it at the end.

    It is no folder of pytest's: the path of a Unix socket has 108 bytes at most.
    """
    folders = [*map(str, config.getini("pythonpath")), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, dict.fromkeys(folders)))
    if hasattr(config, "workerinput"):  # xdist's processes have that of the one that started them
        return
    config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # where it has always been, and stays
    config.stash[_FOLDER] = tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if folder := config.stash.get(_FOLDER, None):
        shutil.rmtree(folder, ignore_errors=True)


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what was imported: tests call it often, and it would take a second each."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def unseeded() -> None:
    """Let each test begin as a process in which nobody has seeded torch, by itself or by Lightning."""
    os.environ.pop("PL_GLOBAL_SEED", None)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(_UNSEEDED)


@pytest.fixture(autouse=True)
def no_group_of_before() -> None:
    """End a process group that another test has left, as by a strategy of Lightning: ranks are forked from here."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


@pytest.fixture
def own_children() -> Callable[[], list[BaseProcess]]:
    """Return the living child processes that began since this test did: something may still hold those of others."""
    before = set(multiprocessing.active_children())
    return lambda: [child for child in multiprocessing.active_children() if child not in before]


@pytest.fixture
def own_threads() -> Callable[[], list[threading.Thread]]:
    """Return the living threads that began since this test did."""
    before = set(threading.enumerate())
    return lambda: [thread for thread in threading.enumerate() if thread not in before]


@pytest.fixture
def without_s3fs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let fsspec find no s3fs, though another test may have brought it into this process."""
    known = import_module("fsspec.registry")._registry  # `fsspec.registry` is a view of it

    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(known, "s3", raising=False)


@pytest.fixture
def no_death_of_before() -> None:
    """End torch's workers that other tests left in cycles, and take those that are held off torch's list.

    As long as a loader with a worker that died is held, torch's handler of SIGCHLD tells of that one at every death.
    """
    gc.collect()
    if (dataloader := sys.modules.get("torch.utils.data.dataloader")) is None:
        return
    for one in gc.get_objects():
        if type(one) is dataloader._MultiProcessingDataLoaderIter and getattr(one, "_worker_pids_set", False):
            one._worker_pids_set = False
            with suppress(ValueError):
                dataloader._utils.signal_handling._remove_worker_pids(id(one))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Tests of the conformance suite that start processes are slow; and no file is left to `make test-long` alone."""
    for item in items:
        if item.name.startswith("test_a_fresh_process"):
            item.add_marker(pytest.mark.slow)
    _sample_slow(items)
    _sample_fast(items)
    if not any("::" in argument for argument in config.args):  # one test may be run alone
        _check_long(config, items)
    yield  # here tests are deselected
    if hasattr(config, "workerinput"):
        _longest_first(items)


def _sample_slow(items: list[pytest.Item]) -> None:
    """Leave most slow tests to `make test-long`, but a few of each file, and one cell of each of these.

    Which ones depends on their names, so classes and parameters have their share. Tests with the mark `every_cell` are
    all run.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("slow") and not (
            item.get_closest_marker("long") or item.get_closest_marker("every_cell")
        ):
            files.setdefault(item.path, []).append(item)
    for cells in files.values():
        kept = set[str]()
        for item in sorted(cells, key=lambda item: crc32(item.nodeid.encode())):
            if _test(item) in kept or len(kept) == _SLOW_TESTS:
                item.add_marker(pytest.mark.long)
            else:
                kept.add(_test(item))


def _sample_fast(items: list[pytest.Item]) -> None:
    """Leave cells of large grids of fast tests to `make test-long`, but a few for each value of each parameter."""
    grids: dict[str, list[pytest.Function]] = {}
    for item in items:
        marked = any(item.get_closest_marker(mark) for mark in ("slow", "long", "every_cell"))
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and not marked:
            grids.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cells in grids.values():
        if len(cells) <= _GRID:
            continue
        seen = Counter[tuple[str, int]]()
        for item in sorted(cells, key=lambda item: crc32(item.nodeid.encode())):
            values = [(name, id(value)) for name, value in item.callspec.params.items()]
            if all(seen[value] >= _SEEN for value in values):
                item.add_marker(pytest.mark.long)
            else:
                seen.update(values)


def _longest_first(items: list[pytest.Item]) -> None:
    """Order the scopes for xdist's processes, the longest first, so none is left with one at the end."""
    seconds: Counter[str] = Counter()
    for item in items:
        seconds[_scope(item)] += _SLOW if item.get_closest_marker("slow") else 1
    items.sort(key=lambda item: -seconds[_scope(item)])


def _scope(item: pytest.Item) -> str:
    return item.nodeid.rpartition("::")[0]


def _test(item: pytest.Item) -> str:
    """Return the test of which an item is a cell."""
    file, _, rest = item.nodeid.partition("[")[0].partition("::")
    return f"{file}::{rest.rpartition('::')[2]}"


def _check_long(config: pytest.Config, items: list[pytest.Item]) -> None:
    """See that `make test` runs something of every file."""
    long, others = (
        {str(item.path) for item in items if (item.get_closest_marker("long") is not None) is wanted}
        for wanted in (True, False)
    )
    if alone := sorted(long - others):
        text = f"`make test` runs nothing of {', '.join(alone)}: leave a test there without `long`"
        if hasattr(config, "workerinput"):  # the process that started this one does not show the error
            with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
                sys.stderr.write(f"{text}\n")
        raise pytest.UsageError(text)
