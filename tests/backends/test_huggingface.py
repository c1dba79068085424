"""Hugging Face's `IterableDataset` gives the same stream in every run, also where its workers share its epoch."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import huggingface_streams as streams
import pytest
from torch.utils.data import DataLoader

import resumable
from resumable.testing import BackendTests

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker")]


class TestInTheProcess(BackendTests):
    native = True

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return resumable.wrap(DataLoader(streams.stream(), batch_size=4), **options)


@pytest.mark.long  # as the other class here
class TestByPersistentWorkers(BackendTests):
    native = True
    stride = 3

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        loader = DataLoader(streams.stream(), batch_size=4, num_workers=2, persistent_workers=True)
        return resumable.wrap(loader, **options)


# ---------------------------------------------------------------------- resumed, with a worker that is slow


@pytest.fixture(scope="module")
def processes() -> Iterator[Executor]:
    with streams.fresh_processes() as pool:
        yield pool


def cases() -> Iterator[streams.Case]:
    """All with two workers, and half of them with one and three."""
    for workers, persistent, shuffle, stateful in product((1, 2, 3), (True, False), (True, False), (True, False)):
        if workers == 2 or persistent ^ shuffle ^ stateful:
            yield streams.Case(workers, persistent, shuffle, stateful)


def check(case: streams.Case, processes: Executor, together: int) -> None:
    run, states = streams.golden(case.make())
    assert len({str([batch for epoch, batch in run if epoch == number]) for number in range(3)}) == 3
    hurt = replace(case, slow=True)
    futures = [
        processes.submit(streams.rests, hurt, states[at : at + together]) for at in range(0, len(states), together)
    ]
    rests = [rest for future in futures for rest in future.result()]
    for step, rest in enumerate(rests):
        assert rest == run[step:], f"resumed after {step} batches"


def sampled() -> Iterator[Any]:
    """Every second case; the others are left to `make test-long`."""
    for number, case in enumerate(cases()):
        yield pytest.param(case, marks=[pytest.mark.long] * (number % 2), id=str(case))


@pytest.mark.parametrize("case", list(sampled()))
def test_resumed_at_every_step_the_rest_is_the_same(case: streams.Case, processes: Executor) -> None:
    check(case, processes, together=99)


@pytest.mark.parametrize("stateful", [True, False])
def test_fresh_process_at_every_step(stateful: bool, processes: Executor) -> None:
    """A fresh process that resumes at any step gives the same rest."""
    check(streams.Case(2, persistent=True, shuffle=True, stateful=stateful), processes, together=1)


# ---------------------------------------------------------------------- an epoch in memory that the workers share

LIVES = {"fresh workers": {"num_workers": 2}, "persistent workers": {"num_workers": 2, "persistent_workers": True}}
each_life = pytest.mark.parametrize("life", LIVES.values(), ids=list(LIVES))


@each_life
@pytest.mark.parametrize("kind", [streams.InTensor, streams.InArray, streams.InNumPy])
def test_all_workers_are_in_the_epoch_that_they_are_told(kind: type[streams.Counting], life: dict[str, Any]) -> None:
    assert streams.batches(streams.wrap(kind(), **life)) == [
        (epoch, [epoch] * 2) for epoch in range(3) for _ in range(4)
    ]


def test_workers_that_are_spawned_share_it_too() -> None:
    options = {**LIVES["persistent workers"], "multiprocessing_context": "spawn"}
    run = streams.batches(streams.wrap(streams.InTensor(), **options))
    assert run == [(epoch, [epoch] * 2) for epoch in range(3) for _ in range(4)]
    golden = streams.batches(streams.wrap(streams.stream(), **LIVES["persistent workers"]))
    slow = {"worker_init_fn": streams.first_worker_is_slow}
    assert streams.batches(streams.wrap(streams.stream(), **options, **slow)) == golden


@each_life
@pytest.mark.long
def test_a_dataset_around_a_stream_may_tell_it_at_any_time(life: dict[str, Any]) -> None:
    run, states = streams.golden(streams.wrap(streams.Laps(streams.stream()), **life))
    slow = {"worker_init_fn": streams.first_worker_is_slow}
    for step, state in enumerate(states):
        loader = streams.wrap(streams.Laps(streams.stream()), **life, **slow)
        loader.load_state_dict(state)
        assert streams.batches(loader) == run[step:], f"resumed after {step} batches"


def test_two_loaders_may_be_in_two_epochs_of_one_stream(tmp_path: Path) -> None:
    life = LIVES["persistent workers"]
    golden = streams.batches(streams.wrap(streams.stream(), **life))
    stream, file = streams.stream(), tmp_path / "opens"
    waiting = streams.wrap(streams.Waiting(stream, file), **life)
    waiting.seek(epoch=2)
    got = []
    for epoch in waiting.epochs(3):
        for batch in epoch:
            got.append((epoch.number, batch["sample"].tolist()))
            if not file.exists():
                assert streams.batches(streams.wrap(streams.Around(stream), **life)) == golden
                stream.set_epoch(0)
                file.touch()
    assert got == [batch for batch in golden if batch[0] == 2]


def test_a_stream_that_only_the_training_process_tells_hears_it() -> None:
    """As in a plain `DataLoader`, whose persistent workers share the stream's epoch for this purpose."""
    life = LIVES["persistent workers"]
    golden = streams.batches(streams.wrap(streams.stream(), **life))
    stream = streams.stream()
    got = []
    for epoch in streams.wrap(streams.Untold(stream), **life).epochs(3):
        stream.set_epoch(epoch.number)
        got += [(epoch.number, batch["sample"].tolist()) for batch in epoch]
    assert got == golden


def test_workers_do_not_tell_the_training_process() -> None:
    stream = streams.stream()
    assert {epoch for epoch, _ in streams.batches(streams.wrap(stream, num_workers=2))} == {0, 1, 2}
    assert stream.epoch == 0


@each_life
def test_workers_without_a_shard_are_idle(life: dict[str, Any]) -> None:
    def make() -> resumable.Loader:
        return streams.wrap(streams.stream(shards=1), **life)

    run, states = streams.golden(make())
    assert len(run) == 12
    for step, state in enumerate(states):
        loader = make()
        loader.load_state_dict(state)
        assert streams.batches(loader) == run[step:], f"resumed after {step} batches"
