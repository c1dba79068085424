"""A fixed number of logical streams: the batches and the states are the same for any number of workers."""

from __future__ import annotations

import signal
import subprocess
import sys
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any

import logical_data as data
import numpy as np
import pytest
import torch
from logical_data import EPOCHS, Replayed, Stateful, make
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info

import resumable
from resumable import World
from resumable.errors import ConfigurationError, StateMismatchError, UnsupportedError
from resumable.testing import BackendTests, digest, rest_of_run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SOURCES: dict[str, type[Replayed]] = {"replayed": Replayed, "stateful": Stateful}
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # more than there are cores
each_source = pytest.mark.parametrize("source", SOURCES)


def run_and_states(loader: resumable.Loader[Any], epochs: int = EPOCHS) -> tuple[list[tuple[int, str]], list[Any]]:
    run, states = [], []
    for epoch in loader.epochs(epochs):
        for batch in epoch:
            run.append((epoch.number, digest(batch)))
            states.append(loader.state_dict())
    return run, states


def resumed(loader: resumable.Loader[Any], state: Any) -> resumable.Loader[Any]:
    loader.load_state_dict(state)
    return loader


# ---------------------------------------------------------------------- the suite of every backend


class TestLogicalStreams(BackendTests):
    native = True
    epochs = EPOCHS

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return make(Stateful(), 0, options)

    others = {
        "backend.streams": lambda: make(Stateful(), 0, {"streams": 4}),
        "backend.batch": lambda: resumable.wrap(DataLoader(Stateful(), batch_size=3), streams=3),
        "backend.drop_last": lambda: make(Stateful(), 0, drop_last=True),
        "source": lambda: make(Replayed(), 0),
    }


# ---------------------------------------------------------------------- any number of workers

LIVES: dict[str, tuple[int, dict[str, Any]]] = {
    "1": (1, {}),
    "2": (2, {}),
    "3": (3, {}),
    "4, more than streams": (4, {}),
    "2, persistent": (2, {"persistent_workers": True}),
    "2, spawned": (2, {"multiprocessing_context": "spawn"}),
}
FEW = {"3", "2, persistent"}


@pytest.mark.slow
@each_source
def test_the_batches_are_those_of_as_many_workers(source: str) -> None:
    """Also the seed that a worker sees; batches of streams that have ended are left out of the turn."""
    plain = resumable.wrap(DataLoader(SOURCES[source](), batch_size=2, num_workers=3))
    assert rest_of_run(make(SOURCES[source](), 0), EPOCHS) == rest_of_run(plain, EPOCHS)


@pytest.mark.slow
@each_source
@pytest.mark.parametrize("life", [pytest.param(one, marks=[pytest.mark.long] * (one not in FEW)) for one in LIVES])
def test_the_batches_and_states_are_the_same_with_any_workers(source: str, life: str) -> None:
    workers, options = LIVES[life]
    here, there = make(SOURCES[source](), 0), make(SOURCES[source](), workers, **options)
    run, states = run_and_states(here)
    assert len(run) == EPOCHS * (3 + 4 + 1)
    got, others = run_and_states(there)
    assert got == run
    assert list(map(digest, others)) == list(map(digest, states))
    assert len(list(there)) == len(run) // EPOCHS  # a third epoch


GRID = [(source, life) for source in SOURCES for life in LIVES if "spawned" not in life]
OFTEN = {("replayed", "2"): 4, ("stateful", "3"): 5, ("stateful", "2, persistent"): 7}  # at every n-th step


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "life"),
    [pytest.param(*cell, marks=[pytest.mark.long] * (cell not in OFTEN)) for cell in GRID],
)
def test_resumed_at_every_step_with_another_number_of_workers(source: str, life: str) -> None:
    """From a state of any number, as their states are the same, to each; and back to none."""
    workers, options = LIVES[life]
    run, states = run_and_states(make(SOURCES[source](), 0))
    for step in range(1, len(run) + 1, OFTEN.get((source, life), 1)):
        there = resumed(make(SOURCES[source](), workers, **options), states[step - 1])
        rest = steps_of(there)
        first = list(islice(rest, 1))
        back = resumed(make(SOURCES[source](), 0), there.state_dict())
        assert first + list(rest) == run[step:], f"resumed after {step} batches"
        assert first + rest_of_run(back, EPOCHS) == run[step:], f"resumed after {step} batches, and back"


def steps_of(loader: resumable.Loader[Any]) -> Iterator[tuple[int, str]]:
    for epoch in loader.epochs(EPOCHS):
        for batch in epoch:
            yield epoch.number, digest(batch)


@pytest.mark.filterwarnings("ignore:a loop over a resumed Loader")  # it counts no epochs
@pytest.mark.slow
def test_looked_at_closed_left_and_rolled_back_with_workers() -> None:
    """In workers that live on, which have their own idea of the epoch and the turn."""
    run, states = run_and_states(make(Stateful(), 0))
    loader = make(Stateful(), 2, persistent_workers=True)
    for step in (len(run) - 1, 4, 9):
        resumed(loader, states[step - 1])
        assert digest(loader.peek()) == run[step][1]
        assert digest(next(iter(loader))) == run[step][1]
        loader.close()
        assert digest(loader.state_dict()) == digest(states[step])
    assert rest_of_run(loader, EPOCHS) == run[10:]
    resumed(loader, states[2])
    loader.end_epoch()
    assert rest_of_run(loader, EPOCHS) == run[8:]


@pytest.mark.slow
def test_killed_and_resumed_with_other_workers(tmp_path: Path) -> None:
    for workers, stop in ((2, 5), (0, 11)):
        command = [sys.executable, data.__file__, str(tmp_path), str(workers), str(stop)]
        child = subprocess.run(command, check=False, capture_output=True, text=True)
        assert child.returncode == -signal.SIGKILL, child.stderr
    data.train(tmp_path, 3, stop=0)
    run = rest_of_run(make(Stateful(), 0), EPOCHS)
    assert (tmp_path / "read").read_text() == "".join(f"{epoch} {what}\n" for epoch, what in run)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_state_of_workers_goes_on_as_one_of_streams(workers: int) -> None:
    plain = resumable.wrap(DataLoader(Replayed(), batch_size=2, num_workers=3))
    run, states = run_and_states(plain)
    for step in range(1, len(run), 5):
        assert rest_of_run(resumed(make(Replayed(), workers), states[step - 1]), EPOCHS) == run[step:]


@pytest.mark.slow
def test_a_change_of_workers_names_the_way_out() -> None:
    """A state of a dataset that may go on over epochs is not taken for one of streams."""
    states = {
        source: run_and_states(resumable.wrap(DataLoader(SOURCES[source](), batch_size=2, num_workers=2)), 1)[1][0]
        for source in SOURCES
    }
    with pytest.raises(StateMismatchError, match=r"backend.workers differs(.*\n)*.*wrap\(\.\.\., streams=N\)"):
        resumed(resumable.wrap(DataLoader(Replayed(), batch_size=2, num_workers=1)), states["replayed"])
    with pytest.raises(StateMismatchError, match="backend.streams differs"):
        resumed(make(Replayed(), 0), states["replayed"])
    with pytest.raises(StateMismatchError, match="backend.streams differs"):
        resumed(make(Stateful(), 0, {"streams": 2}), states["stateful"])
    with pytest.raises(StateMismatchError, match=r"backend.*differs(.*\n)*.*it was saved with streams="):
        state = run_and_states(make(Replayed(), 0), 1)[1][0]
        resumed(resumable.wrap(DataLoader(Replayed(), batch_size=2, num_workers=3)), state)


# ---------------------------------------------------------------------- what the dataset sees


class Remembers(IterableDataset[Any]):
    """Gives the number of its pass and of the calls of `worker_init_fn`, and changes what it is."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __iter__(self) -> Iterator[int]:
        self.seen.append(-1)
        yield from list(self.seen)


def initialise(number: int) -> None:
    info: Any = get_worker_info()
    assert info.id == number
    info.dataset.seen += [number, info.num_workers, np.random.randint(1000)]


@pytest.mark.parametrize("workers", [0, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 2))])
def test_each_stream_has_a_fresh_copy(workers: int) -> None:
    """Each stream has a fresh copy and a call of `worker_init_fn`."""

    def run(workers: int, epochs: int = 2) -> list[list[int]]:
        options: dict[str, Any] = {"persistent_workers": True} if workers else {}
        loader = DataLoader(dataset, batch_size=9, num_workers=workers, worker_init_fn=initialise, **options)
        wrapped = resumable.wrap(loader, streams=2)
        batches: Any = (batch for epoch in wrapped.epochs(epochs) for batch in epoch)
        return [batch.tolist() for batch in batches]

    dataset = Remembers()
    first, second, *later = run(workers)
    assert (first[:2], second[:2]) == ([0, 2], [1, 2])
    assert first[3:] == second[3:] == [-1]
    assert first[2] != second[2]
    assert [one[:2] + one[3:] for one in later] == [[0, 2, -1], [1, 2, -1]]
    assert run(0) == [first, second, *later]
    assert not dataset.seen
    assert get_worker_info() is None


def test_in_this_process_batches_take_no_shared_memory() -> None:
    for batch in make(Replayed(), 0):
        assert not batch[0].is_shared()
        assert get_worker_info() is None


def test_an_error_leaves_the_process_as_it_was() -> None:
    class Breaks(Replayed):
        def __iter__(self) -> Iterator[Any]:
            yield 1
            raise OSError("torn")

    with pytest.raises(OSError, match="torn") as caught:
        list(make(Breaks(), 0))
    assert "raised by sample 1 of its stream" in caught.value.__notes__[0]
    assert get_worker_info() is None


@pytest.mark.slow
def test_an_epoch_that_is_left_leaves_nothing_behind() -> None:
    """The next one begins as ever, and is not reached by reading the one before again."""

    def run(workers: int) -> tuple[list[str], Any]:
        loader, got, states = make(Stateful(), workers), [], []
        for epoch in loader.epochs(2):
            for batch in epoch:
                got.append(digest(batch))
                if epoch.number == 0 and len(got) == 4:
                    loader.end_epoch()
                    states.append(loader.state_dict())
                    break
        return got, states[0]

    whole, (left, state) = [what for _, what in rest_of_run(make(Stateful(), 0), 2)], run(0)
    assert left == whole[:4] + whole[8:]
    assert run(2)[0] == left
    assert state["source_state"] is run(2)[1]["source_state"] is None


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_hugging_face_streams(workers: int) -> None:
    datasets = import_module("datasets")
    stream = datasets.Dataset.from_dict({"sample": list(range(20))}).to_iterable_dataset(num_shards=5)
    run, states = run_and_states(make(stream, 0))
    each = len(run) // 2
    for step in (0, 3, each, each + 1):
        there = make(stream, workers)
        assert rest_of_run(resumed(there, states[step - 1]) if step else there, EPOCHS) == run[step:]


# ---------------------------------------------------------------------- what does not fit


@pytest.mark.parametrize("value", [0, -1, "4", 2.5, True])
def test_a_bad_number_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="streams must be an integer of 1 or more, but it is"):
        make(Replayed(), 0, {"streams": value})


def test_other_sources_are_refused() -> None:
    for source in (DataLoader(TensorDataset(torch.arange(4))), [1, 2, 3], np.arange(4), lambda: iter([1]), Replayed()):
        with pytest.raises(UnsupportedError, match=r"the option streams does not fit .*, but streams=2 was passed"):
            resumable.wrap(source, streams=2)


def test_a_dataset_that_cannot_be_copied_is_named(tmp_path: Path) -> None:
    class Open(Replayed):
        def __init__(self) -> None:
            super().__init__()
            self.file = (tmp_path / "file").open("w")

    dataset = Open()
    with pytest.raises(UnsupportedError, match=r"Open cannot be copied: TypeError(.*\n)*.*in __iter__"):
        list(make(dataset, 0))
    dataset.file.close()


def test_a_number_that_the_ranks_do_not_divide_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="3 streams cannot be divided evenly among 2 ranks"):
        list(make(Replayed(), 0, {"world": World(0, 2)}))
