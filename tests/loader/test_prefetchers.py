"""Prefetchers around a Loader with `ack="manual"`: batches are in flight, also over an epoch's end, and none is lost.

The state after each `ack()` is that of the batches that were trained on, however far ahead the prefetcher has read.
"""

from __future__ import annotations

import functools
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from fuzz_sources import MAKERS, plain

import resumable
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

EPOCHS = 3
FAST = {"list", "list, carry", "map-style", "function", "remembering", "pass, rare snapshots", "stateful stream"}
KINDS = [kind if kind in FAST else pytest.param(kind, marks=pytest.mark.long) for kind in MAKERS]


class Ahead:
    """Reads a number of batches ahead, in the loop's own thread."""

    def __init__(self, batches: Iterable[Any], depth: int) -> None:
        self._batches, self._depth = iter(batches), depth
        self._waiting = deque[Any]()

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            self._waiting.append(batch)
            if len(self._waiting) > self._depth:
                yield self._waiting.popleft()
        while self._waiting:
            yield self._waiting.popleft()

    def close(self) -> None:
        """Stop reading."""


class Threaded:
    """Reads ahead in a thread, up to two batches that wait in a queue and one that does not fit."""

    def __init__(self, batches: Iterable[Any], _: int = 2) -> None:
        self._queue: queue.Queue[Any] = queue.Queue(2)
        self._stops = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, args=(iter(batches),), daemon=True)
        self._thread.start()

    def _read(self, batches: Iterator[Any]) -> None:
        try:
            while not self._stops.is_set() and (batch := next(batches, None)) is not None:
                self._put((batch,))
        except BaseException as error:  # noqa: BLE001  # the loop raises it
            self._error = error
        self._put(())

    def _put(self, item: tuple[Any, ...]) -> None:
        while not self._stops.is_set():
            try:
                self._queue.put(item, timeout=0.01)
            except queue.Full:
                continue
            return

    def __iter__(self) -> Iterator[Any]:
        while item := self._queue.get():
            yield item[0]
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Stop reading."""
        self._stops.set()
        self._thread.join()


PREFETCHERS: dict[str, Callable[[Iterable[Any]], Ahead | Threaded]] = {
    "1 ahead": lambda batches: Ahead(batches, 1),
    "2 ahead": lambda batches: Ahead(batches, 2),
    "3 ahead": lambda batches: Ahead(batches, 3),
    "thread": Threaded,
}


# ---------------------------------------------------------------------- loops


def in_epochs(loader: resumable.Loader[Any], _: int) -> Iterator[Iterable[Any]]:
    return iter(loader.epochs(EPOCHS))


def in_steps(loader: resumable.Loader[Any], steps: int) -> Iterator[Iterable[Any]]:
    yield loader.steps(steps)


def in_plain_loops(loader: resumable.Loader[Any], steps: int) -> Iterator[Iterable[Any]]:
    # The second condition is for sources without length, where an epoch's end is known once a batch is requested.
    while loader.epoch < EPOCHS and loader.progress.steps_delivered < steps:
        yield loader


def in_plain_loops_that_are_crossed(loader: resumable.Loader[Any], steps: int) -> Iterator[Iterable[Any]]:
    yield (batch for loop in in_plain_loops(loader, steps) for batch in loop)


LOOPS = (in_epochs, in_steps, in_plain_loops, in_plain_loops_that_are_crossed)
Loops = Callable[[resumable.Loader[Any], int], "Iterator[Iterable[Any]]"]


@functools.cache
def whole_run(kind: str) -> list[Any]:
    """The batches of an uninterrupted run, each of which counts when it is delivered."""
    return [plain(batch) for epoch in MAKERS[kind]().epochs(EPOCHS) for batch in epoch]


def rest_of(kind: str, state: Any, loops: Loops) -> list[Any]:
    """The batches of a resumed run, without a prefetcher."""
    loader = MAKERS[kind](ack="manual")
    loader.load_state_dict(state)
    rest = []
    for batches in loops(loader, len(whole_run(kind))):
        for batch in batches:
            rest.append(plain(batch))
            loader.ack()
            assert loader.global_step == state["global_step"] + len(rest)
    return rest


class Training:
    """Trains with a prefetcher, acknowledges every second batch or each, and saves before and after that."""

    def __init__(self, kind: str, window: int) -> None:
        self.loader = MAKERS[kind](ack="manual")
        self.window, self.steps = window, len(whole_run(kind))
        self.trained: list[Any] = []
        self.acked = 0
        self.states: list[tuple[int, Any]] = []  # each with the number of batches in the weights
        self.save()

    def on(self, batch: Any) -> None:
        self.save()  # with batches in flight
        self.trained.append(plain(batch))
        if len(self.trained) - self.acked == self.window:
            self.ack()

    def ack(self) -> None:
        self.loader.ack(len(self.trained) - self.acked)
        self.acked = len(self.trained)
        self.save()

    def save(self) -> None:
        state = self.loader.state_dict()
        assert self.loader.global_step == state["global_step"] == self.acked
        if not self.states or self.states[-1] != (self.acked, state):
            self.states.append((self.acked, state))


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("loops", LOOPS)
@pytest.mark.parametrize("prefetcher", PREFETCHERS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_state_after_each_ack_is_that_of_the_weights(kind: str, prefetcher: str, loops: Loops, window: int) -> None:
    whole, run = whole_run(kind), Training(kind, window)
    for batches in loops(run.loader, run.steps):
        for batch in PREFETCHERS[prefetcher](batches):
            run.on(batch)
        if len(run.trained) > run.acked:
            run.ack()
    assert run.trained == whole
    assert run.loader.global_step == len(whole)
    assert len(run.states) > len(whole) // window
    for trained, state in run.states:
        assert rest_of(kind, state, loops) == whole[trained:], trained


@pytest.mark.parametrize("loops", LOOPS)
@pytest.mark.parametrize("prefetcher", PREFETCHERS)
@pytest.mark.parametrize("kind", KINDS)
def test_rewind_after_a_left_loop(kind: str, prefetcher: str, loops: Loops) -> None:
    """A loop that is left continues after a rewind with no batch twice."""
    whole = whole_run(kind)
    for left in range(1, len(whole)):
        run = Training(kind, 1)
        for batches in loops(run.loader, run.steps):
            reading = PREFETCHERS[prefetcher](batches)
            for batch in reading:
                run.on(batch)
                if len(run.trained) == left:
                    break
            if len(run.trained) == left:
                reading.close()
                break
        run.loader.rewind()
        assert run.loader.global_step == run.loader.state_dict()["global_step"] == left
        assert not run.loader.progress.in_flight
        for batches in loops(run.loader, run.steps):
            for batch in PREFETCHERS[prefetcher](batches):
                run.on(batch)
        assert run.trained == whole


@pytest.mark.parametrize("prefetcher", PREFETCHERS)
def test_batches_in_flight_come_once(prefetcher: str) -> None:
    """Without a rewind, the batches in flight are not delivered twice."""
    whole, run = whole_run("list"), Training("list", 1)
    reading = PREFETCHERS[prefetcher](run.loader.steps(run.steps))
    for batch in reading:
        run.on(batch)
        if len(run.trained) == 3:
            break
    reading.close()
    waiting = run.loader.progress.in_flight
    assert waiting
    assert [plain(batch) for batch in run.loader.steps(run.steps)] == whole[3 + waiting :]
    assert run.loader.global_step == 3, "what was acknowledged"


@pytest.mark.parametrize("prefetcher", PREFETCHERS)
def test_prefetcher_asks_for_an_epoch_too_early(prefetcher: str) -> None:
    """A prefetcher that asks for the next epoch too early raises.

    Around `epochs()`, a prefetcher belongs around each epoch, or it ends one whose batches are in flight.
    """
    run = Training("list", 1)
    batches = (batch for epoch in run.loader.epochs(EPOCHS) for batch in epoch)
    with pytest.raises(ConfigurationError, match="delivered batches that were not acknowledged"):
        for batch in PREFETCHERS[prefetcher](batches):
            run.on(batch)
    assert run.trained == whole_run("list")[: len(run.trained)]
    assert rest_of("list", run.loader.state_dict(), in_epochs) == whole_run("list")[run.acked :]
