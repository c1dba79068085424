"""Compares what three loaders keep after an interruption, and writes the table into the pages that show it.

python docs/compare_loaders.py

Each cell is the result of a run: one loader is read for a few batches, its state goes through `torch.save`, and a
second loader continues from it, with the installed versions of torch and torchdata.
"""

from __future__ import annotations

import io
import random
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, get_worker_info

import resumable
from resumable.errors import StateMismatchError

with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)  # torchdata 0.11 uses a function that torch 2.11 deprecates
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["PAGES", "TABLE", "table"]

DOCS = Path(__file__).parent
PAGES = [DOCS.parent / "README.md", DOCS / "get-started/stateful-dataloader.md"]
TABLE = re.compile(r"(?<=<!-- from docs/compare_loaders.py -->\n\n).*?(?=\n\n<!-- end of the table -->)", re.DOTALL)
SAMPLES, BATCH = 64, 4
READ = 5  # batches before the interruption


class Images(Dataset[Any]):
    """Samples with an augmentation that uses all three global RNGs."""

    def __init__(self, seed: int = 1) -> None:
        self.values = torch.randperm(1000, generator=torch.Generator().manual_seed(seed))[:SAMPLES]

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        noise = [random.random(), np.random.rand(), float(torch.rand(1))]  # noqa: NPY002  # as augmentations do
        return self.values[index], torch.tensor(noise)


class Stream(IterableDataset[Any]):
    """A stream without a state, divided among its workers."""

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for value in range(first, SAMPLES, step):
            yield torch.tensor(value), torch.zeros(3)


class Setting(NamedTuple):
    """The options of a script, which may change between its two runs."""

    data: Any
    workers: int = 2
    batch: int = BATCH
    rank: int = 0
    ranks: int | None = None
    shuffle: bool = True

    def make(self, kind: Any, distributed: Any = None) -> Any:
        """Make a loader as the documentation of its library does."""
        options: dict[str, Any] = {"batch_size": self.batch, "num_workers": self.workers}
        if distributed and self.ranks:
            options["sampler"] = distributed(self.data, self.ranks, self.rank)
        elif not isinstance(self.data, IterableDataset):
            options["shuffle"] = self.shuffle
        return kind(self.data, **options)


class Plain:
    """PyTorch's `DataLoader`. It has no state, so a second run starts the epoch over."""

    def __init__(self, setting: Setting) -> None:
        torch.manual_seed(0)
        self.loader: Any = self.make(setting)

    def make(self, setting: Setting) -> Any:
        """Make the loader."""
        return setting.make(DataLoader, DistributedSampler)

    def save(self) -> Any:
        """Return the state."""

    def load(self, state: Any) -> None:
        """Load a state."""


class Stateful(Plain):
    """torchdata's `StatefulDataLoader`, on several ranks with its `StatefulDistributedSampler`."""

    def make(self, setting: Setting) -> Any:
        """Make the loader."""
        return setting.make(StatefulDataLoader, StatefulDistributedSampler)

    def save(self) -> Any:
        """Return the state."""
        return self.loader.state_dict()

    def load(self, state: Any) -> None:
        """Load a state."""
        self.loader.load_state_dict(state)


class Wrapped(Stateful):
    """A wrapped `DataLoader`."""

    def make(self, setting: Setting) -> Any:
        """Make the loader."""
        options: dict[str, Any] = {"streams": 2} if isinstance(setting.data, IterableDataset) else {}
        world = resumable.World(setting.rank, setting.ranks or 1)
        return resumable.wrap(setting.make(DataLoader), seed=0, world=world, **options)

    def load(self, state: Any) -> None:
        """Load a state, and ask for the epoch, as a script with plain loops does."""
        super().load(state)
        assert self.loader.epoch in {0, 1}


Kind = type[Plain]
LOADERS: dict[str, Kind] = {
    "`DataLoader`": Plain,
    "torchdata `StatefulDataLoader`": Stateful,
    "`resumable`": Wrapped,
}


def samples(batches: Any) -> list[Any]:
    """Return the samples of each batch."""
    return [batch[0].tolist() for batch in batches]


def pixels(batches: Any) -> list[Any]:
    """Return the samples of each batch with their augmentations."""
    return [(batch[0].tolist(), batch[1].tolist()) for batch in batches]


def state_of(loader: Plain, epochs: int = 1) -> bytes:
    """Read some epochs and a few batches of the next one; return the state as a checkpoint holds it."""
    for _ in range(epochs):
        list(loader.loader)
    batches = iter(loader.loader)
    for _ in range(READ):
        next(batches)
    file = io.BytesIO()
    torch.save(loader.save(), file)
    return file.getvalue()


def resume(kind: Kind, state: bytes, setting: Setting) -> Any:
    """Return the loader of a second run."""
    second = kind(setting)
    second.load(torch.load(io.BytesIO(state), weights_only=False))
    return second.loader


def continues(kind: Kind, first: Setting, second: Setting, seen: Callable[[Any], list[Any]] = samples) -> bool:
    """Return whether the second run has the remaining batches of the first in epoch 1, and those in epoch 2."""
    baseline = kind(first).loader
    _, *expected = seen(baseline), seen(baseline)[READ:], seen(baseline)
    resumed = resume(kind, state_of(kind(first)), second)
    return [seen(resumed), seen(resumed)] == expected


def continues_on_one_rank(kind: Kind) -> bool:
    """Resume two ranks as one with the same global batch."""
    two = [Setting(Images(), rank=rank, ranks=2) for rank in (0, 1)]
    shares = [samples(kind(setting).loader) for setting in two]
    expected = [sorted(left + right) for left, right in zip(*shares, strict=True)][READ:]
    one = Setting(Images(), batch=2 * BATCH, ranks=1)
    return [sorted(batch) for batch in samples(resume(kind, state_of(kind(two[0]), 0), one))] == expected


def detects(kind: Kind, second: Setting) -> bool:
    """Return whether a state that does not fit raises an error that says so."""
    try:
        next(iter(resume(kind, state_of(kind(Setting(Images()))), second)))
    except StateMismatchError:
        return True
    return False


ROWS: dict[str, Callable[[Kind], bool]] = {
    "continues mid-epoch with the same sample order": lambda kind: continues(
        kind, Setting(Images()), Setting(Images())
    ),
    "repeats the `random`, NumPy and PyTorch augmentations": lambda kind: continues(
        kind, Setting(Images()), Setting(Images()), pixels
    ),
    "resumes with a different `num_workers`": lambda kind: continues(
        kind, Setting(Images()), Setting(Images(), workers=1)
    ),
    "the same for an `IterableDataset`": lambda kind: continues(kind, Setting(Stream()), Setting(Stream(), workers=1)),
    "resumes on a different number of ranks": continues_on_one_rank,
    "detects a changed dataset": lambda kind: detects(kind, Setting(Images(seed=2))),
    "detects a missing `shuffle=True`": lambda kind: detects(kind, Setting(Images(), shuffle=False)),
}


def cell(row: Callable[[Kind], bool], kind: Kind) -> str:
    """Return what a cell says: yes, no, or the error."""
    try:
        return "yes" if row(kind) else "no"
    except AssertionError:  # torchdata's, without a message
        return "`AssertionError`"


def size(kind: Kind) -> str:
    """Return the size of a state in a checkpoint, without the file format."""
    empty = io.BytesIO()
    torch.save(None, empty)
    bytes_ = len(state_of(kind(Setting(Images())))) - len(empty.getvalue())
    return f"{bytes_ / 1000:.1f} kB" if bytes_ else "none"


def table() -> str:
    """Run everything and return the table."""
    rows = [(name, [cell(row, kind) for kind in LOADERS.values()]) for name, row in ROWS.items()]
    rows += [("size of the state, with 2 workers", [size(kind) for kind in LOADERS.values()])]
    head = ["|  | " + " | ".join(LOADERS) + " |", "| --- " + "| :---: " * len(LOADERS) + "|"]
    return "\n".join([*head, *(f"| {name} | {' | '.join(cells)} |" for name, cells in rows)])


if __name__ == "__main__":
    made = table()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        page.write_text(TABLE.sub(lambda _: made, text), encoding="utf-8")
