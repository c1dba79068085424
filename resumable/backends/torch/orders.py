"""The orders of PyTorch's samplers: translated to our samplers, or reproduced exactly (`order="torch"`)."""

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

from resumable._introspection import ask, has, is_a, length_or_none, module_of, qualname_of, survive
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


FARTHEST = 1 << 20  # epochs to replay


LARGEST = 10**8  # positions per epoch
_AT_ONCE = 4096  # indices per chunk; the size does not affect the order
_LEAVE_OUT = 'Remove order="torch" to use resumable\'s own order.'
_ITERATORS = (
    "PyTorch's order depends on the random numbers that the DataLoader itself takes from the generator. Use the same "
    "generator, num_workers and persistent_workers as the original run."
)
HINTS = {
    "sampler.torch_seed": "Seed the DataLoader's sampler or generator as in the original run.",
    "sampler.torch": "This PyTorch version generates different numbers from the same seed. Use the original version.",
    "sampler.drawn": "The generator had a different state when the DataLoader was wrapped. Seed it just before wrap().",
    "sampler.workers_seed": _ITERATORS,
    "sampler.drawn_twice": _ITERATORS,
}


def find_order(sampler: Any, length: int, seed: int) -> Order | None:
    """Return the order of a PyTorch sampler; None for any other sampler, and for subclasses with their own order.

    Args:
        sampler: of a `DataLoader`.
        length: number of samples of the dataset.
        seed: the loader's seed; the seeds of the PyTorch sampler and the global RNGs are ignored.
    """
    kind = kind_of(sampler)
    return None if kind is None else _TRANSLATIONS[kind](sampler, length, seed)


def kind_of(sampler: Any) -> type | None:
    """Return which of PyTorch's samplers, or ours, determines the order; None for others and for custom subclasses.

    Also None for a SubsetRandomSampler of names, as those are not positions, and for a sampler that has other numbers
    than its base class computes.
    """
    for known in _TRANSLATIONS:
        twin = is_torchs_own(sampler) and qualname_of(type(sampler)).endswith(known.__name__)
        if is_a(sampler, known) or twin:
            own = ask(type(sampler), "__iter__") is getattr(known, "__iter__", None) or is_torchs_own(sampler)
            own = own and _has_its_numbers(sampler, known)
            return known if own and (known is not SubsetRandomSampler or _are_numbers(sampler.indices)) else None
    return None


def _has_its_numbers(sampler: Any, known: type) -> bool:
    """Return whether a sampler has the length and numbers that its class computes: PyTorch's `__iter__` reads them."""
    if known is DistributedSampler:
        length, ranks = length_or_none(ask(sampler, "dataset")), ask(sampler, "num_replicas")
        if length is None or type(ranks) is not int or ranks < 1:
            return True  # rejected elsewhere
        each = length // ranks if ask(sampler, "drop_last") else -(-length // ranks)
        numbers = {"num_samples": each, "total_size": each * ranks}
        return all(ask(sampler, name) == number for name, number in numbers.items()) and length_or_none(sampler) == each
    if type(sampler) is known or known not in _SIZED:
        return True
    return length_or_none(sampler) == survive(None, lambda: _SIZED[known](sampler), None)


def _are_numbers(indices: Any) -> bool:
    return has(type(next(iter(indices), 0)), "__index__")


def length_by(sampler: Any) -> int | None:
    """Return how many samples a PyTorch sampler, or ours, was made for; None for any other sampler."""
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
    """Return whether a loader or sampler is torchdata's stateful version of PyTorch's, with the same options."""
    return module_of(type(thing)).startswith("torchdata.stateful_dataloader.")


def is_plain_batch_sampler(batches: Any) -> bool:
    """Return whether a batch sampler only groups the indices of its sampler into batches."""
    return type(batches) is BatchSampler or (is_a(batches, BatchSampler) and is_torchs_own(batches))


class Order(NamedTuple):
    """The meaning of a PyTorch sampler: an order, and, if it divides that among ranks, the rank and the tail."""

    sampler: Sampler
    world: World | None = None
    tails: Tails | None = None


class Tails(NamedTuple):
    """How a sampler that divides an epoch among ranks ends it, if the `DataLoader` keeps its last batch or drops it.

    `older` is the tail that earlier versions used; their states continue with it.
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


_SIZED: dict[type, Callable[[Any], int]] = {
    SequentialSampler: lambda sampler: len(sampler.data_source),
    RandomSampler: lambda sampler: int(sampler.num_samples),
    SubsetRandomSampler: lambda sampler: len(sampler.indices),
    WeightedRandomSampler: lambda sampler: int(sampler.num_samples),
}
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
# A `DistributedSampler` seeds each epoch separately. The other samplers keep using one generator: the order of an epoch
# depends on all epochs before it, and on the numbers that the `DataLoader` takes from the same generator. So PyTorch's
# own code replays them, as if each epoch had been read to its end.


def torchs_order(loader: DataLoader[Any], sampler: Any, known: Order | None, options: Options) -> Order:
    """Return PyTorch's own order.

    Args:
        loader: the user's.
        sampler: yields single indices; None for custom batches.
        known: the sampler's order, translated to a sampler of this package.
        options: the seed, and a sampler that was passed instead.

    Raises:
        UnsupportedError: the order is custom, or ours, or cannot be derived from a seed, or is too large for memory.
        ConfigurationError: a different seed or a sampler was passed.
    """
    kind = kind_of(sampler)
    if options.sampler is not None:
        raise ConfigurationError(
            f'sampler={options.sampler!r} and order="torch" were both passed, but only one can determine the order.\n'
            "Remove one of them."
        )
    if kind is None or kind is ResumableSampler:
        own = loader.batch_sampler if sampler is None else sampler
        raise UnsupportedError(
            f'order="torch" was passed, but {type(own).__qualname__} determines the order of this DataLoader.\n'
            'PyTorch has no order to reproduce here. Remove order="torch": the order is kept anyway.'
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
            f'order="torch" was passed, but the {type(sampler).__qualname__} of this DataLoader has no generator. '
            "PyTorch then seeds each epoch from the global RNG, which the training loop also uses.\n"
            "No seed reproduces that order. Pass generator=torch.Generator().manual_seed(0) to the DataLoader (or to "
            'the sampler, if it has one), or remove order="torch".'
        )
    seed = generator.initial_seed()
    _check_seed(seed, options, "the generator")
    _check_size(len(sampler))
    drawn = not torch.equal(generator.get_state(), torch.Generator().manual_seed(seed).get_state())
    return Chained(loader, sampler, seed, drawn=drawn)


def _check_seed(own: int, options: Options, whose: str) -> None:
    """Compare the seed that was passed to `wrap` with the seed that PyTorch shuffles with.

    Raises:
        ConfigurationError: they differ.
    """
    if options.origin.seed == GIVEN and options.seed != own:
        raise ConfigurationError(
            f'order="torch" and seed={options.seed} were passed, but {whose} of the DataLoader has the seed {own}.\n'
            f"Only one of them can determine the order. Remove seed, or use the seed {options.seed} for {whose}."
        )


def _check_size(length: int) -> None:
    if length > LARGEST:
        raise UnsupportedError(
            f'order="torch" supports up to {LARGEST} samples per epoch, but this epoch has {length}.\n'
            f"Each training process keeps two permutations in memory, here {16 * length / 1e9:.3g} GB, and a resume "
            f"replays all earlier epochs. {_LEAVE_OUT}"
        )


class Seeded:
    """The order of a `DistributedSampler` before it is divided among ranks: the permutation for (seed + epoch).

    Args:
        length: number of samples; 8 bytes are kept for each, in each of two epochs.
        seed: the seed of the sampler.
    """

    def __init__(self, length: int, seed: int) -> None:
        self.length, self._seed = length, seed
        self._of = lru_cache(maxsize=2)(self._draw)

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        """Return the sample indices of the positions `start..stop-1`; shape `(stop - start,)`."""
        check_range(start, stop, self.length)
        return self._of(epoch)[start:stop]

    def spec(self) -> dict[str, int | str]:
        """Return name, length and seed, and a digest of the numbers that this PyTorch version generates from it."""
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
    """The order of a PyTorch sampler that keeps using one generator, from the generator's current state on.

    Args:
        loader: has the sampler. Its generator does not advance.
        sampler: yields single indices; 8 bytes are kept for each in each of two epochs, and 5 kB per epoch.
        seed: the seed of the generator.
        drawn: whether the generator was used after it was seeded.
    """

    def __init__(self, loader: DataLoader[Any], sampler: Any, seed: int, *, drawn: bool) -> None:
        self.length, self._seed = len(sampler), seed
        self._sampler, self._facts = _without_data(sampler)
        self._batches: Any = copy.copy(loader.batch_sampler)
        self._workers, self._lives_on = loader.num_workers > 0, loader.num_workers > 0 and loader.persistent_workers
        self._seeds_workers = loader.generator is sampler.generator
        self._states: list[torch.Tensor] = [sampler.generator.get_state()]  # at the start of each epoch
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
        """Return name, length, what the sampler depends on, and a digest of the numbers of this PyTorch version.

        `workers_seed` says when the `DataLoader` takes the seed of its workers from the same generator. `drawn_twice`
        says when an order is generated and discarded, as torchdata's loader with workers does.
        """
        return {
            "name": "torch-generator-v1",
            "length": self.length,
            "torch_seed": self._seed,
            **self._facts,
            "torch": probe(self._states[0]),
        }

    def begins_with(self, epoch: int) -> torch.Tensor:
        """Return the generator's state at the start of an epoch."""
        with self._lock:
            self._replay_up_to(epoch)
            return self._states[epoch]

    def drawn_from(self, epoch: int) -> torch.Tensor:
        """Return the generator's state when `iter` is called on the sampler to get the order of an epoch."""
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
            deque(drawn, maxlen=0)  # some samplers use the generator once more at the end
            return order

    def _replay_up_to(self, epoch: int) -> None:
        """Replay the epochs up to this one, except those already replayed."""
        first = len(self._states)
        if epoch - first > FARTHEST:
            raise UnsupportedError(
                f"epoch {epoch} was requested, but PyTorch's order can only get there by replaying every epoch before "
                'it.\nThat would take forever. If the number is correct, remove order="torch".'
            )
        for past in tqdm(range(first, epoch + 1), desc="replaying the order", unit="epoch", delay=1.0, leave=False):
            deque(self._pass(past - 1), maxlen=0)

    def _pass(self, epoch: int) -> Iterator[int]:
        """Yield the indices of an epoch to its end, then keep the generator's state."""
        generator = _generator(self._states[epoch])
        yield from self._begin(epoch, generator)
        if epoch + 1 == len(self._states):
            self._states.append(generator.get_state())

    def _begin(self, epoch: int, generator: torch.Generator) -> Iterator[int]:
        """Start an epoch as the iterator of a `DataLoader` does: a new one, or one with persistent workers."""
        sampler = self._drawing_from(generator)
        indices = iter(sampler)
        if epoch == 0 or not self._lives_on:
            if self._seeds_workers:
                torch.empty((), dtype=torch.int64).random_(generator=generator)
            if self._workers:
                indices = iter(sampler)
        return indices if self._batches is None else chain.from_iterable(indices)

    def _draws_at_once(self) -> bool:
        """Return whether the sampler uses the generator in `iter`, before an index is requested."""
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
    """Return a digest of the numbers that this PyTorch version generates from a generator's state.

    If they differ from the numbers in the original run, so does the order, and nothing else would show that.
    """
    drawn = torch.randperm(64, generator=_generator(state)), torch.randint(1 << 20, (64,), generator=_generator(state))
    return digest(torch.cat(drawn).numpy())


def _generator(state: torch.Tensor) -> torch.Generator:
    generator = torch.Generator()
    generator.set_state(state)
    return generator


def _without_data(sampler: Any) -> tuple[Any, dict[str, int | str]]:
    """Return a copy of a sampler without its dataset, safe from changes outside, and what it depends on."""
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
