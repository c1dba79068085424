"""Adopting a job that runs under torch alone, torchdata or Lightning: its place is found, and shown to be the same."""

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
    """Go on where a job stands that was not run with this package, and show that its next batches are the same.

    The loader has to be made like that of the job, and wrapped with `order="torch"`. The next batches are computed by
    the framework's own loader over the numbers of the samples, and compared; no data is read. What cannot be adopted
    exactly is refused, and the loader stays where it is.

    Args:
        loader: from `wrap`.
        state: of torchdata's `StatefulDataLoader`, or a checkpoint of Lightning's Trainer.
        epoch: without a state, the epoch from 0; or the one that a state does not say.
        step: without a state, how many batches of the epoch were trained on.
        batches: how many batches to compare.

    Returns:
        The place, and the batches that were compared; print it.

    Raises:
        StateFormatError: the state is of another kind, or damaged.
        StateMismatchError: it is of another seed, or the next batches would be others.
        UnsupportedError: the order does not follow from a seed, or the state says less than is needed.
        ConfigurationError: epoch and step are missing, or contradict the state.
    """
    source, order, rank = _known(loader)
    if type(batches) is not int or batches < 1:
        raise ConfigurationError(f"batches must be an integer of 1 or more, but it is {batches!r}.\nNothing is shown.")
    place = position_of(state, epoch=epoch, step=step)
    if place.state is not None and not is_torchs_own(source):
        raise UnsupportedError(
            f"the state is one of torchdata's StatefulDataLoader, and a {type(source).__qualname__} was wrapped, which "
            "draws in another way.\nThe epochs to come would be in another order. Wrap the StatefulDataLoader itself."
        )
    at = _locate(place, source, order, loader)
    steps = _following(loader, at, batches)
    ours = tuple(tuple(loader.sample_indices(epoch=one, step=number, rank=rank)) for one, number in steps)
    theirs = tuple(tuple(_as_list(batch)) for batch in next_batches(source, order, place, at, batches))
    count = len(theirs)  # torchdata's loader goes on from a state up to the end of its epoch
    adoption = Adoption(place.by, *at, type(source).__qualname__, steps[:count], theirs, ours[:count])
    differs = adoption.first_difference
    if differs is not None:
        raise StateMismatchError(
            f"the next batches would be others than those of the job:\n{adoption.show(differs)}\n"
            "Nothing was adopted. Make the DataLoader as the job had it: data, batch size, sampler, seed and workers."
        )
    _go_to(loader, at, place.total)
    return adoption


def _known(loader: Any) -> tuple[DataLoader[Any], Sampler, int]:
    """Return what was wrapped, the order it got, and the rank.

    Raises:
        ConfigurationError: it is no Loader.
        UnsupportedError: its order is not torch's.
    """
    if not isinstance(loader, Loader):
        raise ConfigurationError(
            f"adopt() needs a Loader, but it was given a {type(loader).__qualname__}.\n"
            'Give resumable.wrap(..., order="torch").'
        )
    source, fetcher = loader._wrapped, loader._fetcher  # noqa: SLF001  # a Loader shows neither
    order = fetcher.sampler if isinstance(fetcher, IndexedFetcher) else None
    in_order = isinstance(source, DataLoader) and kind_of(source.sampler) is SequentialSampler
    strided = isinstance(fetcher, IndexedFetcher) and fetcher.interleaved
    if order is None or not strided or not (isinstance(order, (Seeded, Chained)) or in_order):
        raise UnsupportedError(
            f"the order of {loader!r} is not torch's own.\n"
            'A job of torch would go on with other samples. Wrap its map-style DataLoader with order="torch", which '
            "says what it needs where it cannot."
        )
    return source, order, fetcher.world().rank


def _locate(place: ForeignPosition, source: DataLoader[Any], order: Sampler, loader: Loader[Any]) -> tuple[int, int]:
    """Return the epoch, and the batches of it that are done."""
    epoch = place.epoch
    if isinstance(order, Chained):
        if place.generator is not None:
            epoch = _epoch_of(order, place.generator, place)
        if not place.reads_to_the_end:
            _check_ends(place, source, order, loader)
    if epoch is None:
        raise ConfigurationError(
            f"the state of {place.by} does not say which epoch it is of: its sampler has no generator.\n"
            "Other samples would follow in another epoch. Give adopt(loader, state, epoch=...)."
        )
    total = loader.total_steps(epoch)
    if place.step > total:
        raise StateMismatchError(
            f"the job has trained on {place.step} batches of epoch {epoch}, and an epoch of this loader has {total}.\n"
            "It is not the same data, batch size or number of ranks. Make the DataLoader as the job had it."
        )
    return epoch, total if place.ended else place.step


def _epoch_of(order: Chained, generator: torch.Tensor, place: ForeignPosition) -> int:
    """Find the epoch whose order is drawn from a generator in this state.

    Lightning saves at the beginning of an epoch, too, and then the loader's state is that of the epoch before.
    """
    theirs, ours = torch.Generator(), torch.Generator()
    theirs.set_state(generator)
    ours.set_state(order.begins_with(0))
    if theirs.initial_seed() != ours.initial_seed():
        raise StateMismatchError(
            "the generator of the job's sampler has another seed, so the samples would come in another order.\n"
            f"  in the checkpoint: {theirs.initial_seed()}\n  in this run:       {ours.initial_seed()}\n"
            f"Give torch.Generator().manual_seed({theirs.initial_seed()}): to the DataLoader if the job gave it one, "
            "else to torchdata's RandomSampler alone (torchdata.stateful_dataloader.sampler)."
        )
    known = place.epoch
    begins = known and not place.reads_to_the_end and not place.step
    epochs = range(_SEARCHED) if known is None else range(known - bool(begins), known + 1)
    for epoch in tqdm(epochs, desc="looking for the epoch", unit="epoch", delay=1.0, leave=False):
        if torch.equal(order.drawn_from(epoch), generator):
            return int(epoch if known is None else known)
    where = f"the first {_SEARCHED} epochs" if known is None else f"epoch {known}"
    raise StateMismatchError(
        f"the generator of the job's sampler is in a state that its seed does not lead to in {where}.\n"
        "So epochs were left early, or the job was restarted, or the generator is used elsewhere, too: its later "
        "epochs follow from no seed. If it was given to the sampler alone, or to the DataLoader, do the same. Else go "
        "on with the old program."
    )


def _check_ends(place: ForeignPosition, source: DataLoader[Any], order: Chained, loader: Loader[Any]) -> None:
    """Refuse an order that depends on how epochs end, where a program ends them otherwise than a loop does."""
    epoch, batches = place.epoch or 0, loader.total_steps(0)
    if place.total is not None and place.total != epoch * batches + place.step:
        raise StateMismatchError(
            f"the job has trained on {place.total} batches up to step {place.step} of epoch {epoch}, and with "
            f"{batches} batches in each epoch it would be {epoch * batches + place.step}.\n"
            "So epochs were left early, and the generator was drawn from otherwise. It cannot be adopted exactly."
        )
    if draws_after_the_last_batch(source, order):
        raise UnsupportedError(
            f"{place.by} does not ask for more after the last batch of an epoch, and this sampler would draw once more "
            "there.\nSo the epochs after the first are in another order than in a loop of torch. It cannot be adopted "
            "exactly. (With workers, or a DistributedSampler, it could.)"
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
    """Go there, with the counts of what the job has trained on."""
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
    """What a checkpoint says of a place.

    Args:
        by: who says it.
        step: batches of the epoch that were trained on.
        epoch: None where it is not said.
        ended: the epoch's end was reached.
        total: batches over all epochs, where they are counted.
        generator: the sampler's, as it was when the epoch's order was drawn.
        state: torchdata's own, to go on from by its own loader.
        workers: worker processes that the state is of.
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
        state: of torchdata's `StatefulDataLoader`, or a checkpoint of Lightning's Trainer; None where there is none.
        epoch: where the checkpoint does not say it.
        step: the same.

    Raises:
        StateFormatError: it is neither, or damaged.
        ConfigurationError: epoch and step are missing, or said twice.
        UnsupportedError: it has more than an order can go on from.
    """
    epoch, step = _count("epoch", epoch), _count("step", step)
    if state is None:
        if epoch is None:
            raise ConfigurationError(
                "adopt() was given neither a checkpoint nor an epoch.\n"
                "It could not know where the job stands. Give epoch= and step=: how many batches of it are trained on."
            )
        return ForeignPosition("epoch and step", step or 0, epoch)
    if step is not None:
        raise ConfigurationError(
            f"a checkpoint and step={step} were given, but the checkpoint says how many batches were trained on.\n"
            "Only one of them can be right. Leave out one of them."
        )
    readers = {"loops": _lightning, "_snapshot": _torchdata, "_num_yielded": _torchdata}
    read = next((one for name, one in readers.items() if hasattr(state, "get") and name in state), None)
    if read is None:
        raise StateFormatError(
            f"this is no checkpoint that adopt() knows: {_told(state)}.\n"
            "Nothing is adopted. Give the state of a StatefulDataLoader, a checkpoint of Lightning's Trainer, or epoch "
            "and step. The state of a Loader goes to its load_state_dict()."
        )
    try:
        return read(state, epoch)
    except ResumableError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise damaged(state, error) from error


def _torchdata(state: Mapping[str, Any], epoch: int | None) -> ForeignPosition:
    """Read the state of a `StatefulDataLoader`, with workers or without."""
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
            "the state of the StatefulDataLoader has a state of its dataset, which is an IterableDataset, or has "
            "state_dict().\nIt would be lost, and with it what follows. Go on with the StatefulDataLoader."
        )
    order = main["_sampler_iter_state"] or {}
    generator = (order.get("sampler_iter_state") or order).get("generator")
    return ForeignPosition(
        "torchdata's StatefulDataLoader",
        operator.index(step),  # type: ignore[arg-type]  # what is none raises
        epoch,
        ended=bool(state["_iterator_finished"]),
        generator=generator,
        state=state,
        workers=workers,
    )


def _lightning(checkpoint: Mapping[str, Any], epoch: int | None) -> ForeignPosition:
    """Read the counters of a Trainer's fit loop: the batches that were processed are in the weights."""
    loop = checkpoint["loops"]["fit_loop"]
    epochs, batches = loop["epoch_progress"]["current"], loop["epoch_loop.batch_progress"]
    done, step, total = (int(one["processed"]) for one in (epochs, batches["current"], batches["total"]))
    ended = epochs["started"] == done  # the epoch of the last batch, and none was begun since
    if epochs["started"] < epochs["ready"] or batches["is_last_batch"] or not step:
        done, step = (done if ended else done + bool(batches["is_last_batch"])), 0
    elif ended:
        done -= 1
    if epoch not in {None, done}:
        raise ConfigurationError(
            f"the checkpoint of Lightning's Trainer is of epoch {done}, but epoch={epoch} was given.\n"
            "Only one of them can be right. Leave out epoch."
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
            f"{name} must be an integer of 0 or more, but it is {value!r}.\nThere is no such place. Both count from 0."
        )
    return count


def _told(state: Any) -> str:
    return f"a {type(state).__qualname__} with {', '.join(map(str, state))}" if hasattr(state, "keys") else repr(state)


def next_batches(
    source: DataLoader[Any], order: Sampler, place: ForeignPosition, at: tuple[int, int], batches: int
) -> list[Any]:
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


_SHOWN = 8  # samples of a batch
_RANDOM = (
    "Not those of the old program: random augmentations. They go by wrap's seed from here on, and are exact after each "
    "resume of this one."
)


@dataclass(frozen=True, slots=True)
class Adoption:
    """Where a job was adopted. Printed, it shows the next batches by the framework's own loader and by this one.

    Args:
        by: who says the place.
        epoch: the epoch in which the next batch is, or whose end was reached.
        step: batches of it that are done.
        framework: class of the loader that gave `theirs`.
        steps: epoch and step of each batch that was compared.
        theirs: its sample indices, by that loader.
        ours: the same, by the Loader.
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
        """Number of the first batch that differs; None where all are the same."""
        pairs = enumerate(zip(self.theirs, self.ours, strict=True))
        return next((number for number, (theirs, ours) in pairs if theirs != ours), None)

    def show(self, number: int) -> str:
        """Return the lines of a batch."""
        epoch, step = self.steps[number]
        head = f"epoch {epoch}, step {step}"
        width = max(len(self.framework), len("here")) + 1
        rows = ((self.framework, self.theirs[number]), ("here", self.ours[number]))
        return "\n".join([head, *(f"  {who + ':':<{width}} {_samples(batch)}" for who, batch in rows)])

    def __str__(self) -> str:
        same = f"The next {len(self.ours)} batches are the same, sample for sample."
        shown = [self.show(number) for number in range(len(self.ours))]
        head = f"Adopted in epoch {self.epoch} after {self.step} batches, by {self.by}."
        return "\n".join([head, *shown, same, _RANDOM])


def _samples(batch: tuple[int, ...]) -> str:
    more = f" ... ({len(batch)} samples)" if len(batch) > _SHOWN else ""
    return " ".join(map(str, batch[:_SHOWN])) + more
