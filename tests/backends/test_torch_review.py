"""Places that a review found broken: jumps at the border of epochs, refusals, and every way in which workers die."""

from __future__ import annotations

import random
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch_datasets as datasets
from torch.utils.data import BatchSampler, DataLoader, Sampler
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

import resumable
from resumable import World
from resumable.errors import PromiseWarning, StateMismatchError, UnsupportedError, WorkerError
from resumable.samplers import Shuffle
from resumable.testing import digest

if TYPE_CHECKING:
    from collections.abc import Iterator

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


# ---------------------------------------------------------------------- jumps at the border of epochs


@each_way
def test_an_epoch_that_is_left_unread_is_not_given_as_the_next_one(way: dict[str, Any]) -> None:
    golden_loader = wrap(datasets.Stream(), batch_size=4, **way)
    golden = [epoch_of(golden_loader) for _ in range(4)]
    got = {}
    for epoch in wrap(datasets.Stream(), batch_size=4, **way).epochs(4):
        if epoch.number != 1:
            got[epoch.number] = [digest(batch) for batch in epoch]
    assert got == {0: golden[0], 2: golden[2], 3: golden[3]}


@each_way
def test_jumps_after_the_end_of_an_epoch_are_those_of_a_fresh_loader(way: dict[str, Any]) -> None:
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
def test_the_epoch_in_a_datasets_state_does_not_hide_the_next_epoch(way: dict[str, Any], randomness: str) -> None:
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
def test_an_order_drawn_when_a_stream_is_opened_belongs_to_the_epoch(workers: int, randomness: str) -> None:
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


# ---------------------------------------------------------------------- told, not ignored


class Shrinking(datasets.Stream):
    length = 11

    def __iter__(self) -> Iterator[Any]:
        return iter([(index,) for index in range(self.length)])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_that_ends_while_it_is_skipped_is_told(workers: int) -> None:
    loader = wrap(Shrinking(), batch_size=2, num_workers=workers)
    for _ in range(4):
        next(iter(loader))
    dataset = Shrinking()
    dataset.length = 5
    resumed = wrap(dataset, batch_size=2, num_workers=workers)
    resumed.load_state_dict(loader.state_dict())
    with pytest.raises(StateMismatchError, match=r"fewer samples.*\n.*in the checkpoint: 8\n.*in this run: +5\n.*data"):
        next(iter(resumed))


def test_shard_is_refused_where_the_samples_have_indices() -> None:
    for shard in (True, False):
        with pytest.raises(UnsupportedError, match=r"option shard does not fit a DataLoader.*\n.*world=World"):
            wrap(datasets.Augmented(), {"shard": shard, "world": World(0, 2)}, batch_size=4)


class Pairs(BatchSampler):
    """Kept, as a subclass may do anything."""


def test_a_sampler_is_refused_beside_a_batch_sampler_of_ones_own() -> None:
    for batches in (datasets.OwnBatches(), Pairs(range(8), 2, drop_last=False)):
        with pytest.raises(UnsupportedError, match=r"option sampler does not fit .* batch sampler of its own.*\n.*"):
            wrap(datasets.Augmented(), {"sampler": Shuffle(23)}, batch_sampler=batches)
    loader = wrap(datasets.Augmented(), {"sampler": Shuffle(23, seed=9)}, batch_size=4)
    assert loader.state_dict()["sampler"]["name"] == "feistel8-v1"


class Filtering(DataLoader[Any]):
    """Iterates in its own way, below `__iter__`, as loaders of graphs do."""

    def _get_iterator(self) -> Any:
        return iter([("filtered", batch) for batch in super()._get_iterator()])


def test_a_subclass_with_an_iterator_of_its_own_keeps_it() -> None:
    assert [kind for kind, _ in resumable.wrap(Filtering(datasets.Augmented(), batch_size=4))] == ["filtered"] * 6


class Locked(Sampler[int]):
    """Cannot be copied, and gives another order each time."""

    def __init__(self) -> None:
        self.lock, self.random = threading.Lock(), random.Random(0)

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[int]:
        return iter(self.random.sample(range(6), 6))


class LockedAndTold(Locked):
    def set_epoch(self, epoch: int) -> None:
        self.random = random.Random(epoch)


class LockedWithState(datasets.StatefulOrder):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def test_a_sampler_that_cannot_be_copied_is_warned_about_by_promise() -> None:
    with pytest.warns(
        PromiseWarning, match=r"the sampler Locked cannot be copied.*\n.*same process.*\n.*set_epoch"
    ) as told:
        wrap(datasets.Augmented(), sampler=Locked())
    assert [warning.filename for warning in told] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for harmless in (LockedAndTold(), LockedWithState(), datasets.OwnOrder()):
            wrap(datasets.Augmented(), sampler=harmless)


# ---------------------------------------------------------------------- every way in which workers die


def test_a_time_out_is_an_error_of_the_workers() -> None:
    class Slow(datasets.Augmented):
        def __getitem__(self, index: int) -> Any:
            if index == 9 and self.broken:
                time.sleep(30)
            return super().__getitem__(index)

    loader, steps = wrap(Slow(broken=100), batch_size=4, num_workers=1, timeout=1), 0
    with pytest.raises(
        WorkerError, match=r"DataLoader timed out after 1 seconds.*\n.*state is that before.*timeout="
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
