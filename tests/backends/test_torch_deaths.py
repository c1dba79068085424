"""Workers of a `DataLoader` that die: the error says so wherever the death shows, and nothing else counts as one."""

from __future__ import annotations

import time
import warnings
from typing import Any

import pytest
import torch
import torch_datasets as datasets
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

import resumable
from resumable.errors import WorkerError

pytestmark = pytest.mark.slow


def wrap(dataset: Any, options: dict[str, Any] | None = None, **loader_options: Any) -> resumable.Loader:
    return resumable.wrap(DataLoader(dataset, **loader_options), **options or {})


def test_a_time_out_is_an_error_of_the_workers() -> None:
    class Slow(datasets.Augmented):
        def __getitem__(self, index: int) -> Any:
            if index == 9 and self.broken:
                time.sleep(30)
            return super().__getitem__(index)

    loader, steps = wrap(Slow(broken=100), batch_size=4, num_workers=1, timeout=1), 0
    with pytest.raises(
        WorkerError, match=r"DataLoader timed out after 1 seconds.*\n.*state does not count this batch.*timeout="
    ) as told:
        for _ in loader:
            steps += 1
    assert isinstance(told.value.__cause__, RuntimeError)
    assert (loader.cursor.step, steps) == (2, 2)


SIGNAL = "DataLoader worker (pid 7) is killed by signal: Killed. "


@pytest.mark.usefixtures("no_death_of_before")  # it would be ended by the broken method
@pytest.mark.parametrize("shown", [(ConnectionResetError, 104, "reset by peer"), (EOFError,), (RuntimeError, SIGNAL)])
@pytest.mark.parametrize("place", ["_try_get_data", "_process_data", "_shutdown_workers", "__init__"])
def test_a_death_is_told_as_such_wherever_it_shows(
    place: str, shown: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's handler of SIGCHLD raises between any two lines of the process, the connection wherever it is read."""
    error = shown[0](*shown[1:])  # made here, as its traceback holds the workers
    original = getattr(_MultiProcessingDataLoaderIter, place)
    shows = iter([True])

    def broken(iterator: Any, *args: Any, **options: Any) -> Any:
        result = original(iterator, *args, **options)
        if next(shows, False):
            raise error
        return result

    monkeypatch.setattr(_MultiProcessingDataLoaderIter, place, broken)
    lives = place != "_shutdown_workers"  # persistent workers are not shut down in time
    loader, steps = wrap(datasets.Augmented(), batch_size=4, num_workers=1, persistent_workers=lives), 0
    with pytest.raises(
        WorkerError, match=r"(?s)(reset by peer|EOFError|killed by signal).*\nThe loader's state"
    ) as told:
        for _ in loader:
            steps += 1
    assert told.value.__cause__ is error
    assert len(list(loader)) == (6 - steps or 6)


class Resetting(datasets.Augmented):
    def __getitem__(self, index: int) -> Any:
        raise ConnectionResetError("the storage hung up")


class ResettingCollate:
    def __call__(self, samples: list[Any]) -> Any:
        raise EOFError("a torn archive")


def test_an_error_of_the_users_is_not_taken_for_a_death() -> None:
    with pytest.raises(ConnectionResetError, match="the storage hung up"):
        next(iter(wrap(Resetting(), batch_size=4, num_workers=1)))
    for workers in (0, 1):
        with pytest.raises(EOFError, match="a torn archive"):
            next(iter(wrap(datasets.Augmented(), batch_size=4, collate_fn=ResettingCollate(), num_workers=workers)))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="'pin_memory' argument is set as true")
        with pytest.raises(EOFError, match="a torn archive"):
            next(iter(wrap(datasets.Augmented(), batch_size=4, collate_fn=ResettingCollate(), pin_memory=True)))


def test_workers_that_die_do_not_change_what_is_drawn() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with pytest.raises(ConnectionResetError, match="the storage hung up"):
        next(iter(wrap(Resetting(), batch_size=4, num_workers=1)))
    assert torch.equal(torch.rand(4), expected)
