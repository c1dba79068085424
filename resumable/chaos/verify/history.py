"""What ended up in the weights: of each step, what the last attempt trained on that was not undone by a resume."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from resumable.chaos.moments import main_loader

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from resumable.chaos.recorder.attempts import Attempt
    from resumable.chaos.recorder.logs import Batch, Place

__all__ = [
    "Key",
    "Step",
    "effective_history",
    "evaluating",
    "first_elsewhere",
    "how_data_differ",
    "is_resized",
    "lengths_of",
    "main_of",
    "ordinal",
    "retrained",
    "steps_of",
    "without_a_place",
]

Key: TypeAlias = "tuple[int, Place]"


class Step(NamedTuple):
    """A step over all ranks, in the order of the ranks, which is that of the global batch."""

    indices: tuple[str, ...] | None
    digests: tuple[str, ...]


def steps_of(attempt: Attempt) -> dict[Key, Step]:
    """Return the steps that an attempt trained on, those of all ranks put together."""
    worlds = {log.world for log in attempt.ranks.values()}
    world = max(worlds, default=1)
    return {key: _merge(ranks) for key, ranks in attempt.trained().items() if len(ranks) == world}


def _merge(ranks: Mapping[int, Batch]) -> Step:
    batches = [batch for _, batch in sorted(ranks.items())]
    known = all(batch.indices is not None for batch in batches)
    indices = tuple(index for batch in batches for index in batch.indices or ()) if known else None
    return Step(indices, tuple(digest for batch in batches for digest in batch.digests))


def main_of(baseline: Attempt) -> int:
    """Return the loader that has most steps, the one that is trained on."""
    return main_loader(loader for loader, _ in steps_of(baseline))


def lengths_of(baseline: Attempt) -> dict[int, int]:
    """Return the number of steps in each epoch of the loader that is trained on."""
    lengths: dict[int, int] = {}
    main = main_of(baseline)
    for loader, place in steps_of(baseline):
        if loader == main:
            lengths[place.epoch] = max(lengths.get(place.epoch, 0), place.step)
    return lengths


def ordinal(place: Place, lengths: Mapping[int, int]) -> int:
    """Return the number of steps before a place, over all epochs."""
    return place.step + sum(length for epoch, length in lengths.items() if epoch < place.epoch)


def how_data_differ(found: Step, expected: Step, baseline: Mapping[Key, Step]) -> str:
    """Say whether a step has other samples, or those with another content; an empty text where it has neither.

    Indices may be equal, and the samples not: those of files that are listed in another order.
    """
    if found.digests == expected.digests:
        return ""
    known = {digest for step in baseline.values() for digest in step.digests}
    same = found.indices is not None and found.indices == expected.indices and not known.issuperset(found.digests)
    return "other content" if same else "other samples"


def begun(attempt: Attempt) -> dict[int, Place]:
    """Return where each loader stood when an attempt began; the least advanced rank counts."""
    places: dict[int, Place] = {}
    for log in attempt.ranks.values():
        for loader, place in log.begun.items():
            places[loader] = min(places.get(loader, place), place)
    return places


class Elsewhere(NamedTuple):
    """A loader that a start brought to a place which is in no checkpoint that it loaded.

    Args:
        start: its number.
        loader: which one.
        place: where it went on.
        expected: the places in the checkpoint that was loaded last.
    """

    start: int
    loader: int
    place: Place
    expected: set[Place]


def first_elsewhere(attempts: Sequence[Attempt]) -> Elsewhere | None:
    """Return the first loader that went on elsewhere than the weights; None where all went with them."""
    saved: dict[tuple[str, int | None], set[Place]] = {}
    for attempt in attempts:
        for log in attempt.ranks.values():
            for key, places in log.saved_places.items():
                saved.setdefault(key, set()).update(places)
        for log in attempt.ranks.values():
            known = [found for key in log.restored if (found := saved.get(key))]
            for loader, place in log.loaded.items():
                if known and not any(place in found for found in known):
                    return Elsewhere(attempt.number, loader, place, known[-1])
    return None


def effective_history(attempts: Sequence[Attempt]) -> dict[Key, Step]:
    """Return what is in the final weights."""
    history: dict[Key, Step] = {}
    for attempt in attempts:
        starts = begun(attempt)
        if starts:
            history = {key: step for key, step in history.items() if key[1] <= starts.get(key[0], key[1])}
        history |= steps_of(attempt)
    return history


def without_a_place(baseline: Attempt, attempts: Sequence[Attempt]) -> set[int]:
    """Return the loaders whose epochs are all alike and whose place no start loads, beside others that have one.

    A validation set is read so. How often it was read is not known by the numbers of its epochs, which begin again in
    each start; what it gives is compared all the same.
    """
    went = {loader for attempt in attempts for log in attempt.ranks.values() for loader in log.went}
    epochs: dict[int, dict[int, dict[int, Step]]] = {}
    for (loader, place), step in steps_of(baseline).items():
        epochs.setdefault(loader, {}).setdefault(place.epoch, {})[place.step] = step
    alike = {
        loader
        for loader, found in epochs.items()
        if len(found) > 1 and all(one == next(iter(found.values())) for one in found.values())
    }
    return alike - went - {main_of(baseline)} if went else set()


def is_resized(attempt: Attempt, baseline: Attempt) -> bool:
    """Return whether it had another number of ranks, which round the sums of their gradients in another order."""
    worlds = {log.world for log in attempt.ranks.values()}
    return bool(worlds) and worlds != {log.world for log in baseline.ranks.values()}


def evaluating(baseline: Attempt | None, attempts: Sequence[Attempt]) -> frozenset[int]:
    """Return the loaders that nothing is trained from: those that were wrapped so, and those that are read so."""
    told = {loader for attempt in attempts for log in attempt.ranks.values() for loader in log.evaluating}
    return frozenset(told if baseline is None else told | without_a_place(baseline, attempts))


def retrained(attempts: Sequence[Attempt], leaving_out: frozenset[int] = frozenset()) -> int:
    """Count the steps that were trained on more than once, without those of some loaders."""
    keys = [key for attempt in attempts for key in steps_of(attempt) if key[0] not in leaving_out]
    return len(keys) - len(set(keys))
