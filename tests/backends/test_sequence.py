"""Sequences keep every promise."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

import resumable
from resumable import samplers
from resumable.errors import ConfigurationError, UnsupportedError
from resumable.testing import BackendTests

SAMPLES = [(index, float(index)) for index in range(23)]


def augment(sample: Any) -> tuple[Any, float, float, float]:
    return sample, random.random(), float(np.random.randn()), torch.rand(()).item()


class Squares:
    """A map-style dataset that is no torch Dataset."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index * index, random.random()


class TestListOfSamples(BackendTests):
    shared = True

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        settings: dict[str, Any] = {"batch_size": 4, "shuffle": True, "transform": augment}
        return resumable.wrap(SAMPLES, **settings | options)

    others = {
        "length": lambda: resumable.wrap(SAMPLES[:-1], batch_size=4, shuffle=True, transform=augment),
        "batch": lambda: TestListOfSamples.make(batch_size=5),
        "sampler": lambda: TestListOfSamples.make(shuffle=False),
        "tail": lambda: TestListOfSamples.make(tail="drop"),
        "kind": lambda: resumable.wrap(lambda: iter(SAMPLES), batch_size=4),
        "source": lambda: TestListOfSamples.make(identity="another list"),
    }


@pytest.mark.parametrize("tail", ["drop", "pad", "partial", "carry"])
class TestTails:
    def test_restored_at_every_step(self, tail: Any) -> None:
        class Case(BackendTests):
            @staticmethod
            def make(**options: Any) -> resumable.Loader:
                return TestListOfSamples.make(tail=tail, **options)

        case = Case()
        case.test_restored_at_every_step_the_rest_is_the_same()
        case.test_after_the_last_batch_and_after_the_end_the_same_batch_is_next()
        case.test_after_the_last_batch_the_epoch_returns_without_batches()
        case.test_the_length_is_the_whole_epoch()


class TestListOfBatches(BackendTests):
    """Without a batch size the elements are the batches."""

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return resumable.wrap([torch.full((2,), index) for index in range(7)], **options)

    others = {
        "length": lambda: resumable.wrap([1, 2, 3]),
        "batch": lambda: resumable.wrap([1] * 7, batch_size=2, tail="drop"),
    }


class TestArray(BackendTests):
    shared = True

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return resumable.wrap(np.arange(46).reshape(23, 2), **{"batch_size": 4, "shuffle": True} | options)

    others = {
        "length": lambda: resumable.wrap(np.zeros((22, 2), int), batch_size=4, shuffle=True),
        "source": lambda: resumable.wrap(np.zeros((23, 3), int), batch_size=4, shuffle=True),
    }


class TestTensor(BackendTests):
    shared = True

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return resumable.wrap(torch.arange(46).reshape(23, 2), **{"batch_size": 4, "shuffle": True} | options)


class TestDatasetObject(BackendTests):
    shared = True

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return resumable.wrap(Squares(), **{"batch_size": 4, "shuffle": True} | options)


class TestWeighted(BackendTests):
    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        weights = options.pop("weights", range(23))
        order = samplers.Weighted(list(weights), seed=options.get("seed", 0), num_samples=19)
        return resumable.wrap(SAMPLES, batch_size=4, sampler=order, transform=augment, **options)

    others = {"sampler.weights": lambda: TestWeighted.make(weights=[1] * 23)}


class TestSubset(BackendTests):
    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        table = options.pop("table", range(5, 20))
        order = samplers.Subset(list(table), samplers.Shuffle(15, seed=options.get("seed", 0)))
        return resumable.wrap(SAMPLES, batch_size=4, sampler=order, transform=augment, **options)

    others = {"sampler.subset": lambda: TestSubset.make(table=range(4, 19))}


def test_arrays_give_arrays_and_tensors_give_tensors() -> None:
    array, tensor = np.arange(12).reshape(6, 2), torch.arange(12).reshape(6, 2)
    assert np.array_equal(next(iter(resumable.wrap(array, batch_size=3))), array[:3])
    assert torch.equal(next(iter(resumable.wrap(tensor, batch_size=3))), tensor[:3])
    assert next(iter(resumable.wrap(range(6), batch_size=3))) == [0, 1, 2]


class FileLike:
    """Looks like an array, and takes one index or an ascending list of them, as a dataset of HDF5 does."""

    dtype, shape = np.dtype(int), (23, 2)

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, int) and list(index) != sorted(set(index)):
            raise TypeError("Indexing elements must be in increasing order")
        return np.array([index, index])


def test_what_only_looks_like_an_array_is_read_one_by_one() -> None:
    twin = resumable.wrap(np.arange(23).repeat(2).reshape(23, 2), batch_size=4, shuffle=True)
    loader = resumable.wrap(FileLike(), batch_size=4, shuffle=True)
    assert [np.stack(batch).tolist() for batch in loader] == [batch.tolist() for batch in twin]
    assert loader.state_dict()["backend"]["source"] == "array of int64, sample shape (2,)"


@pytest.mark.parametrize(
    "array",
    [
        np.ma.masked_equal(np.arange(6), 2),
        np.arange(6).view(type("Own", (np.ndarray,), {})),
        torch.nn.Parameter(torch.arange(6.0)),
    ],
    ids=lambda array: type(array).__name__,
)
def test_subclasses_of_arrays_give_batches_of_their_kind(array: Any) -> None:
    batch = next(iter(resumable.wrap(array, batch_size=3)))
    assert isinstance(batch, (np.ndarray, torch.Tensor))
    assert isinstance(array, type(batch))
    assert batch.tolist() == array[:3].tolist()


def test_collate_makes_the_batch() -> None:
    loader = resumable.wrap(range(6), batch_size=3, collate=torch.tensor)
    assert torch.equal(next(iter(loader)), torch.tensor([0, 1, 2]))


@pytest.mark.parametrize("empty", [[], (), range(0), np.empty((0, 3))])
def test_an_empty_source_is_refused(empty: Any) -> None:
    with pytest.raises(ConfigurationError, match="it is 0"):
        resumable.wrap(empty)


def test_batch_larger_than_the_data() -> None:
    """A batch larger than the data is rejected if no batch would be left."""
    with pytest.raises(ConfigurationError, match="30 samples per step, 23 samples per epoch"):
        len(resumable.wrap(SAMPLES, batch_size=30, tail="drop"))
    assert [len(batch) for batch in resumable.wrap(SAMPLES, batch_size=30)] == [23]
    assert [len(batch) for batch in resumable.wrap(SAMPLES, batch_size=30, tail="pad")] == [30]


def test_failing_sample_is_named() -> None:
    """A sample that fails is named, and the state before it resumes."""
    broken = {"is": True}

    def mend_me(sample: Any) -> Any:
        if sample[0] == 9 and broken["is"]:
            raise OSError("torn file")
        return sample

    loader = resumable.wrap(SAMPLES, batch_size=4, transform=mend_me)
    iterator = iter(loader)
    got = [next(iterator), next(iterator)]
    with pytest.raises(OSError, match=r"torn file\n.*raised by sample 9\.\n.*epoch 0, step 2, rank 0") as caught:
        next(iterator)
    assert str(caught.value) == "torn file"
    assert (loader.cursor.step, loader.state_dict()["cursor"]["position"]) == (2, 8)
    broken["is"] = False
    fresh = resumable.wrap(SAMPLES, batch_size=4, transform=mend_me)
    fresh.load_state_dict(loader.state_dict())
    assert got + list(fresh) == got + list(loader) == [SAMPLES[start : start + 4] for start in range(0, 23, 4)]


def test_options_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="shard does not fit a sequence"):
        resumable.wrap(SAMPLES, shard=True)
    with pytest.raises(ConfigurationError, match="only one of them"):
        resumable.wrap(SAMPLES, shuffle=True, sampler=samplers.Sequential(23))
