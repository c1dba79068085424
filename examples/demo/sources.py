"""The sources that the demo trains from, each wrapped as its users would do it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, default_collate

import resumable

from .augmentation import sample
from .digits import BATCH_SIZE
from .streams import (
    DigitsDataset,
    DigitsReader,
    DigitsStream,
    EachClassInTurn,
    StatefulDigitsStream,
    shuffled_batches,
)

if TYPE_CHECKING:
    from resumable.loader import Loader

    from .digits import Digits

__all__ = [
    "make_generator",
    "make_map_style",
    "make_map_style_workers",
    "make_own_sampler",
    "make_plain",
    "make_reader",
    "make_sequence",
    "make_stateful_stream",
    "make_stream",
]


def make_sequence(digits: Digits) -> Loader:
    """Wrap a list, here of indices."""
    indices = list(range(len(digits.labels)))
    transform = partial(sample, digits)
    return resumable.wrap(indices, batch_size=BATCH_SIZE, shuffle=True, transform=transform, collate=default_collate)


def make_generator(digits: Digits) -> Loader:
    """Wrap a generator function, which resumes by running again and skipping."""
    return resumable.wrap(partial(shuffled_batches, digits))


def make_plain(digits: Digits) -> DataLoader[Any]:
    """Create a `DataLoader` over a map-style dataset, for the training program to wrap."""
    return DataLoader(DigitsDataset(digits), batch_size=BATCH_SIZE, shuffle=True)


def make_map_style(digits: Digits) -> Loader:
    """Wrap the same, without workers."""
    return resumable.wrap(make_plain(digits))


def make_map_style_workers(digits: Digits) -> Loader:
    """Wrap the same with two workers."""
    return resumable.wrap(DataLoader(DigitsDataset(digits), batch_size=BATCH_SIZE, shuffle=True, num_workers=2))


def make_own_sampler(digits: Digits) -> Loader:
    """Wrap a `DataLoader` with a custom sampler, whose order is kept."""
    sampler = EachClassInTurn(digits.labels)
    return resumable.wrap(DataLoader(DigitsDataset(digits), batch_size=BATCH_SIZE, sampler=sampler))


def make_stateful_stream(digits: Digits) -> Loader:
    """Wrap a `DataLoader` with two workers over an `IterableDataset` with a state."""
    return resumable.wrap(DataLoader(StatefulDigitsStream(digits), batch_size=BATCH_SIZE, num_workers=2))


def make_stream(digits: Digits) -> Loader:
    """Wrap a `DataLoader` with two workers over an `IterableDataset` without a state."""
    return resumable.wrap(DataLoader(DigitsStream(digits), batch_size=BATCH_SIZE, num_workers=2))


def make_reader(digits: Digits) -> Loader:
    """Wrap an object that has `state_dict` and `load_state_dict`."""
    return resumable.wrap(DigitsReader(digits), batch_size=BATCH_SIZE, collate=default_collate)
