"""adopt(): a Loader goes to where another program stands, if its next batches are the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, SequentialSampler
from tqdm import tqdm

from resumable._adopt.frameworks import draws_after_the_last_batch, next_batches
from resumable._adopt.places import Place, place_of
from resumable._adopt.proof import Adoption
from resumable._fetch import IndexedFetcher
from resumable.backends.torch.order import is_torchs_own, kind_of
from resumable.backends.torch.torch_order import Chained, Seeded
from resumable.errors import ConfigurationError, StateMismatchError, UnsupportedError
from resumable.loader import Loader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from resumable.samplers import Sampler

__all__ = ["adopt"]

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
    place = place_of(state, epoch=epoch, step=step)
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


def _locate(place: Place, source: DataLoader[Any], order: Sampler, loader: Loader[Any]) -> tuple[int, int]:
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


def _epoch_of(order: Chained, generator: torch.Tensor, place: Place) -> int:
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


def _check_ends(place: Place, source: DataLoader[Any], order: Chained, loader: Loader[Any]) -> None:
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
