"""`resumable.samples`: the samples of any batch, from a state alone, and what their source says of them."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from resumable._data import Columns, DataFingerprint
from resumable._distribution import pip_install
from resumable._fetch.order import Interleaved, Order
from resumable._inspect.reading import open_checkpoint
from resumable._inspect.states import FoundState, find_states, schedule_of
from resumable._order.world import World
from resumable.errors import (
    ConfigurationError,
    MissingDependencyError,
    StateFormatError,
    StateMismatchError,
    UnsupportedError,
)
from resumable.samplers import Blocks, Sequential, Shuffle, Uniform
from resumable.samplers.blocks import parse_sizes
from resumable.samplers.mixture import mixture_of
from resumable.samplers.simple import Laps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Literal

    from resumable._state import State
    from resumable.samplers import Sampler

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


IN_TURN = {"torch-distributed-v1", "torch-generator-v1"}
_WAY_OUT = (
    "In a script that wraps the same data, loader.load_state_dict(state) and "
    "loader.sample_indices(epoch=..., step=...) say it without reading any data."
)


def sampler_of(state: State) -> Sampler:
    """Return the sampler of a state.

    Raises:
        UnsupportedError: the state has not all that the order depends on.
        StateMismatchError: this version of torch draws other numbers.
        StateFormatError: what it says makes no sampler.
    """
    spec = {
        key.removeprefix("sampler."): value for key, value in state.fingerprint.items() if key.startswith("sampler.")
    }
    name = str(spec["name"])
    if name == "source-order-v1":
        raise UnsupportedError(
            f"the source of this state, {state.fingerprint.get('backend.source', 'unknown')} "
            f"({state.fingerprint['backend.kind']}), gives its elements in an order of its own.\n"
            "No state says what they are, and neither does one of this source. Indices are known of sources that are "
            "read by index, without a sampler of your own."
        )
    make = _KNOWN.get(name)
    try:
        sampler = None if make is None or "subset" in spec else _by_epoch(make, spec)
    except ImportError as error:
        raise MissingDependencyError(
            f"the order of this state is that of torch, and torch is not installed.\nInstall it: {pip_install('torch')}"
        ) from error
    except (KeyError, TypeError, ValueError) as error:
        raise StateFormatError(
            f"the state is damaged: its sampler is {spec}.\nNo order follows from it. Use another checkpoint."
        ) from error
    if sampler is None:
        raise UnsupportedError(f"{_missing(spec)}\nThe samples cannot be computed from the state alone. {_WAY_OUT}")
    return _check(sampler, spec)


def _by_epoch(make: Callable[[Mapping[str, Any]], Sampler | None], spec: Mapping[str, Any]) -> Sampler | None:
    """Make a sampler, with the epoch in its indices where the state is of packed documents."""
    inner = make(spec)
    return inner if inner is None or "packing" not in spec else Laps(inner, spec["windows"], spec["packing"])


def _check(sampler: Sampler, spec: Mapping[str, Any]) -> Sampler:
    made = sampler.spec()
    if made == spec:
        return sampler
    if "torch" in spec and {**made, "torch": None} == {**spec, "torch": None}:
        raise StateMismatchError(
            "this version of torch draws other numbers by the seed of the state, so the samples would be others.\n"
            f"  in the checkpoint: {spec['torch']}\n  drawn here:        {made['torch']}\n"
            "Use the version of torch that the run was started with."
        )
    other = sorted(name for name in {*made, *spec} if made.get(name) != spec.get(name))
    raise UnsupportedError(
        f"the sampler {spec['name']} of this state depends on more than is known here: {', '.join(other)}.\n"
        f"The samples cannot be computed from the state alone. {_WAY_OUT}"
    )


def _missing(spec: Mapping[str, Any]) -> str:
    if "subset" in spec:
        return f"the state has a digest of the subset's indices ({spec['subset']}), and not the indices."
    if (lacks := _LACKS.get(str(spec["name"]))) is not None:
        what, field = lacks
        return f"the state has a digest of {what} ({spec.get(field)}), and not these."
    return f"the sampler of this state, {spec['name']}, is not one of this package."


_LACKS = {
    "weighted-v1": ("the weights", "weights"),
    "paged-v1": ("the pages of the samples", "pages"),
    "blocks-v1": ("the sizes of the shards", "sizes"),
    "mixture-v1": ("the sources, their weights or their shards", "sources"),
}


def _blocks(spec: Mapping[str, Any]) -> Sampler | None:
    """Make the shuffle in blocks again; None where the sizes of the shards are too many to be in a state."""
    sizes = parse_sizes(spec["sizes"]) if "sizes" in spec else spec["length"]
    if sizes is None:
        return None
    return Blocks(sizes, block=spec["block"], window=spec["window"], seed=spec["seed"])


def _distributed(spec: Mapping[str, Any]) -> Sampler:
    from resumable.backends.torch.orders import Seeded  # noqa: PLC0415  # torch comes with it

    return Seeded(spec["length"], spec["torch_seed"])


def _generator(spec: Mapping[str, Any]) -> Sampler:
    """Make the `DataLoader` again whose generator draws what the state says, over numbers."""
    import torch  # noqa: PLC0415  # only for states of torch's order
    from torch.utils.data import DataLoader, RandomSampler  # noqa: PLC0415  # the same

    from resumable.backends.torch.orders import Chained  # noqa: PLC0415  # the same

    generator = torch.Generator().manual_seed(spec["torch_seed"])
    numbers = range(spec["samples"])
    sampler = RandomSampler(
        numbers, replacement=bool(spec["replacement"]), num_samples=spec["length"], generator=generator
    )
    lives_on = spec["workers_seed"] == "once"
    loader: DataLoader[Any] = DataLoader(
        numbers,  # type: ignore[arg-type]  # nothing is read from it
        sampler=sampler,
        num_workers=int(lives_on),
        persistent_workers=lives_on,
        generator=None if spec["workers_seed"] == "never" else generator,
    )
    return Chained(loader, sampler, spec["torch_seed"], drawn=False)


_KNOWN: dict[str, Callable[[Mapping[str, Any]], Sampler | None]] = {
    "blocks-v1": _blocks,
    "mixture-v1": mixture_of,
    "sequential-v1": lambda spec: Sequential(spec["length"]),
    "feistel8-v1": lambda spec: Shuffle(
        spec.get("samples", spec["length"]), seed=spec["seed"], num_samples=spec["length"]
    ),
    "uniform-v1": lambda spec: Uniform(spec["samples"], seed=spec["seed"], num_samples=spec["length"]),
    "torch-distributed-v1": _distributed,
    "torch-generator-v1": _generator,
}


def places_of(source: Any, indices: Sequence[int], state: State) -> tuple[Any, ...]:
    """Return what a source says of samples, if it is that of a state; see `locate`.

    Raises:
        ConfigurationError: it says nothing of them.
        StateMismatchError: the state is of another one.
    """
    _check_locates(source)
    length = len(source)
    for name, now in getattr(source, "resumable_identity", {}).items():
        before = state.fingerprint.get(f"backend.{name}")
        if before not in {None, now}:
            raise StateMismatchError(_another(f"its {name} differ", before, now))
    DataFingerprint(Columns(source, length), length).check(state.data, strict=True)
    by_epoch = hasattr(type(source), "resumable_epochs")  # whose indices go on with each epoch
    if not by_epoch and indices and max(indices) >= length:
        raise StateMismatchError(
            _another("it has a sample that is not there", f"sample {max(indices)}", f"{length} samples")
        )
    return tuple(locate(source, indices))


def locate(source: Any, indices: Sequence[int]) -> list[Any]:
    """Return what a source says of samples: of a mixture, the name of the source with what that says of them.

    Raises:
        ConfigurationError: it says nothing of them.
    """
    _check_locates(source)
    found = list(source.locate(indices))
    if not hasattr(type(source), "resumable_parts"):
        return found
    inside = source.sources
    own = {name: [index for one, index in found if one == name] for name in {one for one, _ in found}}
    told = {name: iter(_inside(inside[name], some)) for name, some in own.items()}
    return [(name, next(told[name])) for name, _ in found]


def _check_locates(source: Any) -> None:
    if not hasattr(source, "locate"):
        raise ConfigurationError(
            "source must have a method locate(indices), as Tars, Parquet, Tokens, Packed and mixtures have, but it is "
            f"{source!r}.\nWhat a sample is could not be said. Leave it out to have the indices."
        )


def _inside(source: Any, indices: list[int]) -> list[Any]:
    return locate(source, indices) if hasattr(source, "locate") else list(indices)


def in_words(place: Any) -> str:
    """Return a place as a text."""
    if type(place) is tuple:  # a named one says by itself what it is
        if len(place) == 2 and isinstance(place[0], str):  # noqa: PLR2004  # a pair
            return f"{place[1]} in {place[0]}" if isinstance(place[1], str) else f"{place[0]}: {in_words(place[1])}"
        return "; ".join(map(in_words, place)) or "nothing"
    return f"sample {place}" if isinstance(place, int) else str(place)


def _another(why: str, before: object, now: object) -> str:
    return (
        f"the state is of another source: {why}.\n  in the checkpoint: {before}\n  in the source:     {now}\n"
        "Other samples would be named. Give the source that the run was started with."
    )
