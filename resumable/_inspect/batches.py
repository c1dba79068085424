"""`resumable.samples`: the samples of any batch, computed from a state alone, and where the source stores them."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from resumable._data import Columns, DataFingerprint
from resumable._distribution import pip_install
from resumable._fetch.indexed import by_epoch
from resumable._fetch.order import Interleaved, Order
from resumable._inspect.reading import open_checkpoint
from resumable._inspect.states import FoundState, find_states, history_of
from resumable._introspection import ask
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
    """Compute which samples a past or future batch contains, from a checkpoint alone, like `Loader.sample_indices`.

    Args:
        path: path of a checkpoint, as for `resumable.inspect`.
        epoch: from 0.
        step: number of the batch in the epoch, from 0. A step before a change of the global batch has the samples that
            it had.
        rank: the rank whose part of the batch to return, with the number of ranks in the state; None for the global
            batch.
        loader: the name or the path of the state, if the checkpoint contains several.
        order: the `order` passed to `wrap`; needed for one rank of a `DataLoader` that does not shuffle.
        source: the run's source, such as `Parquet`, `Packed` or a mixture. Its `locate` describes each sample in
            `places`. It also has what a state of a large mixture contains only as a digest.

    Raises:
        ConfigurationError: there is no such batch, rank or state.
        UnsupportedError: the state does not determine the order; the message says what is missing.
        CheckpointError: the checkpoint cannot be read.
        StateFormatError: it contains no state of a Loader, or a damaged one.
        StateMismatchError: the state belongs to a different source.
    """
    if epoch < 0:
        raise ConfigurationError(f"epoch={epoch} does not exist: epochs count from 0.")
    with open_checkpoint(path) as content:
        found = _choose(find_states(content.tree), loader, os.fspath(path))
        state = found.parse()
    sampler = sampler_of(state, source)
    cursor, plan = history_of(state).locate(epoch, step)
    if plan.finished(cursor):
        raise ConfigurationError(f"epoch {epoch} has {step} batches, so step {step} does not exist: they count from 0.")
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
        plan.global_batch,
        indices,
        _notes(state),
        () if source is None else places_of(source, indices, state),
    )


@dataclass(frozen=True)
class Samples:
    """The samples of a batch.

    Args:
        path: of the checkpoint.
        where: path of the state in it.
        epoch: epoch of the batch.
        step: number of the batch in its epoch.
        rank: the rank whose part this is; None for the global batch.
        world_size: number of ranks that share the batch.
        global_batch: samples per step over all ranks, in this epoch and step.
        indices: sample indices, in order.
        notes: further remarks, one sentence each.
        places: the result of the source's `locate` for each sample: shard and key for `Tars`, `Row` for `Parquet`,
            `Span` for `Tokens`, several `Piece` for `Packed`, and for a mixture the name of the source with that
            source's result; empty if no source was passed.
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
        """The locations as text, one for each sample."""
        return tuple(map(in_words, self.places))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, as `resumable samples --json` prints them."""
        return asdict(self)


def in_words(place: Any) -> str:
    """Return a location as text."""
    if type(place) is tuple:  # named tuples have their own text
        if len(place) == 2 and isinstance(place[0], str):  # noqa: PLR2004  # a pair
            return f"{place[1]} in {place[0]}" if isinstance(place[1], str) else f"{place[0]}: {in_words(place[1])}"
        return "; ".join(map(in_words, place)) or "nothing"
    return f"sample {place}" if isinstance(place, int) else str(place)


def _names_of(found: FoundState) -> set[str]:
    """Return the names that identify a state; the path also without quotes, because a shell removes them."""
    return {found.where, found.where.replace('"', ""), str(found.values.get("name"))}


def _choose(found: list[FoundState], loader: str | None, path: str) -> FoundState:
    """Return the requested state; without a request the only state, or the first if all have the same order."""
    if not found:
        raise StateFormatError(
            f"{path} contains no state of a Loader, so the order is unknown.\n"
            "Save loader.state_dict() with the weights."
        )
    asked = [one for one in found if loader is None or loader in _names_of(one)]
    if asked and all(_order_of(one) == _order_of(asked[0]) for one in asked):
        return asked[0]
    listed = "".join(f"\n  {one.where or 'the file itself'}  (name {one.values.get('name', '')!r})" for one in found)
    wanted = "so select one" if loader is None else f"but none with loader={loader!r}"
    raise ConfigurationError(
        f"{path} contains {len(found)} state{'s' * (len(found) != 1)} of Loaders, {wanted}:{listed}\n"
        "Pass its name or its path: --loader, or samples(..., loader=...)."
    )


def _order_of(found: FoundState) -> list[Any]:
    """Return the fields that states with the same order share, such as the states of a run's ranks."""
    return [found.values.get(name) for name in ("sampler", "tail", "global_batch", "world_size", "backend", "name")]


STRIDED = {"torch-distributed-v1", "torch-generator-v1"}


def _is_strided(state: State, order: str | None, world: World) -> bool:
    """Return whether the ranks take every n-th sample of a batch, as with `order="torch"`."""
    if state.fingerprint["sampler.name"] in STRIDED:
        return True
    sequential = (
        state.fingerprint["sampler.name"] == "sequential-v1" and state.fingerprint["backend.kind"] == "torch-map"
    )
    if order is None and sequential and world.size > 1:
        raise UnsupportedError(
            "the state belongs to a DataLoader that does not shuffle, and does not contain how the ranks divide its "
            'batches: with wrap(..., order="torch"), they take every n-th sample.\n'
            "The samples of one rank are ambiguous. Pass the order that wrap got (--order feistel or --order torch; "
            "feistel is the default of wrap), or leave out the rank for the global batch."
        )
    return sequential and order == "torch"


def _notes(state: State) -> tuple[str, ...]:
    resizes, sought, notes = state.journal.resizes, state.journal.sought, []
    changes = [
        f"{one.was} to {one.now} at position {one.position} of epoch {one.epoch}"
        for one in resizes
        if one.was != one.now
    ]
    if changes:
        notes.append(
            f"The global batch changed during the run: {', '.join(changes)}. Earlier steps are the ones it had."
        )
    if sought is not None:
        notes.append(
            f"The run went to step {sought.step} of epoch {sought.epoch} with seek(). If it had read that step before, "
            "this is the later reading."
        )
    return tuple(notes)


def sampler_of(state: State, source: Any = None) -> Sampler:
    """Return the sampler of a state. A source, if passed, provides the values of which the state has only a digest.

    Raises:
        UnsupportedError: the state does not contain everything that the order depends on.
        StateMismatchError: this version of PyTorch generates different random numbers.
        StateFormatError: its values do not define a sampler.
    """
    spec = {
        key.removeprefix("sampler."): value for key, value in state.fingerprint.items() if key.startswith("sampler.")
    }
    name = str(spec["name"])
    if name == "source-order-v1":
        raise UnsupportedError(
            f"the source of this state, {state.fingerprint.get('backend.source', 'unknown')} "
            f"({state.fingerprint['backend.kind']}), defines its own order.\n"
            "The state does not contain that order, so the samples are unknown. Indices are available only for "
            "indexed sources without a custom sampler."
        )
    make = _KNOWN.get(name)
    try:
        sampler = None if make is None or "subset" in spec else _by_epoch(make, spec)
    except ImportError as error:
        raise MissingDependencyError(
            f"the order of this state is PyTorch's, but torch is not installed.\nInstall it: {pip_install('torch')}"
        ) from error
    except (KeyError, TypeError, ValueError) as error:
        raise StateFormatError(
            f"the state is damaged: its sampler is {spec}.\nIt does not define an order. Use another checkpoint."
        ) from error
    if sampler is None and "subset" not in spec:
        sampler = _from_source(source, spec)
    if sampler is None:
        raise UnsupportedError(f"{_missing(spec)}\nThe samples cannot be computed from the state alone. {_INSTEAD}")
    return _check(sampler, spec)


def _from_source(source: Any, spec: Mapping[str, Any]) -> Sampler | None:
    """Return the order of a mixture, or of a source in blocks; None if it does not determine this one.

    Raises:
        StateMismatchError: the state belongs to a different source.
    """
    if spec["name"] == "mixture-v1" and ask(type(source), "resumable_order") is not None:
        made: Sampler = by_epoch(source.resumable_order(spec["seed"]).bound_as(spec), source)
    elif spec["name"] == "blocks-v1" and hasattr(source, "sizes"):
        made = Blocks(source.sizes, block=spec["block"], window=spec["window"], seed=spec["seed"])
    else:
        return None
    found = made.spec()
    for name in sorted({*found, *spec}):
        if found.get(name) != spec.get(name):
            raise StateMismatchError(_another(f"its {name} differ", spec.get(name), found.get(name)))
    return made


def _by_epoch(make: Callable[[Mapping[str, Any]], Sampler | None], spec: Mapping[str, Any]) -> Sampler | None:
    """Create a sampler, with the epoch in its indices if the state is of packed documents."""
    inner = make(spec)
    return inner if inner is None or "packing" not in spec else Laps(inner, spec["windows"], spec["packing"])


def _check(sampler: Sampler, spec: Mapping[str, Any]) -> Sampler:
    made = sampler.spec()
    if made == spec:
        return sampler
    if "torch" in spec and {**made, "torch": None} == {**spec, "torch": None}:
        raise StateMismatchError(
            "this version of PyTorch generates different random numbers from the same seed, so the samples would "
            "differ.\n"
            f"  in the checkpoint: {spec['torch']}\n  computed here:     {made['torch']}\n"
            "Use the version of PyTorch that the run was started with."
        )
    other = sorted(name for name in {*made, *spec} if made.get(name) != spec.get(name))
    raise UnsupportedError(
        f"the sampler {spec['name']} of this state depends on fields that are unknown here: {', '.join(other)}.\n"
        f"The samples cannot be computed from the state alone. {_INSTEAD}"
    )


_INSTEAD = (
    "In a script that wraps the same data, use loader.load_state_dict(state) and "
    "loader.sample_indices(epoch=..., step=...), which read no data. For a mixture or blocks, the source is enough: "
    "--source, or samples(..., source=...)."
)
_LACKS = {
    "weighted-v1": ("the weights", "weights"),
    "paged-v1": ("the pages of the samples", "pages"),
    "blocks-v1": ("the sizes of the shards", "sizes"),
    "mixture-v1": ("the sources, their weights or their shards", "sources"),
}


def _missing(spec: Mapping[str, Any]) -> str:
    if "subset" in spec:
        return f"the state contains only a digest of the subset's indices ({spec['subset']}), not the indices."
    if (lacks := _LACKS.get(str(spec["name"]))) is not None:
        what, field = lacks
        return f"the state contains only a digest of {what} ({spec.get(field)}), not the values."
    return f"the sampler of this state, {spec['name']}, does not belong to this package."


def _blocks(spec: Mapping[str, Any]) -> Sampler | None:
    """Recreate the shuffle in blocks; None if the shards were too many for the state to contain their sizes."""
    sizes = parse_sizes(spec["sizes"]) if "sizes" in spec else spec["length"]
    if sizes is None:
        return None
    return Blocks(sizes, block=spec["block"], window=spec["window"], seed=spec["seed"])


def _distributed(spec: Mapping[str, Any]) -> Sampler:
    from resumable.backends.torch.orders import Seeded  # noqa: PLC0415  # imports torch

    return Seeded(spec["length"], spec["torch_seed"])


def _generator(spec: Mapping[str, Any]) -> Sampler:
    """Recreate the `DataLoader` whose generator is described in the state, over sample indices."""
    import torch  # noqa: PLC0415  # only for states with PyTorch's order
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
    """Return the location of each sample, if the source is the one of the state; see `locate`.

    Raises:
        ConfigurationError: it has no `locate`.
        StateMismatchError: the state belongs to a different source.
    """
    _check_locates(source)
    length = len(source)
    for name, now in getattr(source, "resumable_identity", {}).items():
        before = state.fingerprint.get(f"backend.{name}")
        if before not in {None, now}:
            raise StateMismatchError(_another(f"its {name} differ", before, now))
    DataFingerprint(Columns(source, length), length).check(state.data, strict=True)
    by_epoch = hasattr(type(source), "resumable_epochs")  # its indices continue from epoch to epoch
    if not by_epoch and indices and max(indices) >= length:
        raise StateMismatchError(_another("a sample does not exist", f"sample {max(indices)}", f"{length} samples"))
    return tuple(locate(source, indices))


def locate(source: Any, indices: Sequence[int]) -> list[Any]:
    """Return the location of each sample; for a mixture, the name of the source with the location in that source.

    Raises:
        ConfigurationError: the source has no `locate`.
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
            f"{source!r}.\nThe samples could not be described. Leave source out to get only the indices."
        )


def _inside(source: Any, indices: list[int]) -> list[Any]:
    return locate(source, indices) if hasattr(source, "locate") else list(indices)


def _another(why: str, before: object, now: object) -> str:
    return (
        f"the state belongs to a different source: {why}.\n  in the checkpoint: {before}\n  in the source:     {now}\n"
        "The locations would be wrong. Pass the source that the run was started with."
    )
