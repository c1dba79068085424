"""`order="torch"`: whether a `DataLoader`'s own order is a function of a seed, and which one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DistributedSampler, SequentialSampler

from resumable._seeds import GIVEN
from resumable.backends.torch.order import Order, distributed, kind_of
from resumable.backends.torch.sampler import ResumableSampler
from resumable.backends.torch.torch_order import Chained, Seeded
from resumable.errors import ConfigurationError, UnsupportedError
from resumable.samplers import Sequential

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from resumable._options import Options

__all__ = ["HINTS", "LARGEST", "torchs_order"]

LARGEST = 10**8  # positions of an epoch
_LEAVE_OUT = 'Leave out order="torch" for the order of this package.'
_ITERATORS = (
    "What the DataLoader itself draws of the generator is part of torch's order. Give it generator, num_workers and "
    "persistent_workers as the run was started with."
)
HINTS = {
    "sampler.torch_seed": "Give the DataLoader's sampler or generator the seed that the run was started with.",
    "sampler.torch": "This version of torch draws other numbers by the same seed. Use the version of before.",
    "sampler.drawn": "The generator was in another state when the DataLoader was wrapped. Seed it right before.",
    "sampler.workers_seed": _ITERATORS,
    "sampler.drawn_twice": _ITERATORS,
}


def torchs_order(loader: DataLoader[Any], sampler: Any, known: Order | None, options: Options) -> Order:
    """Return the order that torch itself gives.

    Args:
        loader: the user's.
        sampler: of single indices; None where the batches are the user's own.
        known: what the sampler means in our order.
        options: the seed, and a sampler that was given instead.

    Raises:
        UnsupportedError: the order is a user's own, or ours, or no function of a seed, or too large to be kept.
        ConfigurationError: another seed or sampler was given.
    """
    kind = kind_of(sampler)
    if options.sampler is not None:
        raise ConfigurationError(
            f'sampler={options.sampler!r} and order="torch" were given, but only one of them can say the order.\n'
            "Leave out one of them."
        )
    if kind is None or kind is ResumableSampler:
        own = loader.batch_sampler if sampler is None else sampler
        raise UnsupportedError(
            f'order="torch" was given, but the order of this DataLoader is that of a {type(own).__qualname__}.\n'
            'No sampler of torch says it, so torch\'s own order is none of it. Leave out order="torch": its order is '
            "kept all the same."
        )
    if kind is SequentialSampler:
        assert known is not None
        return known
    if kind is DistributedSampler:
        return distributed(sampler, _distributed(sampler, options))
    return Order(_chained(loader, sampler, options))


def _distributed(sampler: Any, options: Options) -> Sequential | Seeded:
    length = len(sampler.dataset)
    if not sampler.shuffle:
        return Sequential(length)
    _check_seed(sampler.seed, options, "the DistributedSampler")
    _check_size(length)
    return Seeded(length, sampler.seed)


def _chained(loader: DataLoader[Any], sampler: Any, options: Options) -> Chained:
    generator = sampler.generator
    if generator is None:
        raise UnsupportedError(
            f'order="torch" was given, but the {type(sampler).__qualname__} of this DataLoader has no generator: torch '
            "seeds each epoch by its global generator, from which the training draws, too.\n"
            "No seed says that order. Give the DataLoader generator=torch.Generator().manual_seed(0) (or the sampler, "
            f'where it has one), or leave out order="torch".'
        )
    seed = generator.initial_seed()
    _check_seed(seed, options, "the generator")
    _check_size(len(sampler))
    drawn = not torch.equal(generator.get_state(), torch.Generator().manual_seed(seed).get_state())
    return Chained(loader, sampler, seed, drawn=drawn)


def _check_seed(own: int, options: Options, whose: str) -> None:
    """Refuse a seed that was given to `wrap` and is not the one by which torch shuffles.

    Raises:
        ConfigurationError: it is another one.
    """
    if options.origin.seed == GIVEN and options.seed != own:
        raise ConfigurationError(
            f'order="torch" and seed={options.seed} were given, but {whose} of the DataLoader has the seed {own}.\n'
            f"Only one of them can say the order. Leave out seed, or give {whose} the seed {options.seed}."
        )


def _check_size(length: int) -> None:
    if length > LARGEST:
        raise UnsupportedError(
            f'order="torch" was given, and an epoch has {length} samples; it is offered for up to {LARGEST}.\n'
            f"Two whole permutations are kept, {16 * length / 1e9:.3g} GB in each process that trains, and a resume "
            f"draws all epochs again. {_LEAVE_OUT}"
        )
