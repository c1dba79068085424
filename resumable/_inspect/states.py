"""The states of Loaders in a checkpoint: their paths and their contents."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

from resumable._content import dotted
from resumable._inspect.pickles import MOST_PACKED, unpack
from resumable._inspect.values import Tensor, walk
from resumable._order.plan import History, Schedule, Tail
from resumable._state import State, is_state, parse
from resumable.errors import ConfigurationError, ResumableError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FoundState", "LoaderState", "describe_state", "describe_states", "find_states", "history_of"]


def find_states(tree: Any, packed: int = 0) -> list[FoundState]:
    """Return the states of Loaders in a tree, in order; a state inside another state is part of that state.

    States that were packed into bytes or text are found as well.

    Args:
        tree: of a checkpoint.
        packed: depth of packed files.
    """
    found: list[FoundState] = []
    for path, node in walk(tree):
        if any(path[: len(one.path)] == one.path for one in found):
            continue
        if is_state(node) and not isinstance(node.get("cursor"), Tensor):
            found.append(FoundState(path, node))
        elif packed < MOST_PACKED and (inside := unpack(node)) is not None:
            found += [FoundState((*path, *one.path), one.values) for one in find_states(inside, packed + 1)]
    return found


@dataclass(frozen=True)
class FoundState:
    """A state in a checkpoint, with its path."""

    path: tuple[Any, ...]
    values: dict[Any, Any]

    @property
    def where(self) -> str:
        """The path, keys joined with dots."""
        return dotted(self.path)

    def parse(self) -> State:
        """Parse the state.

        Raises:
            StateFormatError: it is damaged, or a newer version wrote it.
        """
        return parse(self.values)


def describe_states(found: list[FoundState]) -> tuple[LoaderState, ...]:
    """Describe each state; identical states are listed once."""
    alike: list[list[FoundState]] = []
    for one in found:
        group = next((group for group in alike if group[0].values == one.values), None)
        if group is None:
            alike.append([one])
        else:
            group.append(one)
    return tuple(replace(describe_state(first), also=tuple(one.where for one in others)) for first, *others in alike)


def describe_state(found: FoundState) -> LoaderState:
    """Describe a state; if it cannot be read, say why."""
    try:
        state = found.parse()
    except ResumableError as error:
        return LoaderState(found.where, found.values["format"], problem=str(error).partition("\n")[0])
    facts, cursor = state.fingerprint, state.mark.cursor
    sampler = {key.removeprefix("sampler."): value for key, value in facts.items() if key.startswith("sampler.")}
    shuffle, order = _ORDERS.get(str(sampler["name"]), ("seed" in sampler, f"of the sampler {sampler['name']}"))
    total = _total(state)
    return LoaderState(
        found.where,
        found.values["format"],
        kind=facts["backend.kind"],
        source=str(facts.get("backend.source", "")),
        epoch=cursor.epoch,
        step=cursor.step,
        position=cursor.position,
        steps_in_epoch=total,
        percent=None if not total else round(100 * cursor.step / total, 2),
        global_step=state.mark.global_step,
        samples_seen=state.mark.samples_seen,
        seed=facts["randomness.seed"],
        name=facts.get("name", ""),
        world_size=state.world_size,
        rank=facts.get("rank"),
        global_batch=state.global_batch,
        batch_size=state.batch_size,
        tail=facts["tail"],
        shuffle=shuffle,
        order=f"{order}, of a subset" if "subset" in sampler else order,
        sampler=sampler,
        length=facts.get("backend.length"),
        fingerprint=state.data,
        problem=_doubt(state),
    )


@dataclass(frozen=True)
class LoaderState:
    """A state of a Loader in a checkpoint.

    Args:
        where: its path in the checkpoint, keys joined with dots; empty if the checkpoint is the state.
        format: format of the state.
        kind: type of the source.
        source: name of the data.
        epoch: number of the epoch, from 0.
        step: completed global batches of this epoch.
        position: completed samples of this epoch, over all ranks.
        steps_in_epoch: global batches of the whole epoch; None if the length is unknown.
        percent: how much of the epoch is done; None if the length is unknown.
        global_step: global batches over all epochs.
        samples_seen: samples over all epochs and ranks.
        seed: of order and randomness.
        name: name of the stream.
        world_size: number of ranks when the state was saved.
        rank: the rank that saved it, if each rank has a separate state.
        global_batch: samples per step over all ranks.
        batch_size: samples per rank and step that the script asked for.
        tail: what happens with the last samples of an epoch.
        shuffle: whether the order is random; None if the source defines it.
        order: in words.
        sampler: the sampler's spec.
        length: number of samples in the data; None if unknown.
        fingerprint: digests of some stored samples; None if they are unknown.
        problem: why a loader would reject it; empty if it is intact.
        also: other paths in the checkpoint with an identical state, such as the states of other ranks.
    """

    where: str
    format: int
    kind: str = ""
    source: str = ""
    epoch: int = 0
    step: int = 0
    position: int = 0
    steps_in_epoch: int | None = None
    percent: float | None = None
    global_step: int = 0
    samples_seen: int = 0
    seed: int = 0
    name: str = ""
    world_size: int = 1
    rank: int | None = None
    global_batch: int = 1
    batch_size: int = 1
    tail: str = ""
    shuffle: bool | None = None
    order: str = ""
    sampler: Mapping[str, Any] | None = None
    length: int | None = None
    fingerprint: Any = None
    problem: str = ""
    also: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


_ORDERS = {
    "sequential-v1": (False, "sequential"),
    "feistel8-v1": (True, "shuffled"),
    "uniform-v1": (True, "random with replacement"),
    "weighted-v1": (True, "weighted random"),
    "blocks-v1": (True, "shuffled in blocks"),
    "mixture-v1": (True, "a mixture of sources"),
    "paged-v1": (True, "shuffled page by page"),
    "torch-distributed-v1": (True, "of PyTorch's DistributedSampler"),
    "torch-generator-v1": (True, "of PyTorch's sampler"),
    "source-order-v1": (None, "of the source"),
}


def _doubt(state: State) -> str:
    """Report a state that was edited, if its digest can be computed without the source."""
    return (
        ""
        if state.intact or state.mark.source is not None
        else "its digest does not match: it was edited by hand, or combined from the states of several ranks"
    )


def _total(state: State) -> int | None:
    try:
        return history_of(state).total(state.mark.cursor.epoch)
    except (ResumableError, KeyError, TypeError, ValueError):
        return None


def history_of(state: State) -> History:
    """Return how the epochs of a state's run were and are divided into batches.

    Raises:
        KeyError: the length of its source is unknown.
        ConfigurationError: it has no batch, or an unknown tail.
    """
    length, tail = state.fingerprint["sampler.length"], state.fingerprint["tail"]
    if type(length) is not int or length < 1 or tail not in get_args(Tail):
        raise ConfigurationError(f"the state contains length={length!r} and tail={tail!r}, which define no epoch.")
    by_ranks = tail in {"pad_ranks", "drop_ranks"}

    def plan(global_batch: int, ranks: int) -> Schedule:
        return Schedule(length, global_batch, tail, ranks if by_ranks else 1)

    return state.journal.history(state.mark.cursor, plan, (state.global_batch, state.world_size))
