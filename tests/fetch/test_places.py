"""The place of a source with a state of its own, in the corners where such sources differ."""

from __future__ import annotations

import copy
import pickle
import signal
from typing import TYPE_CHECKING, Any

import pytest
from torchdata import nodes

import resumable
from resumable.errors import ConfigurationError, StateFormatError, StateMismatchError, UnsupportedError
from resumable.testing import BackendTests, rest_of_run

if TYPE_CHECKING:
    from collections.abc import Iterator


class Told:
    """Told the epoch, which is in its state; stays at its end until the epoch changes. Fails where it is told to."""

    fails_at: tuple[int, ...] = ()

    def __init__(self, length: int = 6) -> None:
        self.length, self.epoch, self.place = length, 0, 0

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch, self.place = epoch, 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.place = state["epoch"], state["place"]

    def __iter__(self) -> Iterator[int]:
        while self.place < self.length:
            if self.place in self.fails_at:
                raise OSError("torn file")
            self.place += 1
            yield self.epoch * 100 + self.place - 1


class Rolling(Told):
    """Begins again by itself when it is iterated at its end, as very many sources do."""

    def __iter__(self) -> Iterator[int]:
        if self.place >= self.length:
            self.place = 0
        return super().__iter__()


class TestTold(BackendTests):
    native = True

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return resumable.wrap(Told(), **options)


class TestToldWithSparseSnapshots(BackendTests):
    native = True

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        told: Any = Told()
        told.snapshot_every = 4
        return resumable.wrap(told, **options)


class TestRolling(BackendTests):
    native = True

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return resumable.wrap(Rolling(), batch_size=2, tail="drop", **options)


class TestNodesOfTorchdata(BackendTests):
    native = True

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return resumable.wrap(nodes.Loader(nodes.SamplerWrapper(range(6)), restart_on_stop_iteration=False), **options)


@pytest.mark.parametrize("ack", ["auto", "manual"])
@pytest.mark.parametrize("failures", [1, 2, 3])
def test_any_number_of_failures_in_a_row_leaves_the_place(ack: Any, failures: int) -> None:
    run = [batch for epoch in resumable.wrap(Told()).epochs(2) for batch in epoch]
    source = Told()
    loader = resumable.wrap(source, ack=ack)
    source.fails_at = (3,)
    iterator = iter(loader)
    got = [next(iterator) for _ in range(3)]
    for _ in range(failures):
        with pytest.raises(OSError, match="torn file"):
            next(iterator)
        if ack == "auto":
            fresh = resumable.wrap(Told())
            fresh.load_state_dict(loader.state_dict())
            assert [batch for epoch in fresh.epochs(2) for batch in epoch] == run[3:]
    source.fails_at = ()
    assert got + list(iterator) == run[:6]


def test_a_failure_right_after_a_rollback_leaves_the_place() -> None:
    source = Told()
    loader = resumable.wrap(source)
    first = loader.state_dict()
    for _ in zip(range(5), loader, strict=False):
        pass
    loader.load_state_dict(first)
    source.fails_at = (0,)
    with pytest.raises(OSError, match="torn file"):
        next(iter(loader))
    source.fails_at = ()
    fresh = resumable.wrap(Told())
    fresh.load_state_dict(loader.state_dict())
    assert list(fresh) == list(loader) == list(range(6))


def test_nothing_acknowledged_starts_over() -> None:
    """Batches that were never acknowledged are delivered again from the beginning."""
    loader = resumable.wrap(Told(), ack="manual")
    first = loader.state_dict()
    iterator = iter(loader)
    assert [next(iterator), next(iterator)] == [0, 1]
    loader.rewind()
    assert list(loader) == list(range(6))
    loader.load_state_dict(first)
    assert list(loader) == list(range(6))


def test_failure_between_acknowledgements() -> None:
    """A failure between acknowledgements delivers nothing twice."""
    source = Told()
    loader = resumable.wrap(source, ack="manual")
    iterator = iter(loader)
    got = [next(iterator), next(iterator)]
    loader.ack()
    source.fails_at = (3,)
    got.append(next(iterator))
    with pytest.raises(OSError, match="torn file"):
        next(iterator)
    source.fails_at = ()
    got += list(iterator)
    assert got == list(range(6))
    loader.ack(5)
    assert loader.acknowledged.position == 6


def test_state_while_an_element_is_drawn() -> None:
    """A state taken while an element is drawn is that before it.

    As by a handler of SIGTERM, in the middle of `next()`.
    """
    states: list[Any] = []

    class Slow(Told):
        def __iter__(self) -> Iterator[int]:
            for element in super().__iter__():
                if element == 4 and not states:
                    signal.raise_signal(signal.SIGUSR1)
                yield element

    loader = resumable.wrap(Slow(), identity="Told", batch_size=2, tail="drop")
    before = signal.signal(signal.SIGUSR1, lambda *_: states.append(loader.state_dict()))
    try:
        run = list(loader)
    finally:
        signal.signal(signal.SIGUSR1, before)
    fresh = resumable.wrap(Told(), identity="Told", batch_size=2, tail="drop")
    fresh.load_state_dict(states[0])
    assert list(fresh) == run[2:]


def test_states_do_not_share_anything_with_the_loader() -> None:
    class Nested(Told):
        def state_dict(self) -> dict[str, Any]:
            return {"inner": {"epoch": self.epoch, "place": self.place}}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            super().load_state_dict(state["inner"])

    loader = resumable.wrap(Nested())
    state = [loader.state_dict() for _ in zip(range(3), loader, strict=False)][-1]
    golden = copy.deepcopy(state)
    fresh = resumable.wrap(Nested())
    fresh.load_state_dict(state)
    for shared in (state, fresh.state_dict()):
        shared["source_state"]["snapshot"]["inner"]["place"] = 0
    assert fresh.state_dict() == golden
    assert list(fresh) == [3, 4, 5]


@pytest.mark.filterwarnings("ignore:a loop over a resumed Loader")  # it counts no epochs
def test_a_state_of_another_history_counts_between_epochs() -> None:
    class Weighted(Told):
        """Its next epoch depends on how it was fed."""

        def __init__(self, salt: int) -> None:
            super().__init__()
            self.salt = salt

        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "salt": self.salt}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            super().load_state_dict(state)
            self.salt = state["salt"]

        def __iter__(self) -> Iterator[int]:
            return (element + self.salt for element in super().__iter__())

    one, other = resumable.wrap(Weighted(1000)), resumable.wrap(Weighted(2000))
    assert len(list(one)) == len(list(other)) == 6
    other.load_state_dict(one.state_dict())
    assert list(other) == list(one)


def test_a_snapshot_for_a_source_without_a_state_is_refused() -> None:
    loader = resumable.wrap(Told(), identity="numbers")
    state = [loader.state_dict() for _ in zip(range(3), loader, strict=False)][-1]
    for source in ([0, 1, 2, 3].__iter__, iter([0, 1, 2, 3])):
        replayed = resumable.wrap(source, identity="numbers")
        replayed.load_state_dict(state)
        with pytest.raises(StateMismatchError, match="snapshot"):
            next(iter(replayed))


@pytest.mark.parametrize(
    "damage",
    [{"skip": -1}, {"skip": True}, {"skip": 99}, {"skip": "1"}, {"snapshot": ...}, {"skip": ...}, {"ended": 1}],
)
def test_a_damaged_snapshot_is_refused_at_once(damage: dict[str, Any]) -> None:
    loader = resumable.wrap(Told())
    state = [loader.state_dict() for _ in zip(range(3), loader, strict=False)][-1]
    source = {name: value for name, value in (state["source_state"] | damage).items() if value is not ...}
    with pytest.raises(StateFormatError, match="skip|snapshot|ended"):
        loader.load_state_dict({**state, "source_state": source, "digest": None})


def test_a_length_that_is_too_small_does_no_harm() -> None:
    class Short(Told):
        def __len__(self) -> int:
            return 2

    run = rest_of_run(resumable.wrap(Short()), 2)
    loader = resumable.wrap(Short())
    states = [loader.state_dict() for epoch in loader.epochs(2) for _ in epoch]
    for step, state in enumerate(states, start=1):
        fresh = resumable.wrap(Short())
        fresh.load_state_dict(state)
        assert rest_of_run(fresh, 2) == run[step:]


def test_unread_epochs_live_and_resumed() -> None:
    """Unread epochs are passed alike by a live and a resumed loader."""

    def train(loader: resumable.Loader, limit: int) -> list[tuple[int, int]]:
        got = []
        for epoch in loader.epochs(5):
            for batch in epoch if epoch.number % 2 else ():
                got.append((epoch.number, batch))
                if len(got) == limit:
                    return got
        return got

    run = train(resumable.wrap(Told()), 99)
    assert [epoch for epoch, _ in run] == [1] * 6 + [3] * 6
    for limit in range(1, 12):
        loader = resumable.wrap(Told())
        got = train(loader, limit)
        fresh = resumable.wrap(Told())
        fresh.load_state_dict(loader.state_dict())
        assert got + train(fresh, 99) == run


def test_a_loader_is_true_and_is_not_copied() -> None:
    loader = resumable.wrap(Told())
    assert loader
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(UnsupportedError, match=r"cannot be copied or pickled.*\n.*state_dict"):
            duplicate(loader)


def test_there_are_no_places_before_the_beginning() -> None:
    loader = resumable.wrap(lambda: iter(range(5)))
    with pytest.raises(ConfigurationError, match="epoch=0, step=-3 is not a position"):
        loader.seek(epoch=0, step=-3)
    with pytest.raises(ConfigurationError, match="epoch=-1 does not exist"):
        resumable.wrap(range(5)).sample_indices(epoch=-1, step=0)


def test_failure_on_the_way_to_an_epochs_end() -> None:
    """A failure on the way to the end of an epoch gives no empty epoch."""
    fails = [False]

    def numbers(epoch: int) -> Iterator[int]:
        for index in range(2):
            if fails[0]:
                raise OSError("torn file")
            yield epoch * 100 + index

    loader = resumable.wrap(numbers)
    loader.seek(epoch=2, step=2)
    iterator, fails[0] = iter(loader), True
    with pytest.raises(OSError, match="torn file"):
        next(iterator)
    fails[0] = False
    assert list(iterator) == [300, 301]
