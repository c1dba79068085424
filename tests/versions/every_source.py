"""One Loader of every kind of source that needs no GPU and no compiler, for comparing their streams between versions.

Samples contain random numbers, like augmented ones. A kind whose package is not installed is left out.
"""

from __future__ import annotations

import random
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

import resumable
from resumable import World
from resumable.samplers import Blocks, Weighted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from resumable import Loader

EPOCHS = 2

WITH_TORCH = find_spec("torch") is not None
WITH_DATASETS = find_spec("datasets") is not None


def augmented(index: Any) -> tuple[Any, float, float]:
    return index, random.random(), float(np.random.randn())


def augmented_with(index: Any, rng: Any) -> tuple[Any, int, float, float, float]:
    half, child = int(rng.integers(1 << 20, dtype=np.uint32)), rng.spawn(1)[0]  # half of a word
    return index, half, float(rng.normal()), rng.python.random(), float(child.random())


class Reader:
    """Goes on where it stands, and has a state."""

    def __init__(self) -> None:
        self.index, self.laps = 0, 0

    def state_dict(self) -> dict[str, int]:
        return {"index": self.index, "laps": self.laps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.index, self.laps = state["index"], state["laps"]

    def __iter__(self) -> Iterator[Any]:
        while self.index < 9:
            self.index += 1
            yield augmented(self.laps * 100 + self.index)
        self.index, self.laps = 0, self.laps + 1


class Shards:
    """Samples in shards, for a block shuffle."""

    sizes = (7, 5, 6)

    def __len__(self) -> int:
        return sum(self.sizes)

    def __getitem__(self, index: int) -> Any:
        return augmented(index)


def numbers() -> Iterator[Any]:
    return map(augmented, range(11))


def write_files(folder: Path) -> None:
    """Write the files that the sources read. All environments read the same ones: their bytes are in the states."""
    from parquet_files import write as write_parquet  # noqa: PLC0415  # pyarrow is slow to import
    from tar_files import write_images  # noqa: PLC0415  # so is Pillow

    np.save(folder / "tokens.npy", (np.arange(400) * 7919 % 65_521).astype(np.uint16))
    np.save(folder / "lengths.npy", np.array([50, 3, 120, 27, 80, 1, 119]))
    write_parquet(folder, (13, 9, 1))
    write_images(folder, (6, 2, 5))


def kinds_of(folder: Path) -> dict[str, Callable[[], Loader[Any]]]:
    """Return a function for each kind of source that this environment can read; the files are in a folder."""
    data, wrap = list(range(19)), partial(resumable.wrap, batch_size=3, seed=3)
    mixed = {"a": data[:8], "b": data[8:]}
    kinds: dict[str, Callable[[], Loader[Any]]] = {
        "list": lambda: wrap(data, shuffle=True, transform=augmented),
        "list on rank 1 of 2": lambda: wrap(data, shuffle=True, transform=augmented, world=World(1, 2), tail="pad"),
        "list, carried tail": lambda: wrap(data, shuffle=True, transform=augmented, tail="carry"),
        "long range": lambda: wrap(range(100_003), shuffle=True, batch_size=20_001, transform=augmented),
        "array": lambda: wrap(np.arange(38).reshape(19, 2), shuffle=True),
        "weighted sampler": lambda: wrap(data, sampler=Weighted(np.arange(1, 20) / 7, seed=3), transform=augmented),
        "block shuffle": lambda: wrap(Shards(), shuffle="blocks"),
        "blocks by hand": lambda: wrap(Shards(), sampler=Blocks(Shards.sizes, window=2, seed=5)),
        "generator function": lambda: wrap(numbers),
        "generator, batch randomness": lambda: wrap(data, transform=augmented, randomness="batch"),
        "list, RNG passed": lambda: wrap(data, shuffle=True, transform=augmented_with, randomness="passed"),
        "generator, RNG passed": lambda: wrap(lambda: iter(data), transform=augmented_with, randomness="passed"),
        "reader with a state": lambda: wrap(Reader()),
        "mixture": lambda: wrap(resumable.mix(mixed, weights={"a": 2, "b": 1}), transform=augmented),
        "Tokens": lambda: wrap(resumable.Tokens(folder / "tokens.npy", 16), shuffle=True),
        "Packed": lambda: wrap(
            resumable.Packed(folder / "tokens.npy", 32, documents=folder / "lengths.npy", how="fit", sidecar=False)
        ),
        "Parquet": lambda: wrap(resumable.Parquet(str(folder / "part-*.parquet")), shuffle="blocks"),
        "Tars": lambda: wrap(resumable.Tars(str(folder / "*.tar")), shuffle="blocks"),
    }
    return kinds | (_of_torch(folder) if WITH_TORCH else {}) | (_of_datasets() if WITH_DATASETS else {})


def _of_torch(folder: Path) -> dict[str, Callable[[], Loader[Any]]]:
    import torch  # noqa: PLC0415  # it may be missing
    import torch_datasets as own  # noqa: PLC0415  # the same
    from torch.utils.data import DataLoader, DistributedSampler, RandomSampler  # noqa: PLC0415  # the same

    def loader(dataset: Any, *, options: dict[str, Any] | None = None, **given: Any) -> Loader[Any]:
        return resumable.wrap(DataLoader(dataset, **{"batch_size": 3, **given}), seed=3, **options or {})

    def in_torchs_order() -> Loader[Any]:
        sampler = RandomSampler(own.Augmented(), generator=torch.Generator().manual_seed(3))
        return loader(own.Augmented(), sampler=sampler, options={"order": "torch"})

    class PassedTo(own.Augmented):
        def __getitem__(self, index: int, rng: Any = None) -> Any:
            return *augmented_with(index, rng), torch.rand((), generator=rng.torch).item()

    def by_position() -> Loader[Any]:
        sampler = resumable.ResumableSampler(19, 1, 0, seed=3, batch_size=3)
        return loader(own.Augmented(19), sampler=sampler)

    return {
        "DataLoader": lambda: loader(own.Augmented(), shuffle=True),
        "DataLoader, 2 workers": lambda: loader(own.Augmented(), shuffle=True, num_workers=2),
        "DataLoader, 2 workers, RNG passed": lambda: loader(
            PassedTo(), shuffle=True, num_workers=2, options={"randomness": "passed"}
        ),
        "DataLoader, __getitems__": lambda: loader(own.Together(), shuffle=True),
        "DataLoader, order of torch": in_torchs_order,
        "DataLoader, own sampler": lambda: loader(own.Augmented(), sampler=own.EpochOrder()),
        "DataLoader, sampler with a state": lambda: loader(own.Augmented(), sampler=own.StatefulOrder()),
        "DataLoader, DistributedSampler": lambda: loader(
            own.Augmented(), sampler=DistributedSampler(own.Augmented(), 2, 1), options={"world": World(1, 2)}
        ),
        "DataLoader, ResumableSampler": by_position,
        "DataLoader over tokens": lambda: loader(resumable.Tokens(folder / "tokens.npy", 16), shuffle=True),
        "IterableDataset": lambda: loader(own.Stream()),
        "IterableDataset, 2 workers": lambda: loader(own.Stream(), num_workers=2),
        "IterableDataset, 3 streams": lambda: loader(own.Stream(), num_workers=2, options={"streams": 3}),
        "IterableDataset with a state": lambda: loader(own.StatefulStream()),
        "IterableDataset with a state, 2 workers": lambda: loader(own.StatefulStream(), num_workers=2),
    }


def _of_datasets() -> dict[str, Callable[[], Loader[Any]]]:
    from datasets import Dataset  # noqa: PLC0415  # it may be missing
    from torch.utils.data import DataLoader  # noqa: PLC0415  # the same

    table = {"number": list(range(17)), "text": [f"text {number}" for number in range(17)]}

    def stream() -> Any:
        return Dataset.from_dict(table).to_iterable_dataset(num_shards=3)

    return {
        "Hugging Face dataset": lambda: resumable.wrap(Dataset.from_dict(table), batch_size=3, shuffle=True, seed=3),
        "Hugging Face stream": lambda: resumable.wrap(stream(), batch_size=3, seed=3),
        "Hugging Face stream, 2 workers": lambda: resumable.wrap(
            DataLoader(stream(), batch_size=3, num_workers=2), seed=3
        ),
    }
