"""Iterables, generators and objects with a state of their own keep every promise."""

from __future__ import annotations

import random
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from torch.utils.data import IterableDataset
from torchdata import nodes

import resumable
from resumable import World
from resumable.errors import ConfigurationError, OnePassError, StateMismatchError, UnsupportedError
from resumable.testing import BackendTests

if TYPE_CHECKING:
    from collections.abc import Iterator


def settings(options: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    return defaults | options


def numbers(epoch: int) -> Iterator[tuple[int, float]]:
    order = list(range(7))
    random.shuffle(order)
    for index in order:
        yield epoch * 100 + index, np.random.rand()


def jitter(element: Any) -> tuple[Any, float]:
    return element, random.random()


class Records:
    """Re-iterable, told the epoch, with a length."""

    epoch = -1

    def __len__(self) -> int:
        return 11

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return ((self.epoch * 100 + index, random.random()) for index in range(11))


class Reader:
    """An object with a state, which goes on over epochs; its state is a dict of its own that it changes."""

    def __init__(self, length: int = 6) -> None:
        self.length = length
        self.state = {"index": 0, "laps": 0}

    def state_dict(self) -> dict[str, int]:
        return self.state

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.state = state

    def __iter__(self) -> Iterator[tuple[int, int, float]]:
        while self.state["index"] < self.length:
            self.state["index"] += 1
            yield self.state["laps"], self.state["index"], random.random()
        self.state["index"] = 0
        self.state["laps"] += 1


class LateReader(Reader):
    """Behind its last element it comes back at the end of the epoch, with an empty pass, as many loaders do."""

    restored = False

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.state = state
        self.restored = True

    def __iter__(self) -> Iterator[tuple[int, int, float]]:
        if self.state["index"] == self.length and not self.restored:
            self.state["index"] = 0
            self.state["laps"] += 1
        self.restored = False
        while self.state["index"] < self.length:
            self.state["index"] += 1
            yield self.state["laps"], self.state["index"], random.random()


class Cursorlike:
    """An iterator with `get_state` and `set_state`, in the way of Grain's."""

    def __init__(self) -> None:
        self.next_index = 0

    def __iter__(self) -> Cursorlike:
        return self

    def __next__(self) -> tuple[int, float]:
        if self.next_index == 6:
            raise StopIteration
        self.next_index += 1
        return self.next_index, random.random()

    def get_state(self) -> dict[str, int]:
        return {"next_index": self.next_index}

    def set_state(self, state: dict[str, int]) -> None:
        self.next_index = state["next_index"]


class Dataset:
    """Gives a new iterator with a state in each epoch."""

    def __iter__(self) -> Cursorlike:
        return Cursorlike()


class TestGeneratorFunction(BackendTests):
    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return resumable.wrap(numbers, **settings(options, {"transform": jitter}))

    others = {
        "batch": lambda: resumable.wrap(numbers, batch_size=2, tail="drop"),
        "kind": lambda: resumable.wrap(range(7)),
        "source": lambda: resumable.wrap(Records()),
    }


class TestGeneratorFunctionOfSamples(BackendTests):
    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return resumable.wrap(numbers, **settings(options, {"transform": jitter, "batch_size": 3}))


class TestReiterable(BackendTests):
    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return resumable.wrap(Records(), **settings(options, {"batch_size": 4, "tail": "drop"}))


class TestObjectWithState(BackendTests):
    native = True

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return resumable.wrap(Reader(), **settings(options, {"transform": jitter}))

    others = {
        "source": lambda: resumable.wrap(Records()),
        "batch": lambda: resumable.wrap(Reader(), batch_size=2, tail="drop"),
    }


class TestObjectWithStateOfSamples(BackendTests):
    native = True

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return resumable.wrap(Reader(7), **settings(options, {"batch_size": 3}))


class TestObjectWithSparseSnapshots(BackendTests):
    native = True

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        reader: Any = Reader(7)
        reader.snapshot_every = 3
        return resumable.wrap(reader, **options)


@pytest.mark.parametrize("steps", [0, "often", True])
def test_the_steps_between_snapshots_are_an_integer(steps: Any) -> None:
    reader: Any = Reader(7)
    reader.snapshot_every = steps
    with pytest.raises(ConfigurationError, match="snapshot_every must be an integer of 1 or more, but it is"):
        resumable.wrap(reader)


class TestObjectThatComesBackAtTheEnd(BackendTests):
    native = True

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return resumable.wrap(LateReader(), **options)


class TestFunctionOfIteratorsWithState(BackendTests):
    native = True

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return resumable.wrap(Cursorlike, **options)


class TestDatasetOfIteratorsWithState(BackendTests):
    native = True

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return resumable.wrap(Dataset(), **options)


class TestIteratorWithStateForOneEpoch(BackendTests):
    native = True
    epochs = 1

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return resumable.wrap(Cursorlike(), **options)

    def test_after_the_last_batch_and_after_the_end_the_same_batch_is_next(self) -> None:
        """After the last batch and after the end, the same batch is next.

        There is no next batch; see `test_a_second_pass_...`.
        """

    def test_restored_at_every_step_a_plain_loop_reads_the_rest(self) -> None:
        """Behind the last batch the plain form begins the next epoch, which this source does not have."""

    def test_after_the_last_batch_the_epoch_returns_without_batches(self) -> None:
        """After the last batch, the epoch is given again without batches."""
        _, states = self.reference()
        assert [list(epoch) for epoch in self.resumed(states[-1]).epochs(1)] == [[]]


def test_elements_that_are_skipped_are_not_transformed() -> None:
    seen: list[Any] = []

    def look(element: Any) -> Any:
        seen.append(element)
        return element

    loader = resumable.wrap(numbers, transform=look)
    state = [loader.state_dict() for _ in zip(range(5), loader, strict=False)][-1]
    seen.clear()
    fresh = resumable.wrap(numbers, transform=look)
    fresh.load_state_dict(state)
    assert len(list(fresh)) == len(seen) == 2


def test_a_bare_generator_resumes_within_its_one_pass() -> None:
    run = list(resumable.wrap(numbers(0)))
    loader = resumable.wrap(numbers(0))
    states = [loader.state_dict() for _ in loader]
    for step, state in enumerate(states[:-1], start=1):
        fresh = resumable.wrap(numbers(0))
        fresh.load_state_dict(state)
        assert list(fresh) == run[step:]


@pytest.mark.parametrize("make", [lambda: numbers(0), lambda: iter([1, 2]), Cursorlike])
def test_a_second_pass_over_what_can_be_read_once_is_an_error(make: Any) -> None:
    loader = resumable.wrap(make())
    assert list(loader)
    with pytest.raises(OnePassError, match=r"can only be read once, but epoch 1 .*\n.*wrap\(make\)"):
        list(loader)


class SetBack:
    """An iterator that its `__iter__` sets back to its beginning; `left` of it are there then."""

    def __init__(self, left: int = 5) -> None:
        self.here, self.left = 0, left

    def __iter__(self) -> Iterator[float]:
        self.here = 0
        return self

    def __next__(self) -> float:
        if self.here >= self.left:
            raise StopIteration
        self.here += 1
        return self.here + random.random()


def test_iterator_that_sets_itself_back() -> None:
    """An iterator that resets itself has epochs and resumes at every step."""
    loader, run, states = resumable.wrap(SetBack(), batch_size=2), [], []
    for epoch in loader.epochs(3):
        for batch in epoch:
            run.append(batch)
            states.append(loader.state_dict())
    assert [[int(number) for number in batch] for batch in run] == [[1, 2], [3, 4], [5]] * 3
    for step, state in enumerate(states, start=1):
        fresh = resumable.wrap(SetBack(), batch_size=2)
        fresh.load_state_dict(state)
        assert [batch for epoch in fresh.epochs(3) for batch in epoch] == run[step:]


def test_iterator_over_after_iter_is_read_once() -> None:
    """An iterator that acts in `__iter__` and is exhausted can be read once."""
    source = SetBack()
    loader = resumable.wrap(source)
    assert len(list(loader)) == 5
    source.left = 0  # as if the end of a pipe were reached
    with pytest.raises(OnePassError, match="can only be read once, but epoch 1"):
        list(loader)


def test_iterator_set_back_and_left_early() -> None:
    """An iterator that resets itself and was left early can be read once.

    What it gives next, the rest or its beginning, is not known before.
    """
    loader = resumable.wrap(SetBack())
    with pytest.raises(OnePassError, match="can only be read once, but epoch 1"):
        for epoch in loader.epochs(2):
            for _ in zip(range(2), epoch, strict=False):
                pass


def test_a_source_that_shrank_is_noticed() -> None:
    loader = resumable.wrap(lambda: iter(range(9)), identity="numbers")
    state = [loader.state_dict() for _ in loader][6]
    shrunk = resumable.wrap(lambda: iter(range(3)), identity="numbers")
    shrunk.load_state_dict(state)
    with pytest.raises(StateMismatchError, match=r"position: 7\n  elements in the source: +3"):
        next(iter(shrunk))


def test_an_element_that_fails_leaves_the_state_before_it() -> None:
    class Failing(Reader):
        fails = True

        def __iter__(self) -> Iterator[Any]:
            for element in super().__iter__():
                if element[1] == 4 and self.fails:
                    raise OSError("torn file")
                yield element

    whole = resumable.wrap(Reader())
    run = [batch for _ in range(2) for batch in whole]
    loader = resumable.wrap(Failing(), identity="Reader")
    got: list[Any] = []
    with pytest.raises(OSError, match="torn file"):
        got.extend(loader)
    state = loader.state_dict()
    assert (len(got), state["cursor"]["position"]) == (3, 3)
    for resumed in (loader, resumable.wrap(Reader())):
        Failing.fails = False
        resumed.load_state_dict(state)
        assert [batch for _ in range(2) for batch in resumed] == run[3:]


def test_an_epoch_that_is_left_is_over_for_the_resumed_run_too() -> None:
    def train(loader: resumable.Loader, kill_at: int | None) -> tuple[list[Any], Any]:
        got = []
        for epoch in loader.epochs(3):
            for batch in epoch if loader.cursor.step < 4 else ():
                got.append((epoch.number, batch))
                if len(got) == kill_at:
                    return got, loader.state_dict()
                if loader.cursor.step == 4:
                    break
        return got, loader.state_dict()

    run, _ = train(resumable.wrap(Reader()), None)
    assert len(run) == 10
    for kill_at in range(1, 10):
        got, state = train(resumable.wrap(Reader()), kill_at)
        fresh = resumable.wrap(Reader())
        fresh.load_state_dict(state)
        assert got + train(fresh, None)[0] == run, kill_at


def test_an_iterable_dataset_with_a_length_is_iterated_over() -> None:
    """It inherits a `__getitem__` that raises."""

    class Numbers(IterableDataset[int]):
        def __len__(self) -> int:
            return 7

        def __iter__(self) -> Iterator[int]:
            return iter(range(7))

    loader = resumable.wrap(Numbers(), batch_size=2, identity="numbers")
    states = [loader.state_dict() for _ in loader]
    again = resumable.wrap(Numbers(), batch_size=2, identity="numbers")
    again.load_state_dict(states[1])
    assert (len(again), list(again)) == (4, [[4, 5], [6]])


def test_the_ranks_take_turns() -> None:
    whole = list(resumable.wrap(lambda: iter(range(8)), identity="numbers"))
    for size in (2, 3):
        ranks = [list(resumable.wrap(lambda: iter(range(8)), world=World(rank, size))) for rank in range(size)]
        steps = len(whole) // size
        assert ranks == [whole[rank : steps * size : size] for rank in range(size)]


def test_a_source_that_divides_itself_has_a_state_per_rank() -> None:
    def own_part() -> Iterator[int]:
        return iter(range(100, 106))

    loader = resumable.wrap(own_part, shard=False, world=World(1, 2))
    state = [loader.state_dict() for _ in zip(range(2), loader, strict=False)][-1]
    same = resumable.wrap(own_part, shard=False, world=World(1, 2))
    same.load_state_dict(state)
    assert list(same) == [102, 103, 104, 105]
    with pytest.raises(StateMismatchError, match=r"rank differs .*\n  in the checkpoint: 1\n  in this run:       0"):
        resumable.wrap(own_part, shard=False, world=World(0, 2)).load_state_dict(state)
    with pytest.raises(StateMismatchError, match="world_size differs"):
        resumable.wrap(own_part, shard=False, world=World(1, 3)).load_state_dict(state)


def test_other_ranks_where_accepted() -> None:
    """Other ranks than in the state continue if that is accepted."""
    loaders = [resumable.wrap(lambda: iter(range(12)), identity="n", world=World(rank, 2)) for rank in range(2)]
    states = [[loader.state_dict() for _ in zip(range(2), loader, strict=False)][-1] for loader in loaders]
    assert states[0] == states[1]
    alone = resumable.wrap(lambda: iter(range(12)), identity="n")
    with pytest.raises(StateMismatchError, match=r"complete batch.*\n  in the checkpoint: 2\n  in this run:       1"):
        alone.load_state_dict(states[0])
    alone = resumable.wrap(lambda: iter(range(12)), identity="n", on_change="continue")
    alone.load_state_dict(states[0])
    assert list(alone) == list(range(4, 12))


def test_what_cannot_be_promised_is_refused() -> None:
    with pytest.raises(UnsupportedError, match='tail="carry" needs sample indices'):
        resumable.wrap(numbers, tail="carry")
    with pytest.raises(UnsupportedError, match="shuffle does not fit"):
        resumable.wrap(numbers, shuffle=True)
    with pytest.raises(ConfigurationError, match="different numbers of batches"):
        next(iter(resumable.wrap(numbers, batch_size=2, world=World(0, 2))))
    with pytest.raises(UnsupportedError, match="own snapshots"):
        resumable.wrap(Reader()).seek(epoch=0, step=2)
    with pytest.raises(UnsupportedError, match="no sample indices"):
        resumable.wrap(numbers).sample_indices(epoch=0, step=0)


def test_replayed_sources_can_be_sought() -> None:
    loader = resumable.wrap(numbers)
    run = [batch for _ in range(2) for batch in loader]
    loader.seek(epoch=1, step=3)
    assert list(loader) == run[10:]
    assert loader.cursor.epoch == 2


def test_what_cannot_be_called_without_arguments_is_refused() -> None:
    def needs(path: str) -> Any:
        return path

    with pytest.raises(UnsupportedError, match="needs cannot be called without arguments.*\n.*partial"):
        resumable.wrap(needs)
    assert list(resumable.wrap(partial(range, 3))) == [0, 1, 2]


def test_last_state_of_the_next_epoch() -> None:
    """A loader whose last state is that of the next epoch is rejected."""

    def node(*, restart: bool) -> Any:
        return nodes.Loader(nodes.SamplerWrapper(range(5)), restart_on_stop_iteration=restart)

    with pytest.raises(UnsupportedError, match="restart_on_stop_iteration=True.*\n.*Create it"):
        resumable.wrap(node(restart=True))
    loader = resumable.wrap(node(restart=False))
    states = [loader.state_dict() for _ in loader]
    for step, state in enumerate(states, start=1):
        fresh = resumable.wrap(node(restart=False))
        fresh.load_state_dict(state)
        assert [batch for epoch in fresh.epochs(2) for batch in epoch] == [*range(step, 5), *range(5)]


@pytest.mark.slow
def test_long_skipping_shows_its_progress(capsys: pytest.CaptureFixture[str]) -> None:
    """Skipping that takes longer than a second shows its progress."""

    def slow() -> Iterator[int]:
        for index in range(8 * 256):
            if index % 256 == 0:
                time.sleep(0.3)
            yield index

    loader = resumable.wrap(slow)
    loader.seek(epoch=0, step=7 * 256)
    assert next(iter(loader)) == 7 * 256
    assert "resuming" in capsys.readouterr().err
    quick = resumable.wrap(numbers)
    quick.seek(epoch=0, step=3)
    next(iter(quick))
    assert not capsys.readouterr().err
