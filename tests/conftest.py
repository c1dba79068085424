"""What all tests share."""

from __future__ import annotations

import gc
import sys
from contextlib import suppress

import pytest

_UNSEEDED = (1 << 64) - 59  # a seed as a process has it in which nobody set one


@pytest.fixture(autouse=True)
def unseeded() -> None:
    """Let each test begin as a process in which nobody has seeded torch."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(_UNSEEDED)


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


@pytest.hookimpl(tryfirst=True)  # before tests are deselected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of the conformance suite that start processes are slow; and no promise is tested by long tests alone."""
    for item in items:
        if item.name.startswith("test_a_fresh_process"):
            item.add_marker(pytest.mark.slow)
    if not any("::" in argument for argument in config.args):  # one cell of a grid may be run alone
        _check_long(items)


def _check_long(items: list[pytest.Item]) -> None:
    """See that every test with cells for `make test-long` has others, which `make test` runs."""
    long, others = (
        {item.nodeid.partition("[")[0] for item in items if (item.get_closest_marker("long") is not None) is wanted}
        for wanted in (True, False)
    )
    if alone := sorted(long - others):
        raise pytest.UsageError(f"`make test` runs nothing of {', '.join(alone)}: leave a sample of it without `long`")
