"""Torch's samplers, said as samplers of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from resumable.samplers import Sequential, Shuffle, Subset, Weighted
from resumable.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from resumable.samplers import Sampler

__all__ = ["Order", "find_order"]


class Order(NamedTuple):
    """What a torch sampler means: an order, and what `DistributedSampler` adds to it."""

    sampler: Sampler
    world: World | None = None
    pads: bool = False
    drop_last: bool = False


def find_order(sampler: Any, length: int, seed: int) -> Order | None:
    """Return what a sampler of torch means; None for any other sampler, and for subclasses with an order of their own.

    Args:
        sampler: of a `DataLoader`.
        length: number of samples of the dataset.
        seed: the loader's seed; that of the torch sampler and the global generators are not looked at.
    """
    for known, translate in _TRANSLATIONS.items():
        if isinstance(sampler, known):
            return translate(sampler, length, seed) if type(sampler).__iter__ is known.__iter__ else None
    return None


def _sequential(sampler: Any, length: int, seed: int) -> Order:  # noqa: ARG001  # one signature for all
    return Order(Sequential(length))


def _random(sampler: Any, length: int, seed: int) -> Order:
    if sampler.replacement:
        return Order(Weighted([1.0] * length, seed=seed, num_samples=sampler.num_samples))
    return Order(Shuffle(length, seed=seed, num_samples=sampler.num_samples))


def _distributed(sampler: Any, length: int, seed: int) -> Order:
    order: Sampler = Shuffle(length, seed=seed) if sampler.shuffle else Sequential(length)
    return Order(
        order, World(sampler.rank, sampler.num_replicas), pads=not sampler.drop_last, drop_last=sampler.drop_last
    )


def _subset(sampler: Any, length: int, seed: int) -> Order:  # noqa: ARG001  # one signature for all
    return Order(Subset(list(sampler.indices), Shuffle(len(sampler.indices), seed=seed)))


def _weighted(sampler: Any, length: int, seed: int) -> Order | None:  # noqa: ARG001  # one signature for all
    if not sampler.replacement:
        return None
    return Order(Weighted(sampler.weights.numpy(), seed=seed, num_samples=sampler.num_samples))


_TRANSLATIONS: dict[type, Callable[[Any, int, int], Order | None]] = {
    SequentialSampler: _sequential,
    RandomSampler: _random,
    DistributedSampler: _distributed,
    SubsetRandomSampler: _subset,
    WeightedRandomSampler: _weighted,
}
