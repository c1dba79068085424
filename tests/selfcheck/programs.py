"""Loaders that resume, and loaders that do not, each by a function; imports nothing slow."""

from __future__ import annotations

import itertools
import os
import random
import time
from typing import TYPE_CHECKING, Any

import numpy as np

import resumable

if TYPE_CHECKING:
    from collections.abc import Iterator

_ids = itertools.count()


class Samples:
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return {"index": index, "x": random.random() + np.random.rand()}


class OwnGenerator(Samples):
    def __init__(self, seed: int | None) -> None:
        self.generator = random.Random(seed)

    def __getitem__(self, index: int) -> Any:
        return {"index": index, "x": self.generator.random()}


class Unseeded(Samples):
    """Its generator is nowhere but in the call."""

    def __getitem__(self, index: int) -> Any:
        return {"index": index, "x": np.random.default_rng().random()}


class Hidden(Samples):
    """Its random numbers were generated in advance, so there is no generator to find."""

    def __init__(self) -> None:
        generator = random.Random(0)
        self.numbers = iter([generator.random() for _ in range(10_000)])

    def __getitem__(self, index: int) -> Any:
        return next(self.numbers)


class OfTheSystem(Samples):
    def __getitem__(self, index: int) -> Any:
        return index, os.urandom(4)


class Counts(Samples):
    calls = 0

    def __getitem__(self, index: int) -> Any:
        self.calls += 1
        return index, self.calls


class Stream:
    """A source with a state, which may forget what it has in its buffer."""

    def __init__(self, *, forgets: bool) -> None:
        self.next, self.buffer, self.forgets = 0, list[int](), forgets

    def __iter__(self) -> Iterator[int]:
        while self.next < 26 or self.buffer:
            while self.next < 26 and len(self.buffer) < 5:
                self.buffer.append(self.next)
                self.next += 1
            yield self.buffer.pop(len(self.buffer) // 2)
        self.next = 0

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next, **({} if self.forgets else {"buffer": list(self.buffer)})}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next, self.buffer = state["next"], list(state.get("buffer", []))


class Aliases(Stream):
    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next, "buffer": self.buffer}


def wrapped(samples: Any, **options: Any) -> Any:
    return resumable.wrap(samples, **{"batch_size": 4, "shuffle": True, **options})


def right() -> Any:
    return wrapped(Samples())


def plain_list() -> Any:
    return wrapped(list(range(22)))


def arrays() -> Any:
    return wrapped(np.arange(2000).reshape(1000, 2))


def elements() -> Iterator[Any]:
    for number in range(22):
        yield {"x": np.full(2, number), "text": f"text {number}", "noise": random.random()}


def generator() -> Any:
    return resumable.wrap(elements, batch_size=4)


def stateful() -> Any:
    return resumable.wrap(Stream(forgets=False), batch_size=4)


def manual() -> Any:
    return wrapped(Samples(), ack="manual")


def two() -> Any:
    return {"train": right(), "val": resumable.wrap(list(range(10)), batch_size=4, evaluation=True)}


def system() -> Any:
    return wrapped(OfTheSystem())


def own_generator() -> Any:
    return wrapped(OwnGenerator(None))


def unseeded() -> Any:
    return wrapped(Unseeded())


def counting() -> Any:
    return wrapped(Counts())


def unseeded_stream() -> Any:
    def draw() -> Iterator[float]:
        generator = np.random.default_rng()
        yield from (float(generator.random()) for _ in range(20))

    return resumable.wrap(draw, batch_size=4)


def forgetting() -> Any:
    return resumable.wrap(Stream(forgets=True), batch_size=4, checks="ranks")


def aliasing() -> Any:
    return resumable.wrap(Aliases(forgets=False), batch_size=4, checks="ranks")


def outside() -> Any:
    """Another list at each call."""
    return wrapped([f"{next(_ids)}-{number}" for number in range(20)])


def of_a_set() -> Any:
    return wrapped(list({f"word {number}" for number in range(20)}), shuffle=False)


def unseeded_list() -> Any:
    files = [f"{number}.png" for number in range(20)]
    random.shuffle(files)
    return wrapped(files, shuffle=False)


def trainers() -> Any:
    return wrapped(Samples(), randomness="off")


def fails() -> Any:
    raise KeyError("no such folder")


def needs(folder: str, size: int = 3) -> Any:
    raise AssertionError(folder, size)


def nothing() -> Any:
    return None


def text() -> Any:
    return "a text"


number = 3


def hidden() -> Any:
    return wrapped(Hidden())


def slow() -> Any:
    time.sleep(0.3)
    return right()


_one: list[Any] = []


def the_same() -> Any:
    _one[:] = _one or [right()]
    return {"train": _one[0]}
