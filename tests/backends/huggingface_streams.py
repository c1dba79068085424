"""Streams of Hugging Face's library, the ways to keep an epoch, and runs in fresh processes."""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from datasets import Dataset
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import resumable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EPOCHS = 3
SHARDS, SAMPLES = 5, 7

Batches = list[tuple[int, list[int]]]


def stream(*, shuffle: int = 0, shards: int = SHARDS) -> Any:
    """Seven samples; in another order of shards in each epoch. `shuffle` is the size of the buffer."""
    plain = Dataset.from_dict({"sample": list(range(SAMPLES))}).to_iterable_dataset(num_shards=shards)
    # From version 5 on, a buffer that is fed by several shards at once leaves a single worker with all of them.
    return plain.shuffle(seed=3, buffer_size=shuffle, max_buffer_input_shards=1) if shuffle else plain


class Around(IterableDataset[Any]):
    """A stream whose state is hidden, so that it is replayed."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def set_epoch(self, epoch: int) -> None:
        self.inner.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.inner)


class Waiting(Around):
    """Its second worker opens the stream only when a file is there."""

    def __init__(self, inner: Any, file: Path) -> None:
        super().__init__(inner)
        self.file = file

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        while info is not None and info.id == 1 and not self.file.exists():
            time.sleep(0.01)
        yield from self.inner


class Untold(IterableDataset[Any]):
    """Does not pass the epoch on: the training process tells the stream inside."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[Any]:
        return iter(self.inner)


class Laps(IterableDataset[Any]):
    """Goes round its data twice, and tells the stream itself which round it is, as torchtune's datasets do."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.lap = inner, 0

    def state_dict(self) -> dict[str, Any]:
        return {"lap": self.lap, "inner": self.inner.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.lap = state["lap"]
        self.inner.load_state_dict(state["inner"])

    def __iter__(self) -> Iterator[Any]:
        while True:
            self.inner.set_epoch(self.lap)
            yield from self.inner
            self.lap += 1
            if self.lap % 2 == 0:
                return


class Counting(IterableDataset[Any]):
    """Gives the number of the epoch, which is kept in memory that all workers share; slow in the first worker."""

    memory: Any

    def set_epoch(self, epoch: int) -> None:
        change = epoch - self.memory[0]
        info = get_worker_info()
        time.sleep(0.1 if info is not None and info.id == 0 else 0)
        self.memory[0] += change

    def __iter__(self) -> Iterator[Any]:
        for _ in range(4):
            yield {"sample": int(self.memory[0])}


class InTensor(Counting):
    def __init__(self) -> None:
        self.memory = torch.tensor([7]).share_memory_()  # type: ignore[no-untyped-call]  # torch's own


class InArray(Counting):
    def __init__(self) -> None:
        self.memory = multiprocessing.Array("q", [7])


class InNumPy(Counting):
    def __init__(self) -> None:
        self.memory = np.frombuffer(multiprocessing.RawArray("q", [7]), dtype=np.int64)


def first_worker_is_slow(worker: int) -> None:
    """A `worker_init_fn`: what happens between reading a tensor and writing it takes long in the first worker."""
    subtract = torch.Tensor.__rsub__

    def slow(self: torch.Tensor, other: Any) -> Any:
        difference = subtract(self, other)
        time.sleep(0.1)
        return difference

    if worker == 0:
        torch.Tensor.__rsub__ = slow  # type: ignore[method-assign]  # where a stream's set_epoch passes


@dataclass(frozen=True)
class Case:
    """A loader that a fresh process can make."""

    workers: int
    persistent: bool
    shuffle: bool
    stateful: bool
    slow: bool = False

    def __str__(self) -> str:
        life, order = "persistent" if self.persistent else "fresh", "shuffled" if self.shuffle else "in order"
        return f"{self.workers} {life} workers, {order}, {'state' if self.stateful else 'replay'}"

    def make(self) -> resumable.Loader:
        # A buffer of more than one sample is lost in the stream's own state.
        data = stream(shuffle=0 if not self.shuffle else 1 if self.stateful else 4)
        return wrap(
            data if self.stateful else Around(data),
            num_workers=self.workers,
            persistent_workers=self.persistent,
            worker_init_fn=first_worker_is_slow if self.slow else None,
            multiprocessing_context="fork",  # a fresh process would start its workers as it was started itself
        )


def wrap(data: Any, **options: Any) -> resumable.Loader:
    return resumable.wrap(DataLoader(data, batch_size=2, **options), identity="stream")


def batches(loader: resumable.Loader) -> Batches:
    return [(epoch.number, batch["sample"].tolist()) for epoch in loader.epochs(EPOCHS) for batch in epoch]


def golden(loader: resumable.Loader) -> tuple[Batches, list[Any]]:
    """Return the batches of an uninterrupted run, and the states before the first and after each of them."""
    run, states = Batches(), [loader.state_dict()]
    for epoch in loader.epochs(EPOCHS):
        for batch in epoch:
            run.append((epoch.number, batch["sample"].tolist()))
            states.append(loader.state_dict())
    return run, states


def rests(case: Case, states: list[Any]) -> list[Batches]:
    """Resume from each of the states, and return what is left of each run."""
    loaders = [case.make() for _ in states]
    for loader, state in zip(loaders, states, strict=True):
        loader.load_state_dict(state)
    return [batches(loaders.pop(0)) for _ in states]


@contextmanager
def fresh_processes() -> Iterator[ProcessPoolExecutor]:
    """Each task gets a process of its own, which has the libraries and nothing of ours."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["datasets", "resumable.backends.torch.adapter"])
    with ProcessPoolExecutor(2, mp_context=context, max_tasks_per_child=1) as pool:
        yield pool
