"""RNGs that are passed: a sample's numbers depend on its position alone, and no global RNG is touched."""

from __future__ import annotations

import copy
import pickle
import random
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Sampler, Subset

import resumable
from resumable import SampleRNG, World
from resumable._randomness import passed
from resumable._randomness.keys import SampleKeys, states
from resumable.errors import ConfigurationError, PromiseWarning, UnsupportedError
from resumable.testing import BackendTests, digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SEED = 7


def drawn(rng: Any) -> list[float]:
    """Numbers of each kind, an odd number of halves of words, and numbers of a child."""
    half = int(rng.integers(1 << 20, dtype=np.uint32))
    tensor = torch.rand((), generator=rng.torch).item()
    return [float(rng.random()), half, float(rng.normal()), tensor, rng.python.random(), rng.spawn(1)[0].random()]


class Augmented(Dataset[Any]):
    def __init__(self, length: int = 23) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int, rng: Any = None) -> Any:
        return torch.tensor([index, *(drawn(rng) if index % 4 else [0.0] * 6)], dtype=torch.float64)


def mixed(samples: list[Any], rng: Any) -> Any:
    return torch.stack(samples), rng.permutation(len(samples))


def added(sample: Any, rng: Any) -> Any:
    return sample, drawn(rng)


def stream() -> Iterator[int]:
    yield from range(23)


def wrapped(dataset: Any = None, world: Any = None, seed: int = SEED, **loader: Any) -> resumable.Loader:
    loader = {"batch_size": 4, "shuffle": True, **loader}
    source: Any = DataLoader(Augmented() if dataset is None else dataset, **loader)
    return resumable.wrap(source, seed=seed, randomness="passed", world=world)


def read(loader: resumable.Loader, epochs: int = 2) -> list[str]:
    return [digest(batch) for epoch in loader.epochs(epochs) for batch in epoch]


def samples(loader: resumable.Loader, epochs: int = 2) -> list[list[float]]:
    return [sample.tolist() for epoch in loader.epochs(epochs) for batch in epoch for sample in batch]


# ------------------------------------------------------------------ the numbers


PINNED = [
    [0.8554542685859949, 278056, 1.4004079638071458, 0.9764188528060913, 0.834325968001406, 0.7474412650584944],
    [0.0922939833139319, 161647, -1.0593938320250946, 0.39555734395980835, 0.9822368036535318, 0.14541915546196216],
]


def test_the_numbers_of_a_key_never_change() -> None:
    """Pinned: a stream saved today must resume in years."""
    keys = SampleKeys(SEED, 1).samples(5, 7).tolist()
    assert keys == [12038921317249218257, 7831675270215619824]
    rng = SampleRNG(0)
    for key, numbers in zip(keys, PINNED, strict=True):
        assert drawn(rng.at(key)) == numbers
    assert rng.key == keys[1]


def test_the_numbers_equal_philox_and_the_other_rngs_with_the_key() -> None:
    key = (1 << 64) - 12345
    rng = SampleRNG(5).at(key)
    plain = np.random.Generator(np.random.Philox(key=key))
    assert rng.integers(9, size=3, dtype=np.uint32).tolist() == plain.integers(9, size=3, dtype=np.uint32).tolist()
    assert rng.normal(size=5).tolist() == plain.normal(size=5).tolist()
    assert rng.torch is rng.torch
    assert rng.torch.initial_seed() == key & ((1 << 63) - 1)
    assert rng.python.random() == random.Random(key).random()
    assert rng.python.random() != random.Random(key).random()
    assert isinstance(rng, np.random.Generator)
    assert np.random.default_rng(rng) is rng


@pytest.mark.parametrize("memory", [True, False])
def test_at_a_key_nothing_is_left_of_the_one_before(memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the state set in memory, and through NumPy's property where the memory is not as expected."""
    monkeypatch.setattr(passed, "_lies_as_expected", lambda: memory)
    rng, golden = SampleRNG(3), [drawn(SampleRNG(key)) for key in range(9)]
    for count in range(6):
        rng.integers(9, size=count, dtype=np.uint32)
        rng.torch.seed()
        assert [drawn(rng.at(key)) for key in range(9)] == golden


def test_the_memory_of_this_numpy_is_as_expected() -> None:
    assert passed._lies_as_expected()


def test_children_depend_on_the_key_alone() -> None:
    rng = SampleRNG(1)
    first = [child.random() for child in rng.spawn(3)]
    rng.random()
    assert len({*first, *(child.random() for child in rng.spawn(2)), SampleRNG(1).random()}) == 6
    assert [child.random() for child in rng.at(1).spawn(2)] == first[:2]
    assert [child.random() for child in rng.at(2).spawn(2)] != first[:2]


def test_a_copy_keeps_the_numbers_when_the_rng_moves_to_the_next_sample() -> None:
    rng = SampleRNG(1)
    rng.random()
    kept = [copy.deepcopy(rng), pickle.loads(pickle.dumps(rng))]  # noqa: S301  # our own bytes
    expected = rng.random()
    rng.at(2)
    assert [one.random() for one in kept] == [expected, expected]


@pytest.mark.parametrize("key", [-1, 1 << 64])
def test_a_key_out_of_range_raises(key: int) -> None:
    with pytest.raises(ConfigurationError, match=r"must be an integer from 0 to \d+, but it is"):
        SampleRNG(key)


# ------------------------------------------------------------------ loaders


class TestPassed(BackendTests):
    shared = True
    make = staticmethod(lambda **options: _make(options))
    others = {"batch": lambda: _make({}, batch_size=5), "length": lambda: _make({}, dataset=Augmented(24))}


@pytest.mark.slow
class TestPassedByWorkers(BackendTests):
    stride = 4  # and not `shared`: the RNG of a batch depends on the rank's part of it
    make = staticmethod(lambda **options: _make(options, num_workers=2, collate_fn=mixed))


class TestPassedToTheTransformOfAStream(BackendTests):
    stride = 2

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        given = {"batch_size": 4, "randomness": "passed", "transform": added, **options}
        return resumable.wrap(stream, **given)


def _make(options: dict[str, Any], dataset: Any = None, **loader: Any) -> resumable.Loader:
    loader = {"batch_size": 4, "shuffle": True, **loader}
    source: Any = DataLoader(Augmented() if dataset is None else dataset, **loader)
    return resumable.wrap(source, **{"randomness": "passed", **options})


def test_a_samples_numbers_depend_on_its_position_alone() -> None:
    """Not on batch size, workers, ranks or the samples before; and all of them differ."""
    golden = samples(wrapped())
    of_rng = [sample[1] for sample in golden if sample[1]]
    assert len(set(of_rng)) == len(of_rng) > 30
    assert samples(wrapped(batch_size=7)) == golden
    assert samples(wrapped(num_workers=2)) == golden
    ranks = [wrapped(world=World(rank, 2), batch_size=2) for rank in range(2)]
    shares = [[batch.tolist() for batch in rank] for rank in ranks]
    assert [one for pair in zip(*shares, strict=True) for batch in pair for one in batch] == golden[:23]
    loader = wrapped(batch_size=1)
    loader.seek(epoch=1, step=3)
    assert next(iter(loader))[0].tolist() == golden[26]


def test_the_numbers_follow_from_the_keys() -> None:
    rng, keys = SampleRNG(0), SampleKeys(SEED, 0)
    golden = [drawn(rng.at(key)) for key in keys.samples(0, 8).tolist()]
    by_transform = resumable.wrap(range(8), batch_size=4, transform=added, seed=SEED, randomness="passed")
    assert [numbers for batch in by_transform for _, numbers in batch] == golden
    of_stream = resumable.wrap(lambda: iter(range(8)), batch_size=4, transform=added, seed=SEED, randomness="passed")
    assert [numbers for batch in of_stream for _, numbers in batch] == golden
    collated = resumable.wrap(range(8), batch_size=4, collate=lambda _, rng: rng.key, seed=SEED, randomness="passed")
    assert list(collated) == [keys.batch(0), keys.batch(4)]


def test_pytorchs_numbers_equal_randomness_per_sample() -> None:
    class Global(Augmented):
        def __getitem__(self, index: int, rng: Any = None) -> Any:
            if rng is None:
                return torch.rand(3), random.random()
            return torch.rand(3, generator=rng.torch), rng.python.random()

    per_sample: Any = DataLoader(Global(), batch_size=4, shuffle=True)
    assert read(wrapped(Global())) == read(resumable.wrap(per_sample, seed=SEED))


def test_no_global_rng_is_touched() -> None:
    """Neither seeded, nor swapped while a sample is read."""
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    before = states()

    class Looking(Augmented):
        def __getitem__(self, index: int, rng: Any = None) -> Any:
            assert states() == before
            return super().__getitem__(index, rng)

    def looking(sample: Any, rng: Any) -> Any:
        assert states() == before
        return added(sample, rng)

    for _ in wrapped(Looking()):
        assert states() == before
    for _ in resumable.wrap(stream, batch_size=4, transform=looking, randomness="passed"):
        assert states() == before


class Drawing(Sampler[int]):
    """A custom sampler that uses a global RNG."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(23).tolist())

    def __len__(self) -> int:
        return 23


ORDERS: dict[str, Callable[[], resumable.Loader]] = {
    "order of torch": lambda: _make({"order": "torch"}, generator=torch.Generator().manual_seed(3)),
    "ResumableSampler": lambda: _make({}, sampler=resumable.ResumableSampler(Augmented(), seed=3), shuffle=None),
    "a custom sampler": lambda: wrapped(sampler=Drawing(), shuffle=None),
    "not batched": lambda: wrapped(batch_size=None, shuffle=False),
}


@pytest.mark.parametrize("name", ORDERS)
def test_each_order_resumes_exactly(name: str) -> None:
    loader = ORDERS[name]()
    golden, kept = [], [loader.state_dict()]
    for epoch in loader.epochs(2):
        for batch in epoch:
            golden.append(digest(batch))
            kept.append(loader.state_dict())
    assert len(set(golden)) > len(golden) * 0.8  # some samples of one are not augmented
    for step in range(0, len(kept), 3):
        torch.manual_seed(step)  # which the custom sampler uses
        resumed = ORDERS[name]()
        resumed.load_state_dict(kept[step])
        assert read(resumed) == golden[step:]


def test_datasets_inside_of_others_get_it() -> None:
    alone = samples(wrapped(shuffle=False), 1)
    subset = samples(wrapped(Subset(Augmented(40), range(23)), shuffle=False), 1)
    assert subset == alone
    parts: Any = ConcatDataset([Augmented(10), Subset(Augmented(), range(10, 23))])
    assert [one[1:] for one in samples(wrapped(parts, shuffle=False), 1) if one[0] % 4] == [
        one[1:] for one in (*alone[:10], *alone[10:]) if one[0] % 4
    ]
    zeros: Any = [torch.zeros(7, dtype=torch.float64)] * 11
    half: Any = ConcatDataset([Augmented(12), zeros])
    assert samples(wrapped(half, shuffle=False), 1)[:12] == alone[:12]
    mixture = resumable.mix({"a": Augmented(), "b": [torch.zeros(7, dtype=torch.float64)] * 23})
    mixed_golden = read(resumable.wrap(mixture, batch_size=4, seed=SEED, randomness="passed"))
    assert read(wrapped(mixture, shuffle=False, num_workers=2)) == read(wrapped(mixture, shuffle=False))
    assert len(set(mixed_golden)) == len(mixed_golden)


def test_samples_are_read_singly_if_the_dataset_takes_it() -> None:
    class Together(Augmented):
        def __getitems__(self, indices: list[int]) -> Any:
            raise AssertionError("without RNGs")

    assert read(wrapped(Together())) == read(wrapped(Augmented()))


def test_batches_are_read_together_if_only_collate_takes_it() -> None:
    class Together(Dataset[Any]):
        def __len__(self) -> int:
            return 8

        def __getitems__(self, indices: list[int]) -> Any:
            return [torch.tensor(index) for index in indices]

    got = [order.tolist() for _, order in wrapped(Together(), collate_fn=mixed)]
    rng, keys = SampleRNG(0), SampleKeys(SEED, 0)
    assert got == [rng.at(keys.batch(start)).permutation(4).tolist() for start in (0, 4)]


def test_loaders_in_threads_and_inside_of_samples_get_their_own() -> None:
    class Nested(Augmented):
        def __getitem__(self, index: int, rng: Any = None) -> Any:
            first = rng.random()
            inner = next(iter(wrapped(seed=index)))
            return torch.tensor([first, rng.random(), inner[0][1]], dtype=torch.float64)

    golden = read(wrapped(Augmented(400)), 1)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: read(wrapped(Augmented(400)), 1), range(8)))
    assert found == [golden] * 8
    rng, keys = SampleRNG(0), SampleKeys(SEED, 0)
    batch = next(iter(wrapped(Nested(), num_workers=0)))
    assert batch[:, :2].tolist() == [rng.at(key).random(2).tolist() for key in keys.samples(0, 4).tolist()]


def test_evaluation_has_the_same_numbers_each_time(tmp_path: Any) -> None:
    source: Any = DataLoader(Augmented(), 4)
    loader = resumable.wrap(source, seed=SEED, evaluation=True, randomness="passed")
    assert [digest(one) for one in loader] == [digest(one) for one in loader]
    recorded = resumable.wrap(source, seed=SEED, randomness="passed", flight_recorder=str(tmp_path))
    assert read(recorded, 1) == [digest(one) for one in loader]


# ------------------------------------------------------------------ errors and warnings


class Plain(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return index


class Optional(Plain):
    def __getitem__(self, index: int, crop: bool = False) -> Any:
        return index


class Elements(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(8))


class OwnBackend:
    kind, identity, length = "own", {"source": "own"}, 8

    def read(self, requests: Any) -> Any:
        yield from requests


REJECTED: dict[str, tuple[Callable[[], Any], str]] = {
    "dataset": (lambda: DataLoader(Plain(), 4), r"dataset Plain has none\.\n  searched for: __getitem__\(index, rng\)"),
    "another parameter": (lambda: DataLoader(Optional(), 4), "dataset Optional has none"),
    "subset": (lambda: DataLoader(Subset(Plain(), [1, 2]), 4), "dataset Subset has none"),
    "list": (
        lambda: [1, 2, 3],
        r"list has none\.\n  searched for: .*transform\(sample, rng\), collate\(samples, rng\)",
    ),
    "array": (lambda: np.zeros((8, 2)), "has none"),
    "stream": (lambda: stream, r"the source stream has none\.\n  searched for: transform\(element, rng\)"),
    "IterableDataset": (
        lambda: DataLoader(Elements(), 4),
        r'"passed" does not fit a DataLoader over an IterableDataset(?s:.*)without the DataLoader',
    ),
    "backend": (OwnBackend, r"backend of the kind own(?s:.*)SampleRNG\(key\) from each of request\.keys"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_a_source_without_the_parameter_is_rejected(name: str) -> None:
    make, message = REJECTED[name]
    source = make()
    options: dict[str, Any] = {} if isinstance(source, DataLoader | OwnBackend) else {"batch_size": 4}
    with pytest.raises(UnsupportedError, match=message):
        resumable.wrap(source, randomness="passed", **options)


def test_a_required_parameter_of_any_name_and_a_wrapped_function_count() -> None:
    class Required(Plain):
        def __getitem__(self, index: int, generator: Any) -> Any:  # type: ignore[override]  # noqa: PLE0302  # on purpose
            return generator.key

    keys = SampleKeys(SEED, 0).samples(0, 4).tolist()
    assert next(iter(wrapped(Required(), shuffle=False, collate_fn=list))) == keys
    bound = partial(lambda factor, sample, rng: (factor, sample, rng.key), 2)
    loader = resumable.wrap(range(8), batch_size=4, transform=bound, seed=SEED, randomness="passed")
    assert next(iter(loader)) == [(2, index, key) for index, key in enumerate(keys)]


OTHERS: dict[str, Callable[[], object]] = {
    "python": random.random,
    "numpy": np.random.rand,
    "torch": lambda: torch.rand(1),
}


@pytest.mark.parametrize("name", [*OTHERS, "dataset.own"])
def test_a_warning_reports_an_rng_that_was_not_passed(name: str) -> None:
    class Careless(Augmented):
        def __init__(self) -> None:
            super().__init__()
            self.own = np.random.default_rng()

        def __getitem__(self, index: int, rng: Any = None) -> Any:
            self.own.random() if name == "dataset.own" else OTHERS[name]()
            return super().__getitem__(index, rng)

    batches = iter(wrapped(Careless()))
    with pytest.warns(PromiseWarning, match=rf"used an RNG that was not passed: {name}\."):
        next(batches)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(batches)  # once


def test_no_warning_if_a_library_uses_the_passed_rng() -> None:
    class Given(Augmented):
        def __init__(self) -> None:
            super().__init__()
            self.own = np.random.default_rng()

        def __getitem__(self, index: int, rng: Any = None) -> Any:
            self.own = rng
            return torch.tensor(self.own.random())

    dataset = Given()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        golden = read(wrapped(dataset), 1)
        assert read(wrapped(dataset), 1) == golden


@pytest.mark.slow
def test_check_accepts_it() -> None:
    report = resumable.check(wrapped)
    assert report.ok, str(report)
