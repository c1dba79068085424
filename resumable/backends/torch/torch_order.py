"""Torch's own order, sample for sample (`order="torch"`): what its samplers give, as a function of seed and epoch.

`DistributedSampler` begins each epoch from a seed of its own. The others draw on from one generator: an epoch's order
follows from all epochs before it, and from what the `DataLoader` draws of the same generator. So they are replayed, by
torch's own code, as if each epoch had been read to its end.
"""

from __future__ import annotations

import copy
from collections import deque
from functools import lru_cache
from itertools import chain
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tqdm import tqdm

from resumable._randomness.keyed import digest
from resumable.errors import UnsupportedError
from resumable.samplers.base import check_range

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.utils.data import DataLoader

    from resumable._randomness.keyed import IntArray

__all__ = ["Chained", "Seeded", "probe"]

_FARTHEST = 1 << 20  # epochs to draw again
_AT_ONCE = 4096  # indices; how many of them are drawn at a time changes nothing


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
        self._sampler, self._facts = _lean(sampler)
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
            self._reach(epoch)
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
            self._reach(epoch)
            drawn = self._pass(epoch)
            order = np.fromiter(drawn, np.int64, self.length)
            deque(drawn, maxlen=0)  # some samplers draw once more at the end
            return order

    def _reach(self, epoch: int) -> None:
        """Play the epochs up to this one, as far as they were not."""
        first = len(self._states)
        if epoch - first > _FARTHEST:
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


def _lean(sampler: Any) -> tuple[Any, dict[str, int | str]]:
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
