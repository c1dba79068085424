"""Sources whose samples differ in each epoch, inside other datasets: these pass the epoch on, or are rejected."""

from __future__ import annotations

import itertools
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

import resumable
from resumable.errors import PromiseWarning, StateMismatchError, UnsupportedError
from resumable.samplers import Shuffle
from resumable.samplers import Subset as SubsetSampler
from resumable.samplers.mixture import mixture_of

if TYPE_CHECKING:
    from collections.abc import Callable

LENGTHS = np.random.default_rng(0).integers(5, 60, 100)
TOKENS = np.arange(LENGTHS.sum())


def packed(first: int = 0, **given: Any) -> Any:
    return resumable.Packed(TOKENS + first, 64, documents=LENGTHS, how="concat", block=25, **given)


def mixture(**given: Any) -> Any:
    return resumable.mix({"a": packed(), "list": list(range(31)), "b": packed(100_000, seed=1)}, **given)


def told(sample: Any) -> tuple[int, ...]:
    return (sample,) if isinstance(sample, int) else tuple(sample["input"].tolist())


def windows(source: Any, epoch: int) -> set[tuple[int, ...]]:
    return {told(source[index]) for index in range(epoch * len(source), (epoch + 1) * len(source))}


@pytest.mark.parametrize("how", ["sequence", "DataLoader", "workers"])
def test_a_mixture_reads_each_epoch_of_its_sources(how: str) -> None:
    """Each pass over a source has the windows of its next epoch, once each."""
    data = mixture(weights={"a": 2, "list": 1, "b": 1}, named=True)
    loader: Any
    if how == "sequence":
        loader = resumable.wrap(data, batch_size=8, seed=0)
    else:
        loader = resumable.wrap(
            DataLoader(data, batch_size=8, num_workers=2 * (how == "workers"), collate_fn=list), seed=0
        )
    read: dict[str, list[tuple[int, ...]]] = {"a": [], "list": [], "b": []}
    for epoch in loader.epochs(4):
        for batch in epoch:
            for name, sample in batch:
                read[name].append(told(sample))
    for name, source in (("a", packed()), ("b", packed(100_000, seed=1))):
        passes = len(read[name]) // len(source)
        assert passes >= 2
        for number in range(passes):
            own = read[name][number * len(source) : (number + 1) * len(source)]
            assert set(own) == windows(source, number)
            assert len(set(own)) == len(source)
    assert set(read["list"]) == {(number,) for number in range(31)}


@pytest.mark.parametrize("shuffle", [True, "blocks"])
def test_a_mixture_resumes_in_any_epoch(shuffle: Any) -> None:
    def made() -> Any:
        return resumable.wrap(DataLoader(mixture(shuffle=shuffle), batch_size=16, collate_fn=list), seed=0)

    loader, batches = made(), []
    states = [loader.state_dict()]
    for batch in loader.steps(40):
        batches.append([told(sample) for sample in batch])
        states.append(loader.state_dict())
    assert loader.epoch >= 3
    for step in (1, 9, 10, 11, 20, 25, 39):
        again = made()
        again.load_state_dict(states[step])
        assert [[told(sample) for sample in batch] for batch in again.steps(40)] == batches[step:]
    indices = [loader.sample_indices(epoch=epoch, step=0) for epoch in range(3)]
    epoch_of = [places for some in indices for places in loader.dataset.locate(some)]
    assert {name for name, _ in epoch_of} == {"a", "list", "b"}
    assert max(index for name, index in epoch_of if name == "a") >= len(packed())


def test_a_state_knows_how_the_sources_are_packed() -> None:
    loader = resumable.wrap(mixture(), batch_size=8, seed=0)
    list(loader.steps(3))
    other = resumable.mix({"a": packed(seed=5), "list": list(range(31)), "b": packed(100_000, seed=1)})
    with pytest.raises(StateMismatchError, match=r"sampler\.packings"):
        resumable.wrap(other, batch_size=8, seed=0).load_state_dict(loader.state_dict())


def test_the_order_is_rebuilt_from_a_state() -> None:
    data = mixture()
    order: Any = data.resumable_epochs(data.resumable_order(7))
    order = order.bound_to(8)
    again = mixture_of(order.spec())
    assert again is not None
    assert again.spec() == order.spec()
    for epoch in (0, 3):
        assert again.indices(epoch, 0, order.length).tolist() == order.indices(epoch, 0, order.length).tolist()


def test_a_mixture_of_other_sources_is_as_before() -> None:
    data = resumable.mix({"a": list(range(10)), "b": list(range(5))})
    assert list(data) == [*range(10), *range(5)]
    with pytest.raises(IndexError, match=r"sample 15 does not exist: the samples of the mixture are 0\.\.14"):
        data[15]
    with pytest.raises(IndexError):
        mixture()[len(mixture()) + len(packed())]  # the second epoch of the list
    assert len(list(mixture())) == len(mixture())
    loader = resumable.wrap(data, batch_size=5, seed=0)
    assert not [name for name in loader.state_dict()["fingerprint"] if "laps" in name]


class Around(Dataset[Any]):
    """A user's dataset."""

    def __init__(self, name: str, inner: Any) -> None:
        setattr(self, name, inner)
        self.inner = inner if name == "inner" else None
        self._length = len(inner)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return next(one for one in (self.inner, getattr(self, "dataset", None), range(3)) if one is not None)[index]


class Passing(Around):
    def resumable_epochs(self, sampler: Any) -> Any:
        return self.dataset.resumable_epochs(sampler)  # type: ignore[attr-defined]  # set by name


@pytest.mark.parametrize(
    "made",
    [
        lambda: ConcatDataset([packed(), packed()]),
        lambda: Subset(packed(), range(10)),
        lambda: Subset(ConcatDataset([Around("data", range(3)), packed()]), range(10)),
        lambda: Around("dataset", packed()),
        lambda: Subset(Around("dataset", packed()), range(5)),
    ],
)
def test_what_does_not_pass_the_epoch_on_is_rejected(made: Any) -> None:
    ways: list[Callable[[Any], Any]] = [
        lambda data: resumable.wrap(DataLoader(data, batch_size=4, shuffle=True), seed=0),
        lambda data: resumable.wrap(data, batch_size=4, shuffle=True),
        lambda data: DataLoader(data, sampler=resumable.ResumableSampler(data)),
        lambda data: resumable.mix({"a": data, "b": list(range(5))}),
    ]
    for way in ways:
        with pytest.raises(UnsupportedError, match=r"whose samples differ in each epoch(.|\n)*pass it a list of files"):
            way(made())
    assert len(list(resumable.wrap(made(), batch_size=4, evaluation=True))) > 0


def test_an_attribute_of_another_name_warns() -> None:
    with pytest.warns(PromiseWarning, match="whose samples differ in each epoch"):
        resumable.wrap(Around("inner", packed()), batch_size=4, shuffle=True)


@pytest.mark.parametrize(
    ("made", "sampler"),
    [
        (packed, None),
        (lambda: Passing("dataset", packed()), None),
        (packed, SubsetSampler(range(20), Shuffle(20))),
        (packed, Shuffle(len(packed()))),
    ],
)
def test_what_passes_the_epoch_on_is_read(made: Any, sampler: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        order = {"sampler": sampler} if sampler else {"shuffle": True}
        loader = resumable.wrap(made(), batch_size=4, **order)
    epochs = [{told(sample) for batch in epoch for sample in batch} for epoch in loader.epochs(3)]
    assert not any(one & two for one, two in itertools.combinations(epochs, 2))


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_resumable_sampler_passes_the_epoch_on(wrapped: bool) -> None:
    data = packed()
    sampler = resumable.ResumableSampler(data, batch_size=4)
    plain: Any = DataLoader(data, batch_size=4, sampler=sampler, collate_fn=list)
    loader: Any = resumable.wrap(plain) if wrapped else plain
    for number in range(3):
        assert {told(sample) for batch in loader for sample in batch} == windows(packed(), number)
