"""A mixture in a Loader: resumed, resized, with workers, inspected, and refused by name."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, RandomSampler, TensorDataset

import resumable
from resumable import World
from resumable.errors import ConfigurationError, ShuffleWarning, StateMismatchError, UnsupportedError
from resumable.samplers import Mixture
from resumable.testing import BackendTests

if TYPE_CHECKING:
    from pathlib import Path

SIZES = {"web": 60, "code": 20, "math": 7}
WEIGHTS = {"web": 0.5, "code": 0.3, "math": 0.2}


class Numbers(Dataset[Any]):
    """Samples with an augmentation."""

    def __init__(self, first: int, length: int) -> None:
        self._first, self._length = first, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[int, float]:
        return self._first + index, float(np.random.random())  # as augmentations draw


def mixture(**given: Any) -> Any:
    sources = {name: Numbers(1000 * number, size) for number, (name, size) in enumerate(SIZES.items())}
    return resumable.mix(sources, **{"weights": WEIGHTS, **given})


def alone(batch_size: int = 10, plan: dict[str, Any] | None = None, **options: Any) -> resumable.Loader[Any]:
    return resumable.wrap(mixture(**plan or {}), batch_size=batch_size, **{"seed": 3, **options})


def in_torch(batch_size: int = 10, workers: int = 0, **options: Any) -> resumable.Loader[Any]:
    loader: DataLoader[Any] = DataLoader(mixture(), batch_size=batch_size, num_workers=workers, collate_fn=list)
    return resumable.wrap(loader, **{"seed": 3, **options})


def sources_of(batch: Any) -> list[int]:
    return [number // 1000 for number, _ in batch]


class TestMixture(BackendTests):
    shared = True

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return resumable.wrap(mixture(named=True), **{"batch_size": 12, **options})

    others = {
        "sources": lambda: resumable.wrap(resumable.mix({"web": range(60), "code": range(21)}), batch_size=12),
        "batch": lambda: TestMixture.make(batch_size=6),
        "sampler": lambda: resumable.wrap(mixture(named=True, weights={**WEIGHTS, "web": 0.6}), batch_size=12),
        "kind": lambda: resumable.wrap(lambda: iter(range(87)), batch_size=12),
    }


class TestMixtureThatEnds(BackendTests):
    shared = True
    epochs = 2

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        plan: dict[str, Any] = {"weights": [(0, WEIGHTS), (30, {"web": 1, "math": 1})], "epochs": {"web": 1, "math": 3}}
        return resumable.wrap(mixture(**plan, num_samples=None), **{"batch_size": 12, "tail": "pad", **options})


class TestMixtureInTorch(BackendTests):
    stride = 7

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        loader: DataLoader[Any] = DataLoader(mixture(), batch_size=12)
        return resumable.wrap(loader, **options)


# ---------------------------------------------------------------------- one stream


def test_every_global_batch_has_the_proportions() -> None:
    for batch in alone().steps(60):
        assert Counter(sources_of(batch)) == {0: 5, 1: 3, 2: 2}


@pytest.mark.slow
def test_workers_and_kinds_of_sources_read_the_same() -> None:
    """Samples and their augmentations."""
    expected = list(alone().steps(40))
    assert list(in_torch().steps(40)) == expected
    assert list(in_torch(workers=2).steps(40)) == expected
    parts = []
    for rank in range(2):
        sampler: DistributedSampler[Any] = DistributedSampler(mixture(), 2, rank, shuffle=False)
        loader: DataLoader[Any] = DataLoader(mixture(), batch_size=5, sampler=sampler, collate_fn=list)
        parts.append(list(resumable.wrap(loader, seed=3).steps(24)))
    assert [first + second for first, second in zip(*parts, strict=True)] == expected[:24]


def test_datasets_lists_arrays_and_tensors_are_mixed() -> None:
    sources = {
        "dataset": TensorDataset(torch.arange(40)),
        "list": list(range(100, 130)),
        "array": np.arange(200, 220),
        "tensor": torch.arange(300, 310),
    }
    loader = resumable.wrap(resumable.mix(sources, named=True), batch_size=10)
    samples = [sample for batch in loader for sample in batch]
    assert Counter(name for name, _ in samples) == {"dataset": 40, "list": 30, "array": 20, "tensor": 10}
    numbers = sorted(int(value[0] if isinstance(value, tuple) else value) for _, value in samples)
    assert numbers == [*range(40), *range(100, 130), *range(200, 220), *range(300, 310)]


def test_each_sample_says_its_source() -> None:
    source = mixture(named=True)
    loader = resumable.wrap(source, batch_size=10, seed=3)
    for step, batch in enumerate(loader.steps(8)):
        located = source.locate(loader.sample_indices(epoch=0, step=step))
        assert [(name, number % 1000) for name, (number, _) in batch] == located
        assert [list(SIZES)[number // 1000] for _, (number, _) in batch] == [name for name, _ in located]
    with pytest.raises(IndexError, match=r"sample 87 does not exist: the samples of the mixture are 0\.\.86"):
        source.locate([87])
    assert source[60][0] == "code"
    assert source[60][1][0] == 1000
    assert repr(source) == "mix({'web': <60>, 'code': <20>, 'math': <7>})"


# ---------------------------------------------------------------------- resumed and resized


@pytest.mark.parametrize(
    "plan",
    [
        {},
        {"weights": [(0, WEIGHTS), (55, {"web": 1, "code": 3}), (200, {"math": 1, "web": 9})]},
        {"epochs": {"code": 2}},
        {"epochs": 1},
        {"epochs": {"math": 2}, "at_end": "stop"},
    ],
    ids=["endless", "phases", "leaves", "all-leave", "stop"],
)
def test_ranks_come_and_go_in_the_middle(plan: dict[str, Any]) -> None:
    """4 -> 3 -> 1 -> 2 ranks, by JSON, over several epochs; what is consumed is the same on each."""
    tail: Any = "carry" if "epochs" in plan else None
    expected = list(alone(12, plan, tail=tail).steps(48))
    state, found = None, []
    for ranks, until in ((4, 5), (3, 17), (1, 30), (2, 48)):
        parts, after = [], []
        for rank in range(ranks):
            loader = alone(12 // ranks, plan, world=World(rank, ranks), tail=tail)
            if state is not None:
                loader.load_state_dict(json.loads(state))
            parts.append(list(loader.steps(until)))
            after.append(json.dumps(loader.state_dict()))
        found += [[sample for part in step for sample in part] for step in zip(*parts, strict=True)]
        state = after[-1]
        counts = Counter(name for step in found for name in np.array(list(SIZES))[sources_of(step)].tolist())
        assert loader.consumed() == {name: counts[name] for name in SIZES}
        assert len(state) < 1024
    assert found == expected


def test_the_window_is_the_first_global_batch_and_stays() -> None:
    loader = alone(5, world=World(0, 2))
    next(iter(loader))
    state = loader.state_dict()
    assert state["sampler"]["window"] == 10
    resized = alone(20, on_change="continue")
    resized.load_state_dict(state)
    assert resized.state_dict()["sampler"]["window"] == 10
    batch = next(iter(resized))
    assert Counter(sources_of(batch)) == {0: 10, 1: 6, 2: 4}
    given = alone(10, {"window": 40}).state_dict()["sampler"]
    assert given["window"] == 40
    assert given["length"] == 80


def test_consumed_is_that_of_the_place() -> None:
    loader = alone()
    assert loader.consumed() == {"web": 0, "code": 0, "math": 0}
    list(loader.steps(20))
    assert loader.consumed() == {"web": 100, "code": 60, "math": 40}
    loader.seek(epoch=0, step=3)
    assert loader.consumed() == {"web": 15, "code": 9, "math": 6}
    with pytest.raises(UnsupportedError, match="reads a single source"):
        resumable.wrap([1, 2], batch_size=1).consumed()
    with pytest.raises(UnsupportedError, match="reads a single source"):
        resumable.wrap(lambda: iter([1, 2])).consumed()


@pytest.mark.parametrize("plan", [{}, {"epochs": {"web": 1, "math": 3}}, {"epochs": 1}, {"num_samples": 40}])
def test_the_samples_are_known_from_the_state_alone(plan: dict[str, Any], tmp_path: Path) -> None:
    loader = alone(10, plan)
    list(loader.steps(3))
    path = tmp_path / "state.json"
    path.write_text(json.dumps(loader.state_dict()))
    found = resumable.samples(path, epoch=1, step=2)
    assert list(found.indices) == loader.sample_indices(epoch=1, step=2)


# ---------------------------------------------------------------------- refused by name


@pytest.mark.parametrize(
    ("plan", "field"),
    [
        ({"weights": {**WEIGHTS, "math": 0.25}}, "sampler.weights"),
        ({"window": 20, "num_samples": 80}, "sampler.window"),
        ({"epochs": {"code": 9}}, "sampler.leave"),
        ({"num_samples": 90}, "sampler.length"),
    ],
)
def test_another_mixture_is_refused_by_name(plan: dict[str, Any], field: str) -> None:
    loader = alone(10, plan)
    with pytest.raises(StateMismatchError, match=rf"{field}\)? (differs|is)"):
        loader.load_state_dict(alone().state_dict())


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"shuffle": True}, "shuffle=True"),
        ({"shuffle": "blocks"}, "shuffle='blocks'"),
        ({"sampler": Mixture(SIZES)}, "sampler=Mixture"),
    ],
)
def test_another_order_over_a_mixture_is_refused(options: dict[str, Any], name: str) -> None:
    message = rf"{name}(.|\n)*was passed for a Mix, which defines its own order(.|\n)*proportions would be lost"
    with pytest.raises(ConfigurationError, match=message):
        alone(**options)
    assert len(alone(shuffle=False)) == 8


def test_a_data_loader_that_shuffles_a_mixture_is_refused() -> None:
    source = mixture()
    loaders: list[Any] = [
        DataLoader(source, batch_size=10, shuffle=True),
        DataLoader(source, batch_size=10, sampler=DistributedSampler(source, 2, 0)),
        DataLoader(source, batch_size=10, sampler=[3, 4]),
        DataLoader(source, batch_sampler=[[3, 4]]),
        DataLoader(source, batch_size=None, sampler=RandomSampler(source)),
    ]
    for loader in loaders:
        with pytest.raises(ConfigurationError, match="(carries|defines) its own order"):
            resumable.wrap(loader)
    with pytest.raises((ConfigurationError, UnsupportedError), match="order"):
        resumable.wrap(DataLoader(source, batch_size=10), order="torch")


class Stream(IterableDataset[int]):
    """Has no index, and a length."""

    def __iter__(self) -> Any:
        return iter([1, 2])

    def __len__(self) -> int:
        return 2


class Remembers(list[int]):
    """Has a state."""

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Take it back."""


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (iter([1]), UnsupportedError, "cannot be read by index: its type is list_iterator"),
        (Stream(), UnsupportedError, "the source 'b' of a mixture cannot be read by index: its type is Stream"),
        ({"x": 1}, UnsupportedError, "cannot be read by index: its type is dict"),
        (
            DataLoader([1, 2]),  # type: ignore[arg-type]
            UnsupportedError,
            r"cannot be read by index: its type is DataLoader(.|\n)*Pass its dataset",
        ),
        (resumable.mix({"c": [1]}), UnsupportedError, "is a mixture itself"),
        (Remembers([1]), UnsupportedError, "has a state: Remembers has methods to save and load it"),
        ([], ConfigurationError, "the length of the source 'b' must be an integer of 1 or more, but it is 0"),
    ],
)
def test_what_cannot_be_mixed_is_refused(source: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        resumable.mix({"a": [1, 2], "b": source})


def test_mix_takes_names() -> None:
    with pytest.raises(
        ConfigurationError, match="expects a mapping from names to sources, but got a value of type list"
    ):
        resumable.mix([[1], [2]])  # type: ignore[arg-type]  # that is refused


def test_epochs_that_are_no_whole_windows_are_told_once() -> None:
    loader = alone(10, {"num_samples": 45})
    with pytest.warns(ShuffleWarning, match=r"num_samples=45 is not a multiple of .* 10 samples(.|\n)*num_samples=50"):
        next(iter(loader))
    next(iter(loader))
