"""Continue a job that runs with PyTorch alone, torchdata or Lightning, and prove that the next batches are the same."""

from __future__ import annotations

import copy
import operator
from collections import deque
from dataclasses import dataclass
from itertools import chain, count, islice
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, SequentialSampler
from tqdm import tqdm

from resumable._fetch import IndexedFetcher
from resumable._randomness.keys import isolated
from resumable._state import damaged
from resumable.backends.torch.orders import Chained, Seeded, is_torchs_own, kind_of
from resumable.errors import ConfigurationError, ResumableError, StateFormatError, StateMismatchError, UnsupportedError
from resumable.loader.loader import Loader

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from resumable.samplers import Sampler

__all__ = ["Adoption", "adopt"]

_SEARCHED = 1000  # epochs


def adopt(
    loader: Loader[Any],
    state: Mapping[str, Any] | None = None,
    *,
    epoch: int | None = None,
    step: int | None = None,
    batches: int = 3,
) -> Adoption:
    """Continue a job that ran without this package, and show that its next batches are the same.

    Create the loader as the job did, and wrap it with `order="torch"`. The framework's own loader computes the next
    batches over the sample indices, and they are compared; no data is read. If the job cannot be continued exactly,
    this raises, and the loader does not move.

    Args:
        loader: from `wrap`.
        state: the state of torchdata's `StatefulDataLoader`, or a checkpoint of Lightning's Trainer.
        epoch: the epoch, from 0; needed without a state, or if the state does not contain it.
        step: how many batches of the epoch were trained on, if there is no state.
        batches: how many batches to compare.

    Returns:
        The position and the compared batches; print it.

    Raises:
        StateFormatError: the state is of an unknown kind, or damaged.
        StateMismatchError: the seed differs, or the next batches would differ.
        UnsupportedError: the order does not follow from a seed, or the state lacks something that is needed.
        ConfigurationError: epoch and step are missing, or contradict the state.
    """
    source, order, rank = _known(loader)
    if type(batches) is not int or batches < 1:
        raise ConfigurationError(
            f"batches must be an integer of 1 or more, but it is {batches!r}.\n"
            "No batches would be compared. Pass for instance batches=3."
        )
    place = position_of(state, epoch=epoch, step=step)
    if place.state is not None and not is_torchs_own(source):
        raise UnsupportedError(
            f"the state was saved by torchdata's StatefulDataLoader, but a {type(source).__qualname__} was wrapped, "
            "which shuffles differently.\nLater epochs would be in a different order. Wrap the StatefulDataLoader."
        )
    at = _locate(place, source, order, loader)
    steps = _following(loader, at, batches)
    ours = tuple(tuple(loader.sample_indices(epoch=one, step=number, rank=rank)) for one, number in steps)
    theirs = tuple(tuple(_as_list(batch)) for batch in next_batches(source, order, place, at, batches))
    count = len(theirs)  # from a state, torchdata's loader continues only to the end of the epoch
    adoption = Adoption(place.by, *at, type(source).__qualname__, steps[:count], theirs, ours[:count])
    differs = adoption.first_difference
    if differs is not None:
        raise StateMismatchError(
            f"the next batches would differ from the job's:\n{adoption.show(differs)}\n"
            "Nothing was adopted. Create the DataLoader as the job did: data, batch size, sampler, seed and workers."
        )
    _go_to(loader, at, place.total)
    return adoption


def _known(loader: Any) -> tuple[DataLoader[Any], Sampler, int]:
    """Return the wrapped loader, its order, and the rank.

    Raises:
        ConfigurationError: it is not a Loader.
        UnsupportedError: its order is not PyTorch's.
    """
    if not isinstance(loader, Loader):
        raise ConfigurationError(
            f"adopt() needs a Loader, but it got a {type(loader).__qualname__}.\n"
            'Pass resumable.wrap(..., order="torch").'
        )
    source, fetcher = loader._wrapped, loader._fetcher  # noqa: SLF001  # a Loader shows neither
    if isinstance(source, DataLoader) and source.batch_sampler is not None and source.batch_size is None:
        raise UnsupportedError(
            "the DataLoader has a batch_sampler, so its next batches cannot be compared with the job's.\n"
            "Nothing was adopted. If it is a plain BatchSampler, pass batch_size, sampler and drop_last instead."
        )
    order = fetcher.sampler if isinstance(fetcher, IndexedFetcher) else None
    in_order = isinstance(source, DataLoader) and kind_of(source.sampler) is SequentialSampler
    strided = isinstance(fetcher, IndexedFetcher) and fetcher.interleaved
    if order is None or not strided or not (isinstance(order, (Seeded, Chained)) or in_order):
        raise UnsupportedError(
            f"the order of {loader!r} is not PyTorch's own.\n"
            "Training would continue with different samples than the job. Wrap its map-style DataLoader with "
            'order="torch", which raises an error if it does not support the sampler.'
        )
    return source, order, fetcher.world().rank


def _locate(place: ForeignPosition, source: DataLoader[Any], order: Sampler, loader: Loader[Any]) -> tuple[int, int]:
    """Return the epoch, and how many of its batches are done."""
    epoch = place.epoch
    if isinstance(order, Chained):
        if place.state is not None and bool(place.workers) != bool(source.num_workers):
            raise StateMismatchError(
                f"the job had {place.workers} worker processes, but this loader has {source.num_workers}.\n"
                "With workers, torchdata uses the sampler's generator more often, so later epochs would be in a "
                "different order. Nothing was adopted. Create the loader with as many workers as the job."
            )
        if place.generator is not None:
            epoch = _epoch_of(order, place.generator, place)
        if not place.reads_to_the_end:
            _check_ends(place, source, order, loader)
    if epoch is None:
        raise ConfigurationError(
            f"the state of {place.by} does not contain the epoch: its sampler has no generator.\n"
            "Each epoch has different samples. Pass adopt(loader, state, epoch=...)."
        )
    total = loader.total_steps(epoch)
    if place.step > total:
        raise StateMismatchError(
            f"the job has trained on {place.step} batches of epoch {epoch}, but an epoch of this loader has {total}.\n"
            "The data, batch size or number of ranks differ. Create the DataLoader as the job did."
        )
    return epoch, total if place.ended else place.step


def _epoch_of(order: Chained, generator: torch.Tensor, place: ForeignPosition) -> int:
    """Find the epoch that starts with this state of the generator.

    Lightning also saves at the start of an epoch. The loader's state then still belongs to the previous epoch.
    """
    theirs, ours = torch.Generator(), torch.Generator()
    theirs.set_state(generator)
    ours.set_state(order.begins_with(0))
    if theirs.initial_seed() != ours.initial_seed():
        raise StateMismatchError(
            "the seed of the sampler's generator differs from the job's. The samples would be in a different order.\n"
            f"  in the checkpoint: {theirs.initial_seed()}\n  in this run:       {ours.initial_seed()}\n"
            f"Use torch.Generator().manual_seed({theirs.initial_seed()}). Pass it where the job did: to the DataLoader "
            "or only to torchdata's RandomSampler (torchdata.stateful_dataloader.sampler)."
        )
    known = place.epoch
    begins = known and not place.reads_to_the_end and not place.step
    epochs = range(_SEARCHED) if known is None else range(known - bool(begins), known + 1)
    for epoch in tqdm(epochs, desc="searching for the epoch", unit="epoch", delay=1.0, leave=False):
        if torch.equal(order.drawn_from(epoch), generator):
            return int(epoch if known is None else known)
    where = f"the first {_SEARCHED} epochs" if known is None else f"epoch {known}"
    raise StateMismatchError(
        f"the state of the job's sampler generator does not occur in {where} from its seed.\n"
        "The job left epochs early, was restarted, or also uses the generator elsewhere, so its later epochs do "
        "not follow from the seed. If the job passed the generator only to the sampler, or only to the DataLoader, "
        "do the same. Otherwise continue with the old program."
    )


def _check_ends(place: ForeignPosition, source: DataLoader[Any], order: Chained, loader: Loader[Any]) -> None:
    """Raise if the order depends on how epochs end, and the program ends them differently from a `for` loop."""
    epoch, batches = place.epoch or 0, loader.total_steps(0)
    if place.total is not None and place.total != epoch * batches + place.step:
        raise StateMismatchError(
            f"the job has trained on {place.total} batches at step {place.step} of epoch {epoch}, but epochs of "
            f"{batches} batches would make that {epoch * batches + place.step}.\n"
            "The job left epochs early, so its generator was used differently. It cannot be adopted exactly."
        )
    if draws_after_the_last_batch(source, order):
        raise UnsupportedError(
            f"{place.by} does not ask for another batch after the last one of an epoch, but a `for` loop does, and "
            "this sampler then uses the generator once more.\nSo the order after the first epoch differs from a `for` "
            "loop. It cannot be adopted exactly. (It could with workers, or with a DistributedSampler.)"
        )


def _following(loader: Loader[Any], at: tuple[int, int], count: int) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    epoch, step = at
    while len(found) < count:
        if step >= loader.total_steps(epoch):
            epoch, step = epoch + 1, 0
        found.append((epoch, step))
        step += 1
    return tuple(found)


def _go_to(loader: Loader[Any], at: tuple[int, int], total: int | None) -> None:
    """Go to the position, and set the counters to what the job has trained on."""
    epoch, step = at
    counted = epoch * loader.total_steps(epoch) + step
    loader.seek(epoch=epoch, step=loader.total_steps(epoch))
    whole = loader.cursor.position
    loader.seek(epoch=epoch, step=step)
    state = loader.state_dict()
    steps = counted if total is None else total
    samples = epoch * whole + loader.cursor.position if steps == counted else steps * loader.global_batch_size
    loader.load_state_dict({**state, "global_step": steps, "samples_seen": samples, "digest": None})


def _as_list(batch: Any) -> list[int]:
    return batch if isinstance(batch, list) else [int(batch)]


@dataclass(frozen=True, slots=True)
class ForeignPosition:
    """The position that a checkpoint contains.

    Args:
        by: the origin of the position, for messages.
        step: batches of the epoch that were trained on.
        epoch: None if unknown.
        ended: the end of the epoch was reached.
        total: batches over all epochs, if they are counted.
        generator: the state of the sampler's generator at the start of the epoch.
        state: torchdata's state, from which its own loader continues.
        workers: number of worker processes in the state.
        reads_to_the_end: the program asks for more after the last batch of an epoch, as a `for` loop does.
    """

    by: str
    step: int
    epoch: int | None = None
    ended: bool = False
    total: int | None = None
    generator: torch.Tensor | None = None
    state: Mapping[str, Any] | None = None
    workers: int = 0
    reads_to_the_end: bool = True


def position_of(state: Any, *, epoch: int | None, step: int | None) -> ForeignPosition:
    """Read a checkpoint.

    Args:
        state: the state of torchdata's `StatefulDataLoader`, a checkpoint of Lightning's Trainer, or None.
        epoch: if the checkpoint does not contain it.
        step: the same.

    Raises:
        StateFormatError: it is neither, or damaged.
        ConfigurationError: epoch and step are missing, or passed in addition to a checkpoint.
        UnsupportedError: it contains state that cannot be continued from.
    """
    epoch, step = _count("epoch", epoch), _count("step", step)
    if state is None:
        if epoch is None:
            raise ConfigurationError(
                "adopt() got neither a checkpoint nor an epoch.\n"
                "The position of the job is unknown. Pass epoch= and step= (how many of its batches are trained on)."
            )
        return ForeignPosition("epoch and step", step or 0, epoch)
    if step is not None:
        raise ConfigurationError(
            f"adopt() got a checkpoint and step={step}, but the checkpoint already contains the step.\n"
            "They could contradict each other. Pass only one of them."
        )
    readers = {"loops": _lightning, "_snapshot": _torchdata, "_num_yielded": _torchdata}
    read = next((one for name, one in readers.items() if hasattr(state, "get") and name in state), None)
    if read is None:
        raise StateFormatError(
            f"adopt() does not know this kind of checkpoint: {_told(state)}.\n"
            "Nothing was adopted. Pass the state of a StatefulDataLoader, a checkpoint of Lightning's Trainer, or "
            "epoch and step. Load the state of a Loader with its load_state_dict()."
        )
    try:
        return read(state, epoch)
    except ResumableError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise damaged(state, error) from error


def _torchdata(state: Mapping[str, Any], epoch: int | None) -> ForeignPosition:
    """Read the state of a `StatefulDataLoader`, with or without workers."""
    workers, main, step = 0, state, state.get("_num_yielded")
    datasets = [state.get("dataset_state")]
    if "_snapshot" in state:
        snapshot = state["_snapshot"]
        main, step = snapshot["_main_snapshot"], snapshot["_snapshot_step"] + state["_steps_since_snapshot"]
        workers, datasets = (
            main["_num_workers"],
            [one["dataset_state"] for one in snapshot["_worker_snapshots"].values()],
        )
        fetchers = [one["fetcher_state"] for one in snapshot["_worker_snapshots"].values()]
    else:
        fetchers = [state["fetcher_state"]]
    if any(one is not None for one in (*datasets, *fetchers)):
        raise UnsupportedError(
            "the state of the StatefulDataLoader contains a state of its dataset (an IterableDataset, or a dataset "
            "with state_dict()).\nadopt() cannot restore that. Continue with the StatefulDataLoader."
        )
    order = main["_sampler_iter_state"] or {}
    generator = (order.get("sampler_iter_state") or order).get("generator")
    return ForeignPosition(
        "torchdata's StatefulDataLoader",
        operator.index(step),  # type: ignore[arg-type]  # raises if it is None
        epoch,
        ended=bool(state["_iterator_finished"]),
        generator=generator,
        state=state,
        workers=workers,
    )


def _lightning(checkpoint: Mapping[str, Any], epoch: int | None) -> ForeignPosition:
    """Read the counters of a Trainer's fit loop; the weights include the batches that were processed."""
    loop = checkpoint["loops"]["fit_loop"]
    epochs, batches = loop["epoch_progress"]["current"], loop["epoch_loop.batch_progress"]
    done, step, total = (int(one["processed"]) for one in (epochs, batches["current"], batches["total"]))
    ended = epochs["started"] == done  # no epoch was started since
    if epochs["started"] < epochs["ready"] or batches["is_last_batch"] or not step:
        done, step = (done if ended else done + bool(batches["is_last_batch"])), 0
    elif ended:
        done -= 1
    if epoch not in {None, done}:
        raise ConfigurationError(
            f"the checkpoint of Lightning's Trainer is in epoch {done}, but epoch={epoch} was passed.\n"
            "They contradict each other. Leave out epoch."
        )
    loaders = loop["state_dict"].get("combined_loader", [])
    known = [_torchdata(one, None).generator for one in loaders if {"_snapshot", "_num_yielded"} & set(one)]
    generator = known[0] if len(loaders) == len(known) == 1 else None
    return ForeignPosition("Lightning's Trainer", step, done, total=total, generator=generator, reads_to_the_end=False)


def _count(name: str, value: Any) -> int | None:
    if value is None:
        return None
    try:
        count = operator.index(value)
    except TypeError:
        count = -1
    if count < 0 or isinstance(value, bool):
        raise ConfigurationError(
            f"{name} must be an integer of 0 or more, but it is {value!r}.\n"
            "There is no such position. Epochs and steps count from 0."
        )
    return count


def _told(state: Any) -> str:
    return f"a {type(state).__qualname__} with {', '.join(map(str, state))}" if hasattr(state, "keys") else repr(state)


def next_batches(
    source: DataLoader[Any], order: Sampler, place: ForeignPosition, at: tuple[int, int], batches: int
) -> list[Any]:
    """Return the sample indices of the next batches, from an uninterrupted loader of the framework.

    If torchdata's state has batches left in its epoch, torchdata's own loader continues from it. After the end of an
    epoch it may start a different epoch than an uninterrupted loader.

    Args:
        source: the user's.
        order: the order of the Loader; only its first generator state is used.
        place: the position in the checkpoint.
        at: epoch, and how many of its batches are done.
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
    """Return whether the sampler uses its generator once more if a loop asks for more after the last batch."""
    if source.num_workers:
        return False  # with workers, prefetching asks for more in any case
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
    """Return a loader of the same class and sampler over the sample indices, from the start of the order."""
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
        range(len(source.dataset)),  # type: ignore[arg-type]  # each sample is its index
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


_SHOWN = 8  # samples of a batch
_RANDOM = (
    "Random augmentations are not the same as in the old program. From here on they follow the seed of wrap, and are "
    "exact after each resume."
)


@dataclass(frozen=True, slots=True)
class Adoption:
    """The position at which a job was adopted. Printed, it shows the next batches of the framework and of this package.

    Args:
        by: the origin of the position.
        epoch: the epoch of the next batch, or the one that has just ended.
        step: how many of its batches are done.
        framework: class of the loader that computed `theirs`.
        steps: epoch and step of each compared batch.
        theirs: the sample indices from that loader.
        ours: the same from the Loader.
    """

    by: str
    epoch: int
    step: int
    framework: str
    steps: tuple[tuple[int, int], ...]
    theirs: tuple[tuple[int, ...], ...]
    ours: tuple[tuple[int, ...], ...]

    @property
    def first_difference(self) -> int | None:
        """Number of the first batch that differs; None if all are the same."""
        pairs = enumerate(zip(self.theirs, self.ours, strict=True))
        return next((number for number, (theirs, ours) in pairs if theirs != ours), None)

    def show(self, number: int) -> str:
        """Return the lines of one batch."""
        epoch, step = self.steps[number]
        head = f"epoch {epoch}, step {step}"
        width = max(len(self.framework), len("here")) + 1
        rows = ((self.framework, self.theirs[number]), ("here", self.ours[number]))
        return "\n".join([head, *(f"  {who + ':':<{width}} {_samples(batch)}" for who, batch in rows)])

    def __str__(self) -> str:
        same = f"The next {len(self.ours)} batches are the same, sample for sample."
        shown = [self.show(number) for number in range(len(self.ours))]
        head = f"Adopted at epoch {self.epoch} after {self.step} batches, according to {self.by}."
        return "\n".join([head, *shown, same, _RANDOM])


def _samples(batch: tuple[int, ...]) -> str:
    more = f" ... ({len(batch)} samples)" if len(batch) > _SHOWN else ""
    return " ".join(map(str, batch[:_SHOWN])) + more
