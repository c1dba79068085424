"""Sources that depend on their past in one way each, and sources that seem to and do not."""

from __future__ import annotations

import itertools
import multiprocessing
import queue
import random
import threading
import time
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LENGTH = 12
OPENED: list[Any] = []
SAMPLES: Any = torch.arange(LENGTH)


class Source:
    def __len__(self) -> int:
        return LENGTH


# ---------------------------------------------------------------------- they depend on their past


class Counter(Source):
    def __init__(self) -> None:
        self.passes = 0

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        yield from ((self.passes, number) for number in range(LENGTH))


class Late(Source):
    def __init__(self) -> None:
        self.passes = 0

    def __iter__(self) -> Iterator[Any]:
        yield from ((self.passes, number) for number in range(LENGTH))
        self.passes += 1


class EveryThird(Source):
    """Shows its count only in every third pass."""

    def __init__(self) -> None:
        self.passes = 0

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        yield from ((self.passes % 3 == 0, number) for number in range(LENGTH))


class InPlace(Source):
    def __init__(self) -> None:
        self.order = list(range(LENGTH))

    def __iter__(self) -> Iterator[Any]:
        random.shuffle(self.order)
        yield from list(self.order)


class InPlaceArray(Source):
    def __init__(self) -> None:
        self.order = np.arange(LENGTH)

    def __iter__(self) -> Iterator[Any]:
        np.random.shuffle(self.order)
        yield from self.order.tolist()


class OwnRandom(Source):
    def __init__(self) -> None:
        self.generator = random.Random(3)

    def __iter__(self) -> Iterator[Any]:
        yield from self.generator.sample(range(LENGTH), LENGTH)


class OwnNumpy(Source):
    def __init__(self) -> None:
        self.generator = np.random.default_rng(3)

    def __iter__(self) -> Iterator[Any]:
        for number in range(LENGTH):
            yield number, float(self.generator.random())


class OwnTorch(Source):
    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(3)

    def __iter__(self) -> Iterator[Any]:
        yield from torch.randperm(LENGTH, generator=self.generator).tolist()


class Cache(Source):
    """Augments each element once."""

    def __init__(self) -> None:
        self.cache: dict[int, float] = {}

    def __iter__(self) -> Iterator[Any]:
        for number in range(LENGTH):
            if number not in self.cache:
                self.cache[number] = random.random()
            yield self.cache[number]


class Prepared(Source):
    """As the loader of airbench."""

    def __init__(self) -> None:
        self.passes = 0

    def __iter__(self) -> Iterator[Any]:
        if self.passes == 0:
            self.flip = torch.rand(LENGTH) < 0.5
        flips = self.flip.tolist() if self.passes % 2 else [False] * LENGTH
        self.passes += 1
        for number in torch.randperm(LENGTH).tolist():
            yield number, flips[number]


class KeepsIterator(Source):
    def __init__(self) -> None:
        self.kept = itertools.count()

    def __iter__(self) -> Iterator[Any]:
        for _ in range(LENGTH):
            yield next(self.kept)


class Thread(Source):
    """Reads what a thread makes, over all epochs."""

    def __init__(self) -> None:
        self.made: queue.Queue[int] = queue.Queue(4)
        threading.Thread(target=self._make, args=(self.made,), daemon=True).start()

    @staticmethod
    def _make(made: queue.Queue[int]) -> None:
        for number in itertools.count():
            made.put(number)

    def __iter__(self) -> Iterator[Any]:
        for _ in range(LENGTH):
            yield self.made.get()


class Clock(Source):
    def __iter__(self) -> Iterator[Any]:
        for number in range(LENGTH):
            yield number, time.perf_counter_ns()


class Statistics(Source):
    """Counts without an effect: nobody can know that."""

    def __init__(self) -> None:
        self.read = 0

    def __iter__(self) -> Iterator[Any]:
        for number in range(LENGTH):
            self.read += 1
            yield number


def closure() -> Callable[[], Iterator[Any]]:
    order = list(range(LENGTH))

    def make() -> Iterator[Any]:
        random.shuffle(order)
        yield from list(order)

    return make


class Tracked(DataLoader[Any]):
    def __iter__(self) -> Any:
        yield from super().__iter__()


class Augmented(Dataset[Any]):
    def __init__(self) -> None:
        self.generator = np.random.RandomState(7)

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        return index, self.generator.rand()


class Reshuffles(IterableDataset[Any]):
    """As timm's reader of TFDS: counts its passes for all workers, and shuffles with a generator that lives on."""

    def __init__(self) -> None:
        self.passes = multiprocessing.Value("i", 0)
        self.generator = random.Random(5)

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        own = [*range(LENGTH)][info.id :: info.num_workers] if info else [*range(LENGTH)]
        if info is None or info.id == 0:
            self.passes.value += 1
        self.generator.shuffle(own)
        yield from ((number, random.random()) for number in own)


class SharedCount(Reshuffles):
    """The order depends on the count that all workers share."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        number, workers = (info.id, info.num_workers) if info else (0, 1)
        with self.passes.get_lock():
            self.passes.value += 1
            count = (self.passes.value - 1) // workers
        own = [*range(LENGTH)][number::workers]
        random.Random(count).shuffle(own)
        yield from own


class CountedOrder(Sampler[int]):
    """Is told the epoch, and shuffles with a generator that lives on."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(3)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(LENGTH, generator=self.generator).tolist()


class SeededOrder(CountedOrder):
    def __iter__(self) -> Iterator[int]:
        yield from random.Random(self.epoch).sample(range(LENGTH), LENGTH)


class StageOnly(CountedOrder):
    """Has a state without a position; drawing again is right."""

    def __iter__(self) -> Iterator[int]:
        yield from random.Random(self.epoch).sample(range(LENGTH), LENGTH)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]


class PositionOnly(Sampler[int]):
    """Has a state with a position, and without the generator that all epochs share."""

    def __init__(self) -> None:
        self.generator = random.Random(3)
        self.at = self.start = 0
        self.before = self.generator.getstate()

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        self.at, self.start = self.start, 0
        self.order = self.generator.sample(range(LENGTH), LENGTH)
        while self.at < LENGTH:
            self.at += 1
            yield self.order[self.at - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = state["at"] % LENGTH


class Complete(PositionOnly):
    """Has all of it in its state."""

    def __iter__(self) -> Iterator[int]:
        self.before = self.generator.getstate() if self.start == 0 else self.before
        self.generator.setstate(self.before)
        return super().__iter__()

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "before": self.before, "now": self.generator.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.before = state["before"]
        self.generator.setstate(state["now"])


class Buckets(IterableDataset[Any]):
    """Has a state without its buckets, so the next element is often right, and a later one is not."""

    def __init__(self) -> None:
        self.at, self.back = 0, False

    def __iter__(self) -> Iterator[Any]:
        if not self.back:
            self.at = 0
        self.back = False
        short: list[int] = []
        long: list[int] = []
        while self.at < 60:
            bucket = long if self.at % 5 == 0 else short
            bucket.append(self.at)
            self.at += 1
            if len(bucket) == 4:
                yield list(bucket)
                bucket.clear()

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.back = state["at"], True


def named(*makes: Any) -> dict[str, Callable[[], Any]]:
    return {make.__name__: make for make in makes}


DEPENDENT = named(
    *(Counter, Late, EveryThird, InPlace, InPlaceArray, OwnRandom, OwnNumpy, OwnTorch, Cache, Prepared),
    *(KeepsIterator, Thread, Clock, Statistics),
) | {"closure": closure, "Tracked": lambda: Tracked(Augmented(), batch_size=2)}


# ---------------------------------------------------------------------- they do not depend on it


class Seeded(Source):
    def __init__(self) -> None:
        self.generator = random.Random(3)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        self.generator.seed(self.epoch)
        yield from self.generator.sample(range(LENGTH), LENGTH)


class SeededTorch(Seeded):
    def __init__(self) -> None:
        self.generator = torch.Generator()  # type: ignore[assignment]  # another kind

    def set_epoch(self, epoch: int) -> None:
        self.generator.manual_seed(7 + epoch)  # type: ignore[attr-defined]  # it has that

    def __iter__(self) -> Iterator[Any]:
        yield from torch.randperm(LENGTH, generator=self.generator).tolist()  # type: ignore[call-overload]  # the same


class NewGenerator(Source):
    def __iter__(self) -> Iterator[Any]:
        self.generator = np.random.default_rng(5)
        yield from self.generator.permutation(LENGTH).tolist()


class Position(Source):
    def __iter__(self) -> Iterator[Any]:
        self.at = 0
        while self.at < LENGTH:
            self.at += 1
            yield self.at


class Coarse(Source):
    """Counts files from 0 in each epoch; the first elements do not show that."""

    def __init__(self) -> None:
        super().__init__()
        self.progress = {"file": 0}

    def __iter__(self) -> Iterator[Any]:
        self.progress = {"file": 0}
        for at in range(LENGTH):
            self.progress["file"] = at // 6
            yield at


class Iterating:
    """Its own iterator, which starts over."""

    def __iter__(self) -> Any:
        self.at = 0
        return self

    def __next__(self) -> int:
        if self.at == LENGTH:
            raise StopIteration
        self.at += 1
        return self.at


class Caching(Source):
    def __init__(self) -> None:
        self.cache: dict[int, int] = {}
        self.history: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        for number in random.sample(range(LENGTH), LENGTH):
            self.history.append(number)
            yield self.cache.setdefault(number, number * number)


class LeastRecentlyUsed(Source):
    def __init__(self) -> None:
        self.read = lru_cache(4)(lambda number: number * number)

    def __iter__(self) -> Iterator[Any]:
        yield from map(self.read, random.sample(range(LENGTH), LENGTH))


class Lazy(Source):
    """Opens a file at the first read, and keeps it."""

    def __init__(self) -> None:
        self.file: Any = None
        self.lock = threading.Lock()

    def __iter__(self) -> Iterator[Any]:
        if self.file is None:
            self.file = Path(__file__).open("rb")  # noqa: SIM115  # kept
            OPENED.append(self.file)
        for number in random.sample(range(LENGTH), LENGTH):
            with self.lock:
                self.file.seek(number)
                yield self.file.read(4)


class Sorted(Source):
    def __init__(self) -> None:
        self.order = list(range(LENGTH))

    def __iter__(self) -> Iterator[Any]:
        self.order.sort()
        random.shuffle(self.order)
        yield from list(self.order)


class Local(Source):
    def __init__(self) -> None:
        self.files = [f"shard-{number}" for number in range(LENGTH)]

    def __iter__(self) -> Iterator[Any]:
        files = list(self.files)
        random.shuffle(files)
        yield from files


class Staged(Source):
    """The loop sets its stage."""

    def __init__(self) -> None:
        self.stage = 0

    def __iter__(self) -> Iterator[Any]:
        for number in random.sample(range(LENGTH), LENGTH):
            yield self.stage, number


class ShuffledByTheLoop(Source):
    """The loop sets its stage, which puts its files in the order of that stage."""

    def __init__(self) -> None:
        self.files = [f"shard-{number}" for number in range(LENGTH)]

    def __iter__(self) -> Iterator[Any]:
        yield from list(self.files)

    @property
    def stage(self) -> int:
        return 0

    @stage.setter
    def stage(self, epoch: int) -> None:
        self.files.sort()
        random.Random(epoch).shuffle(self.files)


class Endless(Source):
    """Starts a thread in each pass."""

    def __iter__(self) -> Iterator[Any]:
        made: queue.Queue[int | None] = queue.Queue(4)
        stop = threading.Event()
        worker = threading.Thread(target=self._make, args=(made, stop), daemon=True)
        worker.start()
        try:
            while (number := made.get()) is not None:
                yield number
        finally:
            stop.set()

    @staticmethod
    def _make(made: queue.Queue[int | None], stop: threading.Event) -> None:
        for number in [*range(LENGTH), None]:
            while not stop.is_set():
                try:
                    made.put(number, timeout=0.05)
                except queue.Full:
                    continue
                break


def function() -> Iterator[int]:
    yield from random.sample(range(LENGTH), LENGTH)


def of_epoch(epoch: int) -> Iterator[int]:
    yield from random.Random(epoch).sample(range(LENGTH), LENGTH)


class KeepsError(Source):
    """Keeps the last error, to which something else adds notes."""

    error: OSError

    def __iter__(self) -> Iterator[int]:
        yield from range(LENGTH)
        self.error = getattr(self, "error", OSError("a read was tried twice"))
        self.error.add_note("at the end of an epoch")


class WithDel(Local):
    """Its copies would clean up what the original uses."""

    def __del__(self) -> None:
        self.files.clear()


RIGHT = named(
    *(Seeded, SeededTorch, NewGenerator, Position, Coarse, Iterating, Caching, LeastRecentlyUsed, Lazy, Sorted, Local),
    *(Staged, ShuffledByTheLoop, Endless, WithDel, KeepsError),
) | {
    "function": lambda: function,
    "of_epoch": lambda: of_epoch,
    "partial": lambda: partial(function),
    "list": lambda: _Again(list(range(LENGTH))),
    "tracked": lambda: Tracked(SAMPLES, batch_size=2, shuffle=True),
}


class _Again:
    """Any re-iterable object."""

    def __init__(self, elements: list[int]) -> None:
        self.elements = elements

    def __iter__(self) -> Iterator[int]:
        return iter(self.elements)
