"""What torch and torchdata themselves would give next: their own loaders, over the numbers of the samples."""

from __future__ import annotations

import copy
from collections import deque
from itertools import chain, count, islice
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, DistributedSampler
from tqdm import tqdm

from resumable._randomness.keys import isolated
from resumable.backends.torch.torch_order import Chained

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resumable._adopt.places import Place
    from resumable.samplers import Sampler

__all__ = ["draws_after_the_last_batch", "next_batches"]


def next_batches(source: DataLoader[Any], order: Sampler, place: Place, at: tuple[int, int], batches: int) -> list[Any]:
    """Return the sample indices of the next batches, by a loader of the framework that was not interrupted.

    From a state of torchdata its own loader goes on, where the state's epoch has batches left: after its end, that
    loader may begin another epoch than one that was not interrupted.

    Args:
        source: the user's.
        order: what it was wrapped with; only where a generator began is asked for.
        place: what the checkpoint says.
        at: epoch, and batches of it that are done.
        batches: how many to return.
    """
    with isolated():
        if place.state is not None and at[1] < len(source):
            real: Any = _rebuilt(source, order, place.workers)
            _tell(real, at[0])
            real.load_state_dict(place.state)
            return list(islice(real, batches))
        spec = order.spec()
        matters = "drawn_twice" in spec or spec.get("workers_seed") == "once"
        real = _rebuilt(source, order, source.num_workers if matters else 0)
        return list(islice(_uninterrupted(real, at, replayed=isinstance(order, Chained)), batches))


def draws_after_the_last_batch(source: DataLoader[Any], order: Chained) -> bool:
    """Return whether a sampler draws once more where a loop asks for more after the last batch."""
    if source.num_workers:
        return False  # what is read ahead asks for more in any case
    generator = torch.Generator()
    generator.set_state(order.begins_with(0))
    sampler: Any = copy.copy(source.sampler)
    sampler.generator = generator
    batches: Any = sampler
    if source.batch_sampler is not None:
        batches = copy.copy(source.batch_sampler)
        batches.sampler = sampler
    drawn = iter(batches)
    deque(islice(drawn, len(batches)), maxlen=0)
    before = generator.get_state()
    deque(drawn, maxlen=0)
    return not torch.equal(generator.get_state(), before)


def _rebuilt(source: DataLoader[Any], order: Sampler, workers: int) -> DataLoader[Any]:
    """Return a loader of the same class and sampler over the numbers of the samples, from the order's beginning."""
    sampler: Any = copy.copy(source.sampler)
    generator = None
    if isinstance(order, Chained):
        generator = torch.Generator()
        generator.set_state(order.begins_with(0))
        if source.generator is not sampler.generator:
            sampler.generator, generator = generator, None
        else:
            sampler.generator = generator
    processes = {
        "multiprocessing_context": source.multiprocessing_context,
        "persistent_workers": source.persistent_workers,
    }
    return type(source)(
        range(len(source.dataset)),  # type: ignore[arg-type]  # a dataset whose samples are their numbers
        batch_size=source.batch_size,
        sampler=sampler,
        drop_last=source.drop_last,
        collate_fn=_unchanged,
        num_workers=workers,
        generator=generator,
        **(processes if workers else {}),
    )


def _uninterrupted(loader: DataLoader[Any], at: tuple[int, int], *, replayed: bool) -> Iterator[Any]:
    epoch, step = at
    before = range(epoch) if replayed else range(0)
    for past in tqdm(before, desc="replaying torch's loader", unit="epoch", delay=1.0, leave=False):
        _tell(loader, past)
        deque(loader, maxlen=0)
    _tell(loader, epoch)
    yield from islice(loader, step, None)
    yield from chain.from_iterable(_epoch(loader, later) for later in count(epoch + 1))


def _epoch(loader: DataLoader[Any], epoch: int) -> Iterator[Any]:
    _tell(loader, epoch)
    yield from loader


def _tell(loader: DataLoader[Any], epoch: int) -> None:
    if isinstance(loader.sampler, DistributedSampler):
        loader.sampler.set_epoch(epoch)


def _unchanged(samples: Any) -> Any:
    return samples
