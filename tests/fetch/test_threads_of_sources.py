"""Sources that read in a thread: the order of an epoch is repeatable, and a thread that uses the RNGs is reported."""

from __future__ import annotations

import queue
import random
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

import resumable
from resumable.errors import PromiseWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

DATA: Any = list(range(24))
EPOCHS = 3


class Background(threading.Thread):
    """The popular prefetcher."""

    def __init__(self, source: Iterable[Any]) -> None:
        super().__init__(daemon=True)
        self.source, self.queue = source, queue.Queue[Any](4)
        self.start()

    def run(self) -> None:
        for item in self.source:
            self.queue.put(item)
        self.queue.put(None)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        item = self.queue.get()
        if item is None:
            raise StopIteration
        return item


class DataLoaderX(DataLoader[Any]):
    def __iter__(self) -> Any:
        return Background(super().__iter__())


class Plainly(DataLoader[Any]):
    def __iter__(self) -> Any:
        yield from super().__iter__()


class Remembers(Plainly):
    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, _: Any) -> None: ...


def shuffled(draw: Callable[[list[int]], Any]) -> Callable[[], Iterator[Any]]:
    """Return a source whose thread shuffles the order."""

    def order() -> Iterator[int]:
        indices = list(DATA)
        time.sleep(0.001)  # as long as a list of files takes
        draw(indices)
        yield from indices

    def make() -> Iterator[Any]:
        yield from Background(order())

    return make


class LazyStream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(shuffled(random.shuffle)())


SOURCES: dict[str, Callable[[], Any]] = {
    "a subclass of DataLoader": lambda: resumable.wrap(
        DataLoaderX(DATA, batch_size=4, shuffle=True), seed=0, resume="replay"
    ),
    "a generator": lambda: resumable.wrap(shuffled(random.shuffle), batch_size=4, seed=0),
    "one with NumPy": lambda: resumable.wrap(shuffled(np.random.shuffle), batch_size=4, seed=0),
    "an object": lambda: resumable.wrap(lambda: Background(shuffled(random.shuffle)()), batch_size=4, seed=0),
    "a stream": lambda: resumable.wrap(DataLoader(LazyStream(), batch_size=4), seed=0),
}


def plain(batch: Any) -> list[int]:
    return [int(one) for one in batch]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", SOURCES)
def test_order_that_a_thread_shuffles(kind: str) -> None:
    """The order is the same in each run, whatever numbers the trainer uses, and a resume continues it at each step."""
    runs = []
    for number in range(6):
        torch.manual_seed(number)
        random.seed(number)
        runs.append([plain(batch) for epoch in SOURCES[kind]().epochs(1) for batch in epoch])
    assert all(run == runs[0] for run in runs)
    loader, whole, states = SOURCES[kind](), [], []
    for epoch in loader.epochs(EPOCHS):
        for batch in epoch:
            whole.append(plain(batch))
            states.append(loader.state_dict())
            torch.rand(1)
    assert len({str(whole[first : first + 6]) for first in (0, 6, 12)}) == EPOCHS
    for done, state in list(enumerate(states, start=1))[::3]:
        again = SOURCES[kind]()
        again.load_state_dict(state)
        assert [plain(batch) for epoch in again.epochs(EPOCHS) for batch in epoch] == whole[done:]


class Augments(Dataset[Any]):
    def __init__(self, draws: bool) -> None:
        self.draws = draws

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> float:
        time.sleep(0.001)
        return index + (random.random() if self.draws else 0)


@pytest.mark.parametrize("augments", [False, True])
def test_thread_that_augments_each_sample(augments: bool) -> None:
    """The thread races with the seeds of the Loader. A thread that only reads is fine."""
    loader = resumable.wrap(DataLoaderX(Augments(augments), batch_size=4), seed=0, resume="replay")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _, batch in zip(range(20), loader, strict=False):
            assert len(batch) == 4
    assert [("thread (Thread-" in str(one.message), one.category) for one in found] == [
        (True, PromiseWarning)
    ] * augments


def test_a_subclass_is_reported_by_wrap() -> None:
    with pytest.warns(PromiseWarning, match=r"Plainly is a DataLoader with its own __iter__(.|\n)*collate_fn"):
        resumable.wrap(Plainly(DATA))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for fine in (Remembers(DATA), DataLoader(DATA)):
            resumable.wrap(fine)
        resumable.wrap(Plainly(DATA), resume="replay")
        resumable.wrap(Plainly(DATA), evaluation=True)


@pytest.mark.filterwarnings("error")
def test_a_thread_over_the_loader() -> None:
    """The program that the message recommends is exact."""
    loader = resumable.wrap(DataLoader(DATA, batch_size=4, shuffle=True), seed=0, ack="manual")
    whole = [plain(batch) for batch in resumable.wrap(DataLoader(DATA, batch_size=4, shuffle=True), seed=0)]
    for done, batch in enumerate(Background(loader), start=1):
        assert plain(batch) == whole[done - 1]
        loader.ack()
        again = resumable.wrap(DataLoader(DATA, batch_size=4, shuffle=True), seed=0)
        again.load_state_dict(loader.state_dict())
        assert [plain(one) for one in next(iter(again.epochs(2)))] == whole[done % 6 :] or done == 6
