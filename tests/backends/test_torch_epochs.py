"""Jumps at the border of epochs: a `DataLoader` gives the batches that an unbroken run gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch_datasets as datasets
from torch.utils.data import DataLoader

import resumable
from resumable.testing import digest

pytestmark = pytest.mark.slow

WAYS: dict[str, dict[str, Any]] = {
    "in the process": {},
    "workers": {"num_workers": 2},
    "persistent workers": {"num_workers": 2, "persistent_workers": True},
}
each_way = pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))


def wrap(dataset: Any, options: dict[str, Any] | None = None, **loader_options: Any) -> resumable.Loader:
    return resumable.wrap(DataLoader(dataset, **loader_options), **options or {})


def epoch_of(loader: resumable.Loader) -> list[str]:
    return [digest(batch) for batch in loader]


@each_way
def test_epoch_left_unread(way: dict[str, Any]) -> None:
    """An epoch that is left unread is not given as the next one."""
    golden_loader = wrap(datasets.Stream(), batch_size=4, **way)
    golden = [epoch_of(golden_loader) for _ in range(4)]
    got = {}
    for epoch in wrap(datasets.Stream(), batch_size=4, **way).epochs(4):
        if epoch.number != 1:
            got[epoch.number] = [digest(batch) for batch in epoch]
    assert got == {0: golden[0], 2: golden[2], 3: golden[3]}


@each_way
def test_jumps_after_the_end_of_an_epoch(way: dict[str, Any]) -> None:
    """Jumps after the end of an epoch are those of a fresh loader."""
    loader = wrap(datasets.Stream(), batch_size=4, **way)
    beginning = loader.state_dict()
    golden = [epoch_of(loader) for _ in range(3)]
    for _ in range(2):
        loader.load_state_dict(beginning)
        assert epoch_of(loader) == golden[0]
    loader = wrap(datasets.Stream(), batch_size=4, **way)
    assert epoch_of(loader) == golden[0]
    loader.seek(epoch=2)
    assert epoch_of(loader) == golden[2]
    loader.load_state_dict(beginning)
    assert [epoch_of(loader) for _ in range(3)] == golden


@each_way
def test_a_stream_with_a_state_goes_back_to_its_beginning(way: dict[str, Any]) -> None:
    loader = wrap(datasets.StatefulStream(), batch_size=4, **way)
    beginning = loader.state_dict()
    golden = [epoch_of(loader) for _ in range(3)]
    loader.load_state_dict(beginning)
    assert [epoch_of(loader) for _ in range(3)] == golden


@pytest.mark.filterwarnings("ignore:a loop over a resumed Loader")  # it counts no epochs
@each_way
@pytest.mark.parametrize("randomness", ["sample", "batch"])
def test_epoch_in_a_datasets_state(way: dict[str, Any], randomness: str) -> None:
    """The epoch in a dataset's state does not hide the next epoch."""

    def make() -> resumable.Loader:
        return wrap(datasets.EpochInState(), {"randomness": randomness}, batch_size=3, **way)

    loader = make()
    golden: list[list[str]] = []
    states = []
    for _ in range(3):
        golden.append([])
        for batch in loader:
            golden[-1].append(digest(batch))
            last = loader.state_dict()
        states.append((last, loader.state_dict()))
    assert all(golden)
    for epoch, pair in enumerate(states[:2], 1):
        for state in pair:
            resumed = make()
            resumed.load_state_dict(state)
            assert [epoch_of(resumed) for _ in golden[epoch:]] == golden[epoch:]


@pytest.mark.filterwarnings("ignore:a loop over a resumed Loader")  # it counts no epochs
@each_way
@pytest.mark.parametrize("randomness", ["sample", "batch"])
def test_a_dataset_that_ends_twice_is_read_as_in_an_unbroken_run(way: dict[str, Any], randomness: str) -> None:
    """Brought back to the end of an epoch it gives nothing at first; what it draws then belongs to the new epoch."""

    def make() -> resumable.Loader:
        return wrap(datasets.StatefulStream(), {"randomness": randomness}, batch_size=4, **way)

    loader = make()
    list(loader)
    state = loader.state_dict()
    golden = epoch_of(loader)
    resumed = make()
    resumed.load_state_dict(state)
    assert epoch_of(resumed) == golden


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("randomness", ["sample", "batch"])
def test_order_drawn_at_the_opening(workers: int, randomness: str) -> None:
    """An order drawn when a stream is opened belongs to the epoch."""

    def make() -> resumable.Loader:
        return wrap(datasets.EagerStream(), {"randomness": randomness}, batch_size=2, num_workers=workers)

    loader, golden, states = make(), [], []
    for batch in loader:
        golden.append(batch.tolist())
        states.append(loader.state_dict())
    second = [batch.tolist() for batch in loader]
    assert second != golden
    for step, state in enumerate(states[:-1], 1):
        resumed = make()
        resumed.load_state_dict(state)
        assert [batch.tolist() for batch in resumed] == golden[step:]
