"""Torch's samplers, said as samplers of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from resumable._introspection import ask, has, is_a, length_or_none, module_of, qualname_of
from resumable._order.world import World
from resumable.backends.torch.sampler import ResumableSampler
from resumable.samplers import Sequential, Shuffle, Subset, Uniform, Weighted

if TYPE_CHECKING:
    from collections.abc import Callable

    from resumable._order.plan import Tail
    from resumable.samplers import Sampler

__all__ = [
    "Order",
    "Tails",
    "distributed",
    "find_order",
    "is_plain_batch_sampler",
    "is_torchs_own",
    "kind_of",
    "length_by",
]


class Order(NamedTuple):
    """What a torch sampler means: an order, and what a sampler that divides it among ranks adds to it."""

    sampler: Sampler
    world: World | None = None
    tails: Tails | None = None


class Tails(NamedTuple):
    """How a sampler that divides an epoch among ranks ends it, in a `DataLoader` that keeps its last batch or drops it.

    `older` is the tail that earlier versions made of it, whose states go on with it.
    """

    keeping: Tail
    dropping: Tail
    older: Tail


def find_order(sampler: Any, length: int, seed: int) -> Order | None:
    """Return what a sampler of torch means; None for any other sampler, and for subclasses with an order of their own.

    Args:
        sampler: of a `DataLoader`.
        length: number of samples of the dataset.
        seed: the loader's seed; that of the torch sampler and the global generators are not looked at.
    """
    kind = kind_of(sampler)
    return None if kind is None else _TRANSLATIONS[kind](sampler, length, seed)


def kind_of(sampler: Any) -> type | None:
    """Return which of torch's samplers, or ours, says the order; None for others, and subclasses with their own.

    Also None for a SubsetRandomSampler of names, which have no position by number.
    """
    for known in _TRANSLATIONS:
        twin = is_torchs_own(sampler) and qualname_of(type(sampler)).endswith(known.__name__)
        if is_a(sampler, known) or twin:
            own = ask(type(sampler), "__iter__") is getattr(known, "__iter__", None) or is_torchs_own(sampler)
            return known if own and (known is not SubsetRandomSampler or _counts(sampler.indices)) else None
    return None


def _counts(indices: Any) -> bool:
    return has(type(next(iter(indices), 0)), "__index__")


def length_by(sampler: Any) -> int | None:
    """Return how many samples one of PyTorch's samplers, or ours, was made for; None for any other sampler."""
    kind = kind_of(sampler)
    if kind is ResumableSampler:
        return int(sampler.given.length)
    if kind is WeightedRandomSampler:
        return len(sampler.weights)
    if kind is SubsetRandomSampler:
        return max(map(int, sampler.indices), default=-1) + 1
    name = "dataset" if kind is DistributedSampler else "data_source"
    return None if kind is None else length_or_none(ask(sampler, name))


def is_torchs_own(thing: Any) -> bool:
    """Return whether a loader or sampler is torchdata's stateful twin of torch's: the same meaning and options."""
    return module_of(type(thing)).startswith("torchdata.stateful_dataloader.")


def is_plain_batch_sampler(batches: Any) -> bool:
    """Return whether a batch sampler just cuts what its sampler gives into batches."""
    return type(batches) is BatchSampler or (is_a(batches, BatchSampler) and is_torchs_own(batches))


def _sequential(sampler: Any, length: int, seed: int) -> Order:  # noqa: ARG001  # one signature for all
    return Order(Sequential(length))


def _random(sampler: Any, length: int, seed: int) -> Order:
    if sampler.replacement:
        return Order(Uniform(length, seed=seed, num_samples=sampler.num_samples))
    return Order(Shuffle(length, seed=seed, num_samples=sampler.num_samples))


def _distributed(sampler: Any, length: int, seed: int) -> Order:
    return distributed(sampler, Shuffle(length, seed=seed) if sampler.shuffle else Sequential(length))


def distributed(sampler: Any, order: Sampler) -> Order:
    """Return an order with the ranks and the tail of a `DistributedSampler`."""
    tails = Tails("drop_ranks", "drop", "drop") if sampler.drop_last else Tails("pad_ranks", "drop", "pad")
    return Order(order, World(sampler.rank, sampler.num_replicas), tails)


def _subset(sampler: Any, length: int, seed: int) -> Order:  # noqa: ARG001  # one signature for all
    return Order(Subset(list(sampler.indices), Shuffle(len(sampler.indices), seed=seed)))


def _weighted(sampler: Any, length: int, seed: int) -> Order | None:  # noqa: ARG001  # one signature for all
    if not sampler.replacement:
        return None
    return Order(Weighted(sampler.weights.numpy(), seed=seed, num_samples=sampler.num_samples))


def _ours(sampler: Any, length: int, seed: int) -> Order:  # noqa: ARG001  # one signature for all
    tails = Tails("drop", "drop", "drop") if sampler.drop_last else Tails("pad", "drop", "pad")
    given = None if sampler.detected else World(sampler.rank, sampler.num_replicas)
    return Order(sampler.given, given, tails)


_TRANSLATIONS: dict[type, Callable[[Any, int, int], Order | None]] = {
    ResumableSampler: _ours,
    SequentialSampler: _sequential,
    RandomSampler: _random,
    DistributedSampler: _distributed,
    SubsetRandomSampler: _subset,
    WeightedRandomSampler: _weighted,
}
