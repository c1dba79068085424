"""DataLoaders that would fail late, or resume wrong, told when they are wrapped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, SequentialSampler, default_collate
from torch.utils.data._utils import collate as theirs

from resumable._fetch.own_state import own_state
from resumable._introspection import ask, has, is_a, length_or_none, qualname_of
from resumable.backends.torch.orders import is_plain_batch_sampler, kind_of
from resumable.errors import ConfigurationError, UnsupportedError
from resumable.loader.registry import refuse_hidden_order

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from resumable._fetch.own_state import OwnState


__all__ = ["batches_or_none", "collating", "refuse_misuse", "refuse_other_order", "remembered"]


def refuse_misuse(loader: DataLoader[Any]) -> None:
    """Refuse a DataLoader over what has no samples by an index, such as a DataLoader, a Loader or a generator.

    Raises:
        UnsupportedError: it is one.
    """
    inner = loader.dataset
    if is_a(inner, IterableDataset) or has(inner, "__getitem__") or has(inner, "__getitems__"):
        return
    name = qualname_of(type(inner))
    way = (
        "Wrap the inner one: wrap(loader.dataset)"
        if is_a(inner, DataLoader)
        else (
            "Give the DataLoader a dataset with __getitem__ and __len__, or an IterableDataset; what can be iterated "
            "needs no DataLoader: wrap(source, batch_size=...)"
        )
    )
    raise UnsupportedError(
        f"the dataset of this DataLoader is a {name}, which has no samples by an index.\n"
        f"Its first sample could not be read. {way}."
    )


def refuse_other_order(loader: DataLoader[Any]) -> None:
    """Refuse a DataLoader that shuffles a dataset that carries its own order, such as a mixture.

    Raises:
        ConfigurationError: it does, or such a dataset is inside of its own.
    """
    refuse_hidden_order(loader.dataset, "the dataset of this DataLoader")
    if ask(type(loader.dataset), "resumable_order") is None:
        return
    sampler, plain = loader.sampler, loader.batch_sampler is None or is_plain_batch_sampler(loader.batch_sampler)
    kind = kind_of(sampler)
    divides = kind is DistributedSampler and not ask(sampler, "shuffle", True)
    if not plain or not (kind is SequentialSampler or divides):
        given = qualname_of(type(sampler if plain else loader.batch_sampler))
        raise ConfigurationError(
            f"the DataLoader has a {given}, and its dataset, a {type(loader.dataset).__qualname__}, carries its own "
            "order.\nIts proportions would be lost. Make the DataLoader without shuffle and samplers, or with "
            "DistributedSampler(..., shuffle=False): each source is shuffled already."
        )


def remembered(loader: DataLoader[Any], *, kept: bool) -> OwnState | None:
    """Return how to get and set what a map-style dataset remembers, where it has a state that can be saved.

    Args:
        loader: the user's.
        kept: it keeps the order of a sampler of its user's own.

    Warns:
        PromiseWarning: it has one, and that cannot be saved.
    """
    if loader.num_workers:
        reason = "samples are read by workers, each of which has a copy of it"
        return own_state(
            loader.dataset, unless=reason, advice=", or read without workers (num_workers=0)", stacklevel=7
        )
    return own_state(
        loader.dataset, unless="the DataLoader keeps the order of a sampler of your own" if kept else None, stacklevel=7
    )


def batches_or_none(loader: DataLoader[Any]) -> int | None:
    """Return the batches per epoch of a stream; None if it does not say, as ChainDataset of datasets without one."""
    return length_or_none(loader) if has(loader.dataset, "__len__") else None


# ------------------------------------------------------------------ collating
#
# torch's own way to collate, with a shorter one for plain numbers, such as labels.
#
# `torch.tensor(list)` takes twice as long as NumPy's array of it and a copy of that. What comes out is the same: dtype,
# memory, and errors.


def collating(collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return what collates as a function does: another one for torch's default, else the same."""
    return _collate if collate is default_collate else collate


def _collate(batch: Any) -> Any:
    known = theirs.default_collate_fn_map  # read each time, as users add to it
    function, replaced = _OWN.get(type(batch[0]), (None, None)) if type(batch) is list and batch else (None, None)
    if function is not None and known.get(type(batch[0])) is replaced:
        return function(batch)
    own: dict[Any, Any] = {kind: function for kind, (function, replaced) in _OWN.items() if known.get(kind) is replaced}
    return theirs.collate(batch, collate_fn_map={**known, **own})


def _integers(batch: Sequence[Any], *, collate_fn_map: Any = None) -> torch.Tensor:
    numbers = _filled(batch, int, torch.int64)
    return theirs.collate_int_fn(batch, collate_fn_map=collate_fn_map) if numbers is None else numbers


def _floats(batch: Sequence[Any], *, collate_fn_map: Any = None) -> torch.Tensor:
    numbers = _filled(batch, float, torch.float64)
    return theirs.collate_float_fn(batch, collate_fn_map=collate_fn_map) if numbers is None else numbers


def _filled(batch: Sequence[Any], kind: type, dtype: torch.dtype) -> torch.Tensor | None:
    """Return a tensor of plain numbers; None where torch has to look at them, as booleans are integers, too."""
    if set(map(type, batch)) != {kind}:
        return None
    tensor = torch.empty(len(batch), dtype=dtype)
    if type(tensor) is not torch.Tensor:  # by a mode of torch's
        return None
    try:
        numbers = np.array(batch, "int64" if kind is int else "float64")  # `int` is shorter on Windows
    except OverflowError:
        return None
    return tensor.copy_(torch.from_numpy(numbers))  # a tensor that NumPy has seen could not be resized


_OWN: dict[type, tuple[Any, Any]] = {
    int: (_integers, theirs.collate_int_fn),
    float: (_floats, theirs.collate_float_fn),
}
