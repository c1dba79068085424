"""`resumable.samples`: the samples of any batch, from a state alone."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from resumable._fetch.order import Interleaved, Order
from resumable._inspect.orders import IN_TURN, sampler_of
from resumable._inspect.reading import open_checkpoint
from resumable._inspect.states import FoundState, find_states, schedule_of
from resumable._inspect.whereabouts import in_words, places_of
from resumable._order.world import World
from resumable.errors import ConfigurationError, StateFormatError, UnsupportedError

if TYPE_CHECKING:
    from typing import Literal

    from resumable._state import State

__all__ = ["Samples", "samples"]


@dataclass(frozen=True)
class Samples:
    """The samples of a batch.

    Args:
        path: of the checkpoint.
        where: place of the state in it.
        epoch: of the batch.
        step: of the batch in its epoch.
        rank: whose part of it; None for all of it.
        world_size: number of ranks that share it.
        global_batch: samples per step over all ranks, with which the steps are counted.
        indices: of the samples, in their order.
        notes: what else is to be said, a sentence each.
        places: what the source says of each sample, as its `locate` does: shard and key of `Tars`, `Row` of `Parquet`,
            `Span` of `Tokens`, several `Piece` of `Packed`, and of a mixture the name with what that source says; empty
            where no source was given.
    """

    path: str
    where: str
    epoch: int
    step: int
    rank: int | None
    world_size: int
    global_batch: int
    indices: tuple[int, ...]
    notes: tuple[str, ...] = ()
    places: tuple[Any, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """The places as texts, one for each sample."""
        return tuple(map(in_words, self.places))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, as `resumable samples --json` prints them."""
        return asdict(self)


def samples(  # noqa: PLR0913  # which batch, and which of several orders
    path: str | os.PathLike[str],
    *,
    epoch: int,
    step: int,
    rank: int | None = None,
    loader: str | None = None,
    order: Literal["feistel", "torch"] | None = None,
    source: Any = None,
) -> Samples:
    """Compute which samples are in a batch, past or future, from a checkpoint alone: what `sample_indices` returns.

    Args:
        path: of a checkpoint, as `resumable.inspect` takes it.
        epoch: from 0.
        step: number of the batch in the epoch, from 0, counted with the global batch that is in force in the state.
        rank: whose part of the batch, of the ranks that the state was taken with; None for the whole global batch.
        loader: which state, by the name of the stream or its place, where the checkpoint has several.
        order: what was given to `wrap`; needed for a rank of a `DataLoader` that does not shuffle.
        source: that of the run, such as `Parquet`, `Packed` or a mixture, whose `locate` says what each sample is, as
            `places` then has it.

    Raises:
        ConfigurationError: there is no such batch, rank or state.
        UnsupportedError: the state does not say the order; the message names what is missing.
        CheckpointError: the checkpoint cannot be read.
        StateFormatError: it has no state of a Loader, or a damaged one.
        StateMismatchError: the state is of another source.
    """
    if epoch < 0:
        raise ConfigurationError(f"there is no epoch {epoch}: epochs count from 0.")
    with open_checkpoint(path) as content:
        found = _choose(find_states(content.tree), loader, os.fspath(path))
        state = found.parse()
    sampler = sampler_of(state)
    plan = schedule_of(state)
    cursor = plan.at(epoch, step)
    if plan.finished(cursor):
        raise ConfigurationError(f"epoch {epoch} has {step} batches, so there is no step {step}: steps count from 0.")
    world = World() if rank is None else World(rank, state.world_size)
    strided = _is_strided(state, order, world)
    of = (
        Interleaved(sampler, plan, 0, keyed=False, ranks=world.size)
        if strided
        else Order(sampler, plan, 0, keyed=False)
    )
    indices = tuple(of.next_indices(cursor, world))
    return Samples(
        os.fspath(path),
        found.where,
        epoch,
        step,
        rank,
        state.world_size,
        state.global_batch,
        indices,
        _notes(state),
        () if source is None else places_of(source, indices, state),
    )


def _names_of(found: FoundState) -> set[str]:
    """Return what a state may be asked for by; quotes in its place get lost in a shell."""
    return {found.where, found.where.replace('"', ""), str(found.values.get("name"))}


def _choose(found: list[FoundState], loader: str | None, path: str) -> FoundState:
    """Return the state that was asked for; without a word, the one that is there, or the first of several alike."""
    if not found:
        raise StateFormatError(
            f"{path} holds no state of a Loader.\nNothing says the order. Save loader.state_dict() with the weights."
        )
    asked = [one for one in found if loader is None or loader in _names_of(one)]
    if asked and all(_order_of(one) == _order_of(asked[0]) for one in asked):
        return asked[0]
    listed = "".join(f"\n  {one.where or 'the file itself'}  (name {one.values.get('name', '')!r})" for one in found)
    wanted = "which of them is meant" if loader is None else f"and loader={loader!r} is not one of them"
    raise ConfigurationError(
        f"{path} holds {len(found)} state{'s' * (len(found) != 1)} of Loaders, {wanted}:{listed}\n"
        "Give its name or its place: --loader, or samples(..., loader=...)."
    )


def _order_of(found: FoundState) -> list[Any]:
    """Return what two states have in common that say the same order, such as those of the ranks of a run."""
    return [found.values.get(name) for name in ("sampler", "tail", "global_batch", "world_size", "backend", "name")]


def _is_strided(state: State, order: str | None, world: World) -> bool:
    """Return whether the ranks take the samples of a batch in turn, as with `order="torch"`."""
    if state.fingerprint["sampler.name"] in IN_TURN:
        return True
    sequential = (
        state.fingerprint["sampler.name"] == "sequential-v1" and state.fingerprint["backend.kind"] == "torch-map"
    )
    if order is None and sequential and world.size > 1:
        raise UnsupportedError(
            "the state is of a DataLoader that does not shuffle, and does not say how its batches are shared by the "
            'ranks: wrap(..., order="torch") deals them out in turn.\n'
            "The samples of a rank could be others. Give order= as wrap got it (--order feistel or --order torch; the "
            "default of wrap is feistel), or leave out the rank for the whole batch."
        )
    return sequential and order == "torch"


def _notes(state: State) -> tuple[str, ...]:
    resizes = state.journal.resizes
    if not resizes:
        return ()
    changes = ", ".join(f"{one.was} to {one.now} at position {one.position} of epoch {one.epoch}" for one in resizes)
    note = f"The global batch was changed during the run: {changes}."
    counted = f"Steps are counted as if it had been {state.global_batch} all along, as Loader.sample_indices does."
    return (f"{note} {counted}",)
