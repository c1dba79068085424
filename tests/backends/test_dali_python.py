"""Python in DALI pipelines causes a warning and is compared; DALI without an iterator is rejected."""

from __future__ import annotations

import random
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from nvidia.dali import Pipeline, fn, pipeline_def, types
from nvidia.dali.experimental import dynamic
from nvidia.dali.plugin.pytorch import DALIGenericIterator

import resumable
from resumable.errors import PromiseWarning, StateMismatchError, StateMismatchWarning, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BATCH, BATCHES = 4, 5
TOLD = "calls Python"


class Fresh:
    """Its results depend on the argument alone."""

    def __init__(self) -> None:
        self.order = list(range(BATCH * BATCHES))

    def __call__(self, info: Any) -> Any:
        if info.iteration >= BATCHES:
            raise StopIteration
        return self.number(info)

    def number(self, info: Any) -> Any:
        drawn = np.random.default_rng([7, info.epoch_idx, info.idx_in_epoch]).integers(1000)
        return np.array([self.order[info.idx_in_epoch] * 1000 + drawn], np.int64)


class ShufflesInPlace(Fresh):
    """It is seeded, but shuffles on top of its last order."""

    epoch = -1

    def number(self, info: Any) -> Any:
        if info.epoch_idx != self.epoch:
            self.epoch = info.epoch_idx
            random.Random(self.epoch).shuffle(self.order)
        return np.array([self.order[info.idx_in_epoch]], np.int64)


class Counts(Fresh):
    """It numbers its calls."""

    calls = 0

    def number(self, info: Any) -> Any:
        self.calls += 1
        return np.array([self.calls], np.int64)


class Draws(Fresh):
    """It uses a global generator."""

    def number(self, info: Any) -> Any:
        return np.array([np.random.randint(10**9)], np.int64)  # the point


def reading(make: Callable[[], Any]) -> Callable[[Any], Any]:
    @pipeline_def(batch_size=BATCH, num_threads=1, device_id=None, seed=1, enable_checkpointing=True)  # type: ignore[untyped-decorator]  # DALI's
    def numbers() -> Any:
        return fn.external_source(make(), batch=False, dtype=types.INT64)

    return lambda checkpoints: DALIGenericIterator(
        numbers(checkpoint=checkpoints and checkpoints[0]), ["x"], auto_reset=True
    )


def calling(make: Callable[[], Any]) -> Callable[[Any], Any]:
    @pipeline_def(batch_size=BATCH, num_threads=1, device_id=None, seed=1, enable_checkpointing=True)  # type: ignore[untyped-decorator]  # DALI's
    def numbers() -> Any:
        drawn = fn.external_source(Fresh(), batch=False, dtype=types.INT64)
        return fn.python_function(drawn, function=make())

    return lambda checkpoints: DALIGenericIterator(
        numbers(checkpoint=checkpoints and checkpoints[0]), ["x"], auto_reset=True
    )


def noisy() -> Any:
    generator = np.random.default_rng()  # the global one would race with our seeding, and be equal at times
    return lambda values: values + generator.integers(10**9)


def remembering() -> Any:
    seen: list[int] = []

    def number(values: Any) -> Any:
        seen.append(1)
        return values * 0 + len(seen)

    return number


def doubling() -> Any:
    return lambda values: values * 2


def wrapped(factory: Any) -> resumable.Loader:
    with pytest.warns(PromiseWarning, match=TOLD):
        return resumable.wrap(factory)


def run_of(factory: Any, epochs: int = 2) -> tuple[list[Any], list[Any]]:
    loader, run, states = wrapped(factory), list[Any](), list[Any]()
    for epoch in loader.epochs(epochs):
        for (batch,) in epoch:
            run.append(batch["x"].flatten().tolist())
            states.append(loader.state_dict())
    return run, states


def rest_of(factory: Any, state: Any, epochs: int = 2) -> list[Any]:
    loader = wrapped(factory)
    loader.load_state_dict(state)
    return [batch["x"].flatten().tolist() for epoch in loader.epochs(epochs) for (batch,) in epoch]


@pytest.mark.parametrize("factory", [reading(Fresh), calling(doubling)], ids=["callback", "function"])
def test_python_that_depends_on_its_argument_alone_is_exact(factory: Any) -> None:
    run, states = run_of(factory)
    assert len(run) == 2 * BATCHES
    for cut, state in enumerate(states, start=1):
        with warnings.catch_warnings():
            warnings.simplefilter("error", StateMismatchWarning)
            assert rest_of(factory, state) == run[cut:], f"after {cut}"


WRONG = {
    "shuffles": reading(ShufflesInPlace),
    "counts": reading(Counts),
    "draws": reading(Draws),
    "function draws": calling(noisy),
    "function remembers": calling(remembering),
}


@pytest.mark.parametrize("name", WRONG)
def test_python_that_remembers_or_draws_is_noticed(name: str) -> None:
    """No resume continues with different elements without a word: an error in an epoch, a warning at its end."""
    run, states = run_of(WRONG[name])
    for cut, state in enumerate(states[:-1], start=1):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                rest = rest_of(WRONG[name], state)
            except StateMismatchError:
                continue
        told = [one for one in caught if issubclass(one.category, StateMismatchWarning)]
        at_end = cut % BATCHES == 0
        assert rest == run[cut:] or told or (at_end and name == "draws"), f"after {cut}: {rest[0]}"


# ------------------------------------------------------------------------------------------------ without an iterator


@pipeline_def(batch_size=BATCH, num_threads=1, device_id=None)  # type: ignore[untyped-decorator]  # DALI's
def plain() -> Any:
    return fn.random.uniform()


def read_by_hand() -> Any:
    pipeline = plain()
    pipeline.build()

    def batches() -> Any:
        for _ in range(3):
            yield pipeline.run()

    return batches


PIPELINES: dict[str, Callable[[], Any]] = {
    "itself": plain,
    "made by a function": lambda: plain,
    "in a list": lambda: [plain(), plain()],
    "of a class": lambda: type("Own", (Pipeline,), {})(batch_size=BATCH, num_threads=1, device_id=None),
}


@pytest.mark.parametrize("form", PIPELINES)
def test_a_pipeline_is_rejected_with_the_iterators_to_use(form: str) -> None:
    with pytest.raises(UnsupportedError, match="DALI [Pp]ipeline(.|\n)*DALIGenericIterator"):
        next(iter(resumable.wrap(PIPELINES[form]())))


def test_a_function_that_runs_a_pipeline_is_rejected() -> None:
    with pytest.raises(UnsupportedError, match="batches reads DALI pipelines that it holds: pipeline"):
        resumable.wrap(read_by_hand())


@pytest.fixture
def reader(tmp_path: Path) -> Any:
    for number in range(8):
        np.save(tmp_path / f"{number}.npy", np.full(2, number, np.float32))
    return numpy_reader(tmp_path)


def numpy_reader(folder: Path) -> Any:
    return dynamic.readers.Numpy(file_root=str(folder), file_filter="*.npy", random_shuffle=True, seed=1)


class Epochs:
    def __init__(self, reader: Any) -> None:
        self.readers = [reader]

    def __iter__(self) -> Any:
        return iter(self.readers[0].next_epoch(batch_size=2))


DYNAMIC: dict[str, Callable[[Any], Any]] = {
    "itself": lambda reader: reader,
    "function": lambda reader: lambda: reader.next_epoch(batch_size=2),
    "method": lambda reader: reader.next_epoch,
    "object": Epochs,
    "epoch": lambda reader: reader.next_epoch(batch_size=2),
}


@pytest.mark.parametrize("form", DYNAMIC)
def test_readers_of_the_dynamic_mode_are_rejected(form: str, reader: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"dynamic mode(.|\n)*pipeline_def(.|\n)*get_state"):
        resumable.wrap(DYNAMIC[form](reader))


class Restored(Epochs):
    """It restores its reader from DALI's own state."""

    def state_dict(self) -> dict[str, str]:
        return {"reader": str(self.readers[0].get_state())}

    def load_state_dict(self, state: dict[str, str]) -> None:
        self.readers[0].set_state(state["reader"])


def test_what_restores_its_reader_or_makes_one_per_epoch_is_taken(reader: Any, tmp_path: Path) -> None:
    resumable.wrap(Restored(reader), identity="numbers")

    def epoch() -> Any:
        return (np.asarray(batch[0]).tolist() for batch in numpy_reader(tmp_path).next_epoch(batch_size=2))

    loader = resumable.wrap(epoch, identity="numbers")
    whole = list(loader)
    resumed = resumable.wrap(epoch, identity="numbers")
    batches = iter(resumed)
    next(batches)
    again = resumable.wrap(epoch, identity="numbers")
    again.load_state_dict(resumed.state_dict())
    assert list(again) == whole[1:]
