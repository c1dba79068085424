"""The orders of torch's samplers: said as samplers of ours, or kept sample for sample (`order="torch"`)."""

from __future__ import annotations

import copy
from collections import deque
from functools import lru_cache
from itertools import chain
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from tqdm import tqdm

from resumable._introspection import ask, has, is_a, length_or_none, module_of, qualname_of
from resumable._order.world import World
from resumable._randomness.keyed import digest
from resumable._ranks.seeds import GIVEN
from resumable.backends.torch.sampler import ResumableSampler
from resumable.errors import ConfigurationError, UnsupportedError
from resumable.samplers import Sequential, Shuffle, Subset, Uniform, Weighted
from resumable.samplers.base import check_range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.utils.data import DataLoader

    from resumable._options import Options
    from resumable._order.plan import Tail
    from resumable._randomness.keyed import IntArray
    from resumable.samplers import Sampler


__all__ = [
    "FARTHEST",
    "HINTS",
    "LARGEST",
    "Chained",
    "Order",
    "Seeded",
    "distributed",
    "find_order",
    "is_plain_batch_sampler",
    "is_torchs_own",
    "kind_of",
    "length_by",
    "probe",
    "torchs_order",
]


FARTHEST = 1 << 20  # epochs to draw again


LARGEST = 10**8  # positions of an epoch
_AT_ONCE = 4096  # indices; how many of them are drawn at a time changes nothing
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
            return known if own and (known is not SubsetRandomSampler or _are_numbers(sampler.indices)) else None
    return None


def _are_numbers(indices: Any) -> bool:
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


# ------------------------------------------------------------------ order="torch"
#
# A `DistributedSampler` begins each epoch from a seed of its own. The others draw on from one generator: an epoch's
# order follows from all epochs before it, and from what the `DataLoader` draws of the same generator. So they are
# replayed, by torch's own code, as if each epoch had been read to its end.


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
        return distributed(sampler, _order_of_distributed(sampler, options))
    return Order(_chained(loader, sampler, options))


def _order_of_distributed(sampler: Any, options: Options) -> Sequential | Seeded:
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


class Seeded:
    """The order of a `DistributedSampler`, before it is dealt out: the permutation of (seed + epoch).

    Args:
        length: number of samples; 8 bytes are kept for each in each of two epochs.
        seed: the sampler's.
    """

    def __init__(self, length: int, seed: int) -> None:
        self.length, self._seed = length, seed
        self._of = lru_cache(maxsize=2)(self._draw)

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        """Return the sample indices of the positions `start..stop-1`; shape `(stop - start,)`."""
        check_range(start, stop, self.length)
        return self._of(epoch)[start:stop]

    def spec(self) -> dict[str, int | str]:
        """Name, length and seed, and a digest of what this version of torch draws by that seed."""
        drawn = probe(self._generator(0).get_state())
        return {"name": "torch-distributed-v1", "length": self.length, "torch_seed": self._seed, "torch": drawn}

    def _draw(self, epoch: int) -> IntArray:
        permutation: IntArray = torch.randperm(self.length, generator=self._generator(epoch)).numpy()
        return permutation

    def _generator(self, epoch: int) -> torch.Generator:
        return torch.Generator().manual_seed(self._seed + epoch)

    def __repr__(self) -> str:
        return f"Seeded({self.length}, seed={self._seed})"


class Chained:
    """The order of a sampler of torch that draws on from its generator, from the generator's state of now on.

    Args:
        loader: what has the sampler. Nothing is drawn from its generator.
        sampler: the sampler of single indices; 8 bytes are kept for each in each of two epochs, and 5 kB per epoch.
        seed: the generator's.
        drawn: something was drawn from it since it was seeded.
    """

    def __init__(self, loader: DataLoader[Any], sampler: Any, seed: int, *, drawn: bool) -> None:
        self.length, self._seed = len(sampler), seed
        self._sampler, self._facts = _without_data(sampler)
        self._batches: Any = copy.copy(loader.batch_sampler)
        self._workers, self._lives_on = loader.num_workers > 0, loader.num_workers > 0 and loader.persistent_workers
        self._seeds_workers = loader.generator is sampler.generator
        self._states: list[torch.Tensor] = [sampler.generator.get_state()]  # at each epoch's beginning
        if drawn:
            self._facts["drawn"] = digest(self._states[0].numpy())
        iterators = "once" if self._lives_on else "in each epoch"
        self._facts["workers_seed"] = iterators if self._seeds_workers else "never"
        if self._workers and self._draws_at_once():
            self._facts["drawn_twice"] = iterators
        self._of, self._lock = lru_cache(maxsize=2)(self._draw), Lock()

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        """Return the sample indices of the positions `start..stop-1`; shape `(stop - start,)`."""
        check_range(start, stop, self.length)
        return self._of(epoch)[start:stop]

    def spec(self) -> dict[str, int | str]:
        """Name, length, what the sampler was told, and a digest of what this version of torch draws first.

        `workers_seed` says when the `DataLoader` draws the seed of its workers from the same generator, `drawn_twice`
        when an order is drawn that is thrown away, as torchdata's loader with workers does it.
        """
        return {
            "name": "torch-generator-v1",
            "length": self.length,
            "torch_seed": self._seed,
            **self._facts,
            "torch": probe(self._states[0]),
        }

    def begins_with(self, epoch: int) -> torch.Tensor:
        """Return the generator's state at the beginning of an epoch."""
        with self._lock:
            self._replay_up_to(epoch)
            return self._states[epoch]

    def drawn_from(self, epoch: int) -> torch.Tensor:
        """Return the generator's state when the sampler is iterated over whose order an epoch gets."""
        generator = _generator(self.begins_with(epoch))
        if self._workers and (epoch == 0 or not self._lives_on):
            iter(self._drawing_from(generator))
            if self._seeds_workers:
                torch.empty((), dtype=torch.int64).random_(generator=generator)
        return generator.get_state()

    def _draw(self, epoch: int) -> IntArray:
        with self._lock:
            self._replay_up_to(epoch)
            drawn = self._pass(epoch)
            order = np.fromiter(drawn, np.int64, self.length)
            deque(drawn, maxlen=0)  # some samplers draw once more at the end
            return order

    def _replay_up_to(self, epoch: int) -> None:
        """Play the epochs up to this one, as far as they were not."""
        first = len(self._states)
        if epoch - first > FARTHEST:
            raise UnsupportedError(
                f"epoch {epoch} was asked for, and torch's order gets there by drawing all epochs before it.\n"
                'That would take forever. If the number is right, leave out order="torch".'
            )
        for past in tqdm(range(first, epoch + 1), desc="replaying torch's order", unit="epoch", delay=1.0, leave=False):
            deque(self._pass(past - 1), maxlen=0)

    def _pass(self, epoch: int) -> Iterator[int]:
        """Yield the indices of an epoch to its end; the generator's state there is kept."""
        generator = _generator(self._states[epoch])
        yield from self._begin(epoch, generator)
        if epoch + 1 == len(self._states):
            self._states.append(generator.get_state())

    def _begin(self, epoch: int, generator: torch.Generator) -> Iterator[int]:
        """Begin an epoch as the iterator of a `DataLoader` does it: a new one, or one whose workers live on."""
        sampler = self._drawing_from(generator)
        indices = iter(sampler)
        if epoch == 0 or not self._lives_on:
            if self._seeds_workers:
                torch.empty((), dtype=torch.int64).random_(generator=generator)
            if self._workers:
                indices = iter(sampler)
        return indices if self._batches is None else chain.from_iterable(indices)

    def _draws_at_once(self) -> bool:
        """Return whether the sampler draws when it is iterated over, and not only when an index is asked for."""
        generator = _generator(self._states[0])
        iter(self._drawing_from(generator))
        return not torch.equal(generator.get_state(), self._states[0])

    def _drawing_from(self, generator: torch.Generator) -> Any:
        sampler = copy.copy(self._sampler)
        sampler.generator = generator
        if self._batches is None:
            return sampler
        batches = copy.copy(self._batches)
        batches.sampler, batches.batch_size, batches.drop_last = sampler, _AT_ONCE, False
        return batches

    def __repr__(self) -> str:
        return f"Chained({type(self._sampler).__qualname__} of {self.length}, seed={self._seed})"


def probe(state: torch.Tensor) -> str:
    """Return a digest of what this version of torch draws from a generator's state.

    Other numbers than in the run before would be another order, which nothing else would tell.
    """
    drawn = torch.randperm(64, generator=_generator(state)), torch.randint(1 << 20, (64,), generator=_generator(state))
    return digest(torch.cat(drawn).numpy())


def _generator(state: torch.Tensor) -> torch.Generator:
    generator = torch.Generator()
    generator.set_state(state)
    return generator


def _without_data(sampler: Any) -> tuple[Any, dict[str, int | str]]:
    """Return a copy of a sampler that holds no dataset and cannot be changed from outside, and what it depends on."""
    kind = type(sampler)
    lean = copy.copy(sampler)
    depends: dict[str, int | str] = {"sampler": f"{kind.__module__}.{kind.__qualname__}"}
    if hasattr(sampler, "data_source"):
        lean.data_source = range(len(sampler.data_source))
        depends["samples"] = len(lean.data_source)
    if hasattr(sampler, "indices"):
        lean.indices = list(sampler.indices)
        depends["subset"] = digest(np.asarray(lean.indices))
    if hasattr(sampler, "weights"):
        lean.weights = sampler.weights.clone()
        depends["weights"] = digest(lean.weights.numpy())
    if hasattr(sampler, "replacement"):
        depends["replacement"] = int(sampler.replacement)
    return lean, depends
