"""A process that is forked in the middle of an epoch leaves the worker processes to its parent."""

from __future__ import annotations

import gc
import multiprocessing
import os
from typing import TYPE_CHECKING, Any

import pytest
from torch.utils.data import DataLoader, Dataset

import resumable

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

BATCHES = 6


class Readers(Dataset[list[int]]):
    """Gives each sample with the process for which a worker reads it."""

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> list[int]:
        return [index, os.getppid()]


def loader_of_two(*, persistent: bool = False) -> resumable.Loader[Any]:
    """Return a loader that raises, instead of waiting for ever, where its workers are gone."""
    plain = DataLoader(Readers(), num_workers=2, batch_size=None, persistent_workers=persistent, timeout=10)
    return resumable.wrap(plain)


def in_a_fork(call: Callable[[], Any]) -> Any:
    """Return what a call returns or raises in a forked process that ends as those of `multiprocessing` do."""
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def run() -> None:
        try:
            answer = call()
        except resumable.ResumableError as error:
            answer = type(error).__name__
        answers.put((os.getpid(), answer))

    process = context.Process(target=run)
    process.start()
    process.join(30)
    assert process.exitcode == 0
    return answers.get()


def use(held: dict[str, Any]) -> Any:
    return next(held["iterator"])


def drop(held: dict[str, Any]) -> None:
    held.clear()
    gc.collect()


def leave(held: dict[str, Any]) -> None:
    del held


def go_on(held: dict[str, Any]) -> Any:
    """Begin a stream of its own at the same place."""
    loader = held["loader"]
    loader.load_state_dict(loader.state_dict())
    return list(loader)


@pytest.mark.parametrize("does", [use, drop, leave, go_on])
def test_a_fork_in_the_middle_of_an_epoch(does: Callable[[dict[str, Any]], Any]) -> None:
    loader = loader_of_two()
    iterator = iter(loader)
    got = [next(iterator)]
    held = {"loader": loader, "iterator": iterator}
    del loader, iterator
    pid, answer = in_a_fork(lambda: does(held))
    if does is use:
        assert answer == "UnsupportedError"
    elif does is go_on:
        assert answer == [[index, pid] for index in range(1, BATCHES)]
    got += held["iterator"]
    assert got == [[index, os.getpid()] for index in range(BATCHES)]


def test_a_fork_between_two_epochs_gets_workers_of_its_own() -> None:
    loader = loader_of_two(persistent=True)
    ours = [[index, os.getpid()] for index in range(BATCHES)]
    assert list(loader) == ours
    pid, answer = in_a_fork(lambda: list(loader))
    assert answer == [[index, pid] for index in range(BATCHES)]
    assert list(loader) == ours
