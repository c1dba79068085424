"""Small sources of every kind that is resumed in this process, for the fuzzes."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from torch.utils.data import DataLoader, IterableDataset

import resumable
from resumable import World
from resumable.errors import ConfigurationError, SampleError, StateError
from resumable.loader import registry as _registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DOCUMENTED = (StateError, ConfigurationError, SampleError)  # what a state or a call can be refused with


class TheirError(Exception):
    """What a user's object raises where its own state has another type, or is none that it can have had."""


def number_of(epoch: int) -> int:
    """Return the first number of an epoch; small, as torch's collation takes no larger ones than of 64 bits."""
    return epoch % 10_000 * 100


class Pass:
    """Begins each epoch at its beginning, and its elements say the epoch; what it keeps is one dict."""

    length = 7

    def __init__(self) -> None:
        self.state = {"epoch": 0, "given": 0}

    def set_epoch(self, epoch: int) -> None:
        if self.state["epoch"] != epoch:
            self.state = {"epoch": epoch, "given": 0}

    def __iter__(self) -> Iterator[int]:
        if self.state["given"] == self.length:
            self.state["given"] = 0
        while self.state["given"] < self.length:
            self.state["given"] += 1
            yield number_of(self.state["epoch"]) + self.state["given"] - 1

    def state_dict(self) -> dict[str, int]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, int]) -> None:
        epoch, given = state["epoch"], state["given"]
        if not (type(epoch) is type(given) is int and epoch >= 0 and 0 <= given <= self.length):
            raise TheirError(str(state)[:80])
        self.state = {"epoch": epoch, "given": given}


class RarePass(Pass):
    """Wants no snapshot for every batch."""

    snapshot_every = 3


class Reader:
    """Goes on where it stands, pass after pass."""

    length = 5

    def __init__(self) -> None:
        self.index, self.laps = 0, 0

    def __iter__(self) -> Iterator[int]:
        while self.index < self.length:
            self.index += 1
            yield self.laps * 100 + self.index - 1
        self.index, self.laps = 0, self.laps + 1

    def get_state(self) -> tuple[int, int]:
        return self.index, self.laps

    def set_state(self, state: tuple[int, int]) -> None:
        index, laps = state
        if not (type(index) is type(laps) is int and 0 <= index <= self.length and laps >= 0):
            raise TheirError(str(state)[:80])
        self.index, self.laps = index, laps


class Counter:
    """An iterator with a state of its own."""

    def __init__(self, epoch: int) -> None:
        self.epoch, self.given = epoch, 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.given == 6:
            raise StopIteration
        self.given += 1
        return number_of(self.epoch) + self.given - 1

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        given = state["given"]
        if type(given) is not int or not 0 <= given <= 6:
            raise TheirError(str(state)[:80])
        self.given = given


class Again:
    """A re-iterable object with a length, which is told the epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[int]:
        return (number_of(self.epoch) + number for number in range(6))


class Restarting(Pass):
    """Begins again whenever it is iterated, so that it can be replayed although it has a state."""

    def __iter__(self) -> Iterator[int]:
        self.state["given"] = 0
        return super().__iter__()


class Stream(IterableDataset[int]):
    """Without a state."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return (number_of(self.epoch) + number for number in range(7))


class StatefulStream(Pass, IterableDataset[int]):
    """With one."""


class Order(Pass):
    """A sampler with a state; another order in each epoch."""

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        return ((number // 100 + number % 100) % self.length for number in super().__iter__())


class Remembering:
    """A map-style source whose samples say how many were read before them."""

    def __init__(self) -> None:
        self.read = 0

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> int:
        self.read += 1
        return number_of(self.read) + index

    def state_dict(self) -> dict[str, int]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        read = state["read"]
        if type(read) is not int or read < 0:
            raise TheirError(str(state)[:80])
        self.read = read


class Told:
    """A sampler without a state, which is told the epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 7

    def __iter__(self) -> Iterator[int]:
        return iter([(number + self.epoch) % 7 for number in range(7)])


class Turning:
    """A sampler that counts its passes, and has neither a state nor `set_epoch`."""

    def __init__(self) -> None:
        self.turns = 0

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[int]:
        self.turns += 1
        return iter([(number * 5 + self.turns) % 6 for number in range(6)])


class Pairs:
    """A batch sampler with a state."""

    def __init__(self) -> None:
        self.given = 0

    def __iter__(self) -> Iterator[list[int]]:
        while self.given < 4:
            self.given += 1
            yield [2 * self.given - 2, 2 * self.given - 1]
        self.given = 0

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        Counter.load_state_dict(self, state)  # type: ignore[arg-type]  # the same fields and limits


def numbers(epoch: int) -> Iterator[int]:
    yield from range(number_of(epoch), number_of(epoch) + 6)


def counters(epoch: int) -> Counter:
    return Counter(epoch)


def over(dataset: Any, options: dict[str, Any], **given: Any) -> resumable.Loader:
    return resumable.wrap(DataLoader(dataset, **options), seed=3, **given)


def samples(length: int, **options: Any) -> Callable[..., resumable.Loader]:
    return lambda **given: resumable.wrap(list(range(length)), **{"seed": 3, **options, **given})


MAKERS: dict[str, Callable[..., resumable.Loader]] = {
    "list": samples(7, batch_size=2, shuffle=True),
    "list, batches": samples(5),
    "list, drop": samples(7, batch_size=2, tail="drop", shuffle=True),
    "list, carry": samples(7, batch_size=3, tail="carry", shuffle=True),
    "list, pad, rank 1 of 2": samples(9, batch_size=2, tail="pad", world=World(1, 2), shuffle=True),
    "list, pad_ranks, rank 0 of 2": samples(9, batch_size=2, tail="pad_ranks", world=World(0, 2)),
    "list, drop_ranks, rank 1 of 2": samples(9, batch_size=2, tail="drop_ranks", world=World(1, 2)),
    "list, uneven": samples(11, batch_size=2, tail="drop", world=World(1, 3)),
    "list, moving borders": samples(9, batch_size=2, shuffle=True, on_change="continue"),
    "list, keep_local": samples(9, batch_size=2, tail="drop", world=World(0, 2), on_change="keep_local"),
    "array": lambda **given: resumable.wrap(np.arange(12).reshape(6, 2), batch_size=4, shuffle=True, seed=3, **given),
    "map-style": lambda **given: over(list(range(9)), {"batch_size": 2, "shuffle": True}, **given),
    "remembering": lambda **given: resumable.wrap(Remembering(), batch_size=2, shuffle=True, seed=3, **given),
    "remembering, map-style": lambda **given: over(Remembering(), {"batch_size": 2, "shuffle": True}, **given),
    "sampler": lambda **given: over(list(range(7)), {"batch_size": 2, "sampler": Order()}, **given),
    "sampler, told": lambda **given: over(list(range(7)), {"batch_size": 2, "sampler": Told()}, **given),
    "sampler, turning": lambda **given: over(list(range(6)), {"batch_size": 2, "sampler": Turning()}, **given),
    "batch sampler": lambda **given: over(list(range(8)), {"batch_sampler": Pairs()}, **given),
    "function": lambda **given: resumable.wrap(numbers, batch_size=2, seed=3, **given),
    "function, own part": lambda **given: resumable.wrap(numbers, shard=False, world=World(1, 2), seed=3, **given),
    "function, rank 1 of 2": lambda **given: resumable.wrap(
        numbers, batch_size=1, tail="drop", world=World(1, 2), seed=3, **given
    ),
    "again": lambda **given: resumable.wrap(Again(), batch_size=4, seed=3, **given),
    "iterator with a state": lambda **given: resumable.wrap(Counter, batch_size=4, seed=3, **given),
    "function of iterators": lambda **given: resumable.wrap(counters, seed=3, **given),
    "pass": lambda **given: resumable.wrap(Pass(), batch_size=2, seed=3, **given),
    "pass, rare snapshots": lambda **given: resumable.wrap(RarePass(), seed=3, **given),
    "replayed": lambda **given: resumable.wrap(Restarting(), batch_size=2, resume="replay", seed=3, **given),
    "reader": lambda **given: resumable.wrap(Reader(), batch_size=2, tail="drop", seed=3, **given),
    "stream": lambda **given: over(Stream(), {"batch_size": 2}, **given),
    "stream, drop_last": lambda **given: over(Stream(), {"batch_size": 2, "drop_last": True}, **given),
    "stateful stream": lambda **given: over(StatefulStream(), {"batch_size": 2}, **given),
}


def plain(batch: Any) -> Any:
    """Return a batch as what can be compared."""
    return batch.tolist() if hasattr(batch, "tolist") else batch


def rest(loader: resumable.Loader, count: int) -> list[Any]:
    """Return the next batches, of as many epochs as that takes."""
    assert loader.epoch >= 0, "asked for: no epochs are counted"
    found: list[Any] = []
    for _ in range(count):
        for batch in loader:
            found.append(plain(batch))
            if loader.ack_mode == "manual":
                loader.ack()
            if len(found) == count:
                return found
    return found


@contextmanager
def one_lookup() -> Iterator[None]:
    """Look once for the adapters of other packages, which is the slowest part of `wrap`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_registry, "_installed", functools.cache(_registry._installed))
        yield
