"""`DataLoader`s keep every promise: map-style, iterable-style, with and without workers, with any sampler."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_datasets as datasets
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torchdata.stateful_dataloader import StatefulDataLoader

import resumable
from resumable.testing import BackendTests


def wrap(dataset: Any, options: dict[str, Any], **loader_options: Any) -> resumable.Loader:
    return resumable.wrap(DataLoader(dataset, **loader_options), **options)


class TestShuffled(BackendTests):
    shared = True

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return wrap(datasets.Augmented(), options, batch_size=4, shuffle=True)

    others = {
        "length": lambda: wrap(datasets.Augmented(24), {}, batch_size=4, shuffle=True),
        "batch": lambda: wrap(datasets.Augmented(), {}, batch_size=5, shuffle=True),
        "sampler": lambda: wrap(datasets.Augmented(), {}, batch_size=4),
        "tail": lambda: wrap(datasets.Augmented(), {}, batch_size=4, shuffle=True, drop_last=True),
        "kind": lambda: resumable.wrap(datasets.Augmented(), batch_size=4, shuffle=True),
        "source": lambda: wrap(datasets.Together(), {"randomness": "sample"}, batch_size=4, shuffle=True),
    }


@pytest.mark.slow
class TestShuffledByWorkers(BackendTests):
    shared = True
    stride = 4

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return wrap(datasets.Augmented(), options, batch_size=4, shuffle=True, num_workers=2, prefetch_factor=3)


@pytest.mark.slow
class TestPlainWorkers(BackendTests):
    """The workers of a plain `DataLoader`, as with a PyTorch that has no such private names."""

    shared = True
    stride = 8

    @pytest.fixture(autouse=True)
    def _plain(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RESUMABLE_PLAIN_WORKERS", "1")

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return wrap(datasets.Augmented(), options, batch_size=4, shuffle=True, num_workers=2, persistent_workers=True)


@pytest.mark.slow
class TestPersistentWorkers(BackendTests):
    stride = 4

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return wrap(datasets.Augmented(), options, batch_size=4, shuffle=True, num_workers=2, persistent_workers=True)


class TestWithoutAutomaticBatching(BackendTests):
    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return wrap(datasets.Augmented(9), options, batch_size=None, shuffle=True)


class TestDatasetThatReadsBatches(BackendTests):
    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return wrap(datasets.Together(), {"randomness": "batch"} | options, batch_size=4, shuffle=True)


class TestRandomnessPerBatch(BackendTests):
    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return wrap(datasets.Augmented(), {"randomness": "batch"} | options, batch_size=4, shuffle=True)


class TestStatefulDataLoader(BackendTests):
    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return resumable.wrap(StatefulDataLoader(datasets.Augmented(), batch_size=4, shuffle=True), **options)


class TestOwnSampler(BackendTests):
    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return wrap(datasets.Augmented(), options, batch_size=3, sampler=datasets.OwnOrder())

    others = {
        "order": lambda: wrap(datasets.Augmented(), {}, batch_size=3, sampler=datasets.EpochOrder()),
        "backend.batch": lambda: wrap(datasets.Augmented(), {}, batch_size=4, sampler=datasets.OwnOrder()),
        "backend.samples": lambda: wrap(datasets.Augmented(24), {}, batch_size=3, sampler=datasets.OwnOrder()),
    }


class TestOwnSamplerToldTheEpoch(BackendTests):
    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return wrap(datasets.Augmented(), options, batch_size=3, drop_last=True, sampler=datasets.EpochOrder())


@pytest.mark.slow
@pytest.mark.long  # as one of the others with workers
class TestOwnSamplerByWorkers(BackendTests):
    stride = 4

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return wrap(datasets.Augmented(), options, batch_size=3, sampler=datasets.OwnOrder(), num_workers=2)


class TestSamplerWithState(BackendTests):
    native = True

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return wrap(datasets.Augmented(), options, batch_size=3, sampler=datasets.StatefulOrder())


@pytest.mark.slow
@pytest.mark.long  # as one of the others with workers
class TestSamplerWithStateByWorkers(BackendTests):
    native = True
    stride = 4

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return wrap(datasets.Augmented(), options, batch_size=5, sampler=datasets.StatefulOrder(), num_workers=2)


class TestOwnBatchSampler(BackendTests):
    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return wrap(datasets.Augmented(), options, batch_sampler=datasets.OwnBatches())


class TestBatchSamplerOverSamplerWithState(BackendTests):
    native = True

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        class Pairs(BatchSampler):
            """Any subclass is kept, as it may do anything."""

        return wrap(datasets.Augmented(), options, batch_sampler=Pairs(datasets.StatefulOrder(), 3, drop_last=False))


class TestStream(BackendTests):
    native = True

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return wrap(datasets.Stream(), options, batch_size=4)

    others = {
        "backend.batch": lambda: wrap(datasets.Stream(), {}, batch_size=5),
        "backend.workers": lambda: wrap(datasets.Stream(), {}, batch_size=4, num_workers=2),
        "backend.drop_last": lambda: wrap(datasets.Stream(), {}, batch_size=4, drop_last=True),
        "source": lambda: wrap(datasets.StatefulStream(), {}, batch_size=4),
    }


@pytest.mark.slow
@pytest.mark.long  # as one of the others with workers
class TestStreamByWorkers(BackendTests):
    native = True
    stride = 3

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return wrap(datasets.Stream(), options, batch_size=4, num_workers=2)


@pytest.mark.slow
@pytest.mark.long  # as one of the others with workers
class TestStreamByPersistentWorkers(BackendTests):
    native = True
    stride = 3

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return wrap(datasets.Stream(), options, batch_size=4, num_workers=2, persistent_workers=True, drop_last=True)


class TestStreamWithState(BackendTests):
    native = True

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return wrap(datasets.StatefulStream(), options, batch_size=4)


@pytest.mark.slow
class TestStreamWithStateByWorkers(BackendTests):
    native = True
    stride = 3

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return wrap(datasets.StatefulStream(), options, batch_size=4, num_workers=2)


@pytest.mark.slow
@pytest.mark.long  # as one of the others with workers
class TestStreamWithStateByPersistentWorkers(BackendTests):
    native = True
    stride = 3

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return wrap(datasets.StatefulStream(), options, batch_size=4, num_workers=2, persistent_workers=True)


class TestStreamWithoutAutomaticBatching(BackendTests):
    native = True

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return wrap(datasets.StatefulStream(), options, batch_size=None)


class TestLoaderThatIteratesInItsOwnWay(BackendTests):
    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        class Doubled(DataLoader[Any]):
            def __iter__(self) -> Any:
                for batch in super().__iter__():
                    yield [part * 2 for part in batch]

        return resumable.wrap(Doubled(datasets.Augmented(), batch_size=4), **{"resume": "replay", **options})


def test_known_samplers_are_replaced_by_ours() -> None:
    dataset = datasets.Augmented()
    names: dict[str, list[Any]] = {
        "sequential-v1": [SequentialSampler(dataset), DistributedSampler(dataset, 2, 1, shuffle=False)],
        "feistel8-v1": [
            RandomSampler(dataset),
            RandomSampler(dataset, num_samples=40),
            DistributedSampler(dataset, 2, 1),
            SubsetRandomSampler([3, 5, 7, 9]),
        ],
        "weighted-v1": [WeightedRandomSampler([1.0] * 23, 30)],
        "uniform-v1": [RandomSampler(dataset, replacement=True, num_samples=9)],
    }
    for name, known in names.items():
        for sampler in known:
            state = wrap(dataset, {}, batch_size=4, sampler=sampler).state_dict()
            assert state["sampler"]["name"] == name
            assert state["backend"]["kind"] == "torch-map"


def test_what_a_sampler_selects_is_kept() -> None:
    dataset = datasets.Augmented()

    def indices(sampler: Any, **options: Any) -> list[int]:
        loader = wrap(dataset, options, batch_size=4, sampler=sampler)
        return [int(index) for batch in loader for index in batch[0]]

    assert indices(SequentialSampler(dataset)) == list(range(23))
    assert sorted(indices(RandomSampler(dataset))) == list(range(23))
    assert len(indices(RandomSampler(dataset, num_samples=40))) == 40
    assert sorted(indices(SubsetRandomSampler([3, 5, 7, 9, 11]))) == [3, 5, 7, 9, 11]
    assert set(indices(WeightedRandomSampler([0.0] * 20 + [1.0] * 3, 30))) == {20, 21, 22}
    unweighted = WeightedRandomSampler([1.0] * 23, 20, replacement=False)
    assert len(set(indices(unweighted))) == 20


def test_a_distributed_sampler_tells_rank_and_tail() -> None:
    dataset = datasets.Augmented()
    for drop_last, tail, count in ((False, "pad_ranks", 3), (True, "drop_ranks", 3)):
        parts = []
        for rank in range(2):
            sampler: Any = DistributedSampler(dataset, 2, rank, drop_last=drop_last)
            loader = wrap(dataset, {}, batch_size=4, sampler=sampler)
            assert loader.state_dict()["tail"] == tail
            assert len(loader) == count
            parts.append([batch[0] for batch in loader])
        assert all(not set(a.tolist()) & set(b.tolist()) for a, b in zip(*parts, strict=True))


def test_the_users_loader_is_not_changed() -> None:
    raw = DataLoader(datasets.Augmented(), batch_size=4, shuffle=True)
    before = {name: getattr(raw, name) for name in ("dataset", "sampler", "batch_sampler", "generator", "num_workers")}
    loader = resumable.wrap(raw)
    list(loader)
    assert {name: getattr(raw, name) for name in before} == before
    assert sorted(int(index) for batch in raw for index in batch[0]) == list(range(23))


def test_the_batches_are_those_of_the_plain_loader() -> None:
    """Same types, shapes and order of the fields, for every way of batching."""
    for options in ({"batch_size": 4}, {"batch_size": None}, {"batch_size": 4, "drop_last": True}, {"num_workers": 2}):
        plain, ours = DataLoader(datasets.Augmented(), **options), wrap(datasets.Augmented(), {}, **options)
        assert len(plain) == len(ours)
        for expected, got in zip(plain, ours, strict=True):
            assert type(expected) is type(got)
            for part, our_part in zip(expected, got, strict=True):
                assert type(part) is type(our_part)
                if isinstance(part, torch.Tensor):
                    assert (part.shape, part.dtype) == (our_part.shape, our_part.dtype)


class Seeds:
    """Samples that tell torch's seed, as libraries do that make generators of their own from it."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        return torch.initial_seed()


def test_torchs_seed_in_a_sample_fits_into_a_batch() -> None:
    raw: DataLoader[int] = DataLoader(Seeds(), batch_size=16)  # type: ignore[arg-type]  # it has a length
    seeds = torch.cat(list(resumable.wrap(raw))).tolist()
    assert len(set(seeds)) == 64
    assert min(seeds) >= 0
