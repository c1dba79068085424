"""DataLoaders that would fail late, or resume wrong, told when they are wrapped."""

from __future__ import annotations

import warnings
from typing import Any

from torch.utils.data import DataLoader

from resumable.backends.torch.worker_stream import has_state
from resumable.errors import PromiseWarning, UnsupportedError

__all__ = ["length_or_none", "refuse_misuse", "warn_of_state"]


def refuse_misuse(loader: DataLoader[Any]) -> None:
    """Refuse a DataLoader of DataLoaders, and one that Accelerate has prepared.

    Raises:
        UnsupportedError: it is one of these.
    """
    if isinstance(loader.dataset, DataLoader):
        raise UnsupportedError(
            "the dataset of this DataLoader is a DataLoader itself, which has no samples by an index.\n"
            "Its first sample could not be read. Wrap the inner one: wrap(loader.dataset)."
        )
    if any(base.__module__.partition(".")[0] == "accelerate" for base in type(loader).__mro__):
        raise UnsupportedError(
            f"this is a {type(loader).__qualname__}, a DataLoader that Accelerate has prepared.\n"
            "It divides the batches among the ranks and fetches ahead by itself, which no state would tell. Wrap the "
            "DataLoader before, and do not prepare it: the Loader takes each rank's share itself."
        )


def warn_of_state(dataset: Any) -> None:
    """Say that the state of a map-style dataset is no part of a checkpoint.

    Warns:
        PromiseWarning: it has one.
    """
    if has_state(dataset):
        warnings.warn(
            f"the dataset {type(dataset).__qualname__} has a state_dict() of its own, which is not saved: samples "
            "are read by their index, in workers that have copies of it.\nAfter a resume, samples that depend on that "
            "state would be other ones. Let __getitem__ depend on the index alone, or save that state yourself.",
            PromiseWarning,
            stacklevel=6,
        )


def length_or_none(loader: DataLoader[Any]) -> int | None:
    """Return the batches per epoch of a stream; None where it does not say, as ChainDataset of datasets without one."""
    try:
        return len(loader) if hasattr(loader.dataset, "__len__") else None
    except (TypeError, NotImplementedError, AttributeError):
        return None
