"""What ended up in the weights: of each step, what the last attempt trained on that was not undone by a resume."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from resumable.chaos.plan import main_loader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from resumable.chaos.recorder.ledger import Attempt, Batch, Save, StepRef


__all__ = [
    "Compared",
    "Key",
    "Step",
    "compared",
    "compared_files",
    "count_compared",
    "counters_of",
    "differences",
    "effective_history",
    "evaluating",
    "first_elsewhere",
    "first_of",
    "how_data_differ",
    "is_resized",
    "lengths_of",
    "main_of",
    "ordinal",
    "prefixes",
    "retrained",
    "saves_of",
    "steps_of",
    "without_a_place",
]


Key: TypeAlias = "tuple[int, StepRef]"


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


def ordinal(place: StepRef, lengths: Mapping[int, int]) -> int:
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


def begun(attempt: Attempt) -> dict[int, StepRef]:
    """Return where each loader stood when an attempt began; the least advanced rank counts."""
    places: dict[int, StepRef] = {}
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
    place: StepRef
    expected: set[StepRef]


def first_elsewhere(attempts: Sequence[Attempt]) -> Elsewhere | None:
    """Return the first loader that went on elsewhere than the weights; None where all went with them."""
    saved: dict[tuple[str, int | None], set[StepRef]] = {}
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


# What each checkpoint of a store, and each file that was saved, holds beside what it holds in the baseline run.


class Compared(NamedTuple):
    """One save of one rank, beside those of the same step of the baseline run.

    Args:
        start: its number.
        save: name of the store, and the step.
        found: text of each part, by its path.
        expected: the same in the baseline run, for each time that the step was saved there.
    """

    start: int
    save: Save
    found: dict[str, str]
    expected: list[dict[str, str]]

    @property
    def step(self) -> int:
        """The step of the checkpoint."""
        return self.save[1]

    @property
    def differing(self) -> list[str]:
        """Paths of the parts that are not as in the baseline run; what only one of the two has is one of them."""
        every = set().union(*self.expected)
        known = {path: {parts.get(path) for parts in self.expected} for path in every}
        return [path for path in sorted(every) if self.found.get(path) not in known[path]]

    @property
    def equal(self) -> list[str]:
        """Paths of the parts that are as in the baseline run."""
        return sorted(set().union(*self.expected).difference(self.differing))


def saves_of(attempt: Attempt) -> dict[Save, list[dict[str, str]]]:
    """Return the parts of each checkpoint, for each rank and each time that it was saved."""
    found: dict[Save, list[dict[str, str]]] = {}
    for log in attempt.ranks.values():
        for save, contents in log.parts.items():
            if save[0] not in log.drafts:
                found.setdefault(save, []).extend(contents)
    return found


def compared(baseline: Attempt, attempts: Sequence[Attempt]) -> Iterator[Compared]:
    """Yield the saves of starts, in their order, which the baseline run has, too; until the number of ranks changes."""
    expected, is_known = saves_of(baseline), _known(baseline)
    for attempt, save in _saves(baseline, attempts):
        if is_known(attempt, save):
            for log in attempt.ranks.values():
                for parts in log.parts.get(save, ()):
                    yield Compared(attempt.number, save, parts, expected[save])


def differences(baseline: Attempt, attempts: Sequence[Attempt]) -> Iterator[Compared]:
    """Yield the saves that differ."""
    return (one for one in compared(baseline, attempts) if one.differing)


def count_compared(baseline: Attempt, attempts: Sequence[Attempt]) -> tuple[int, int]:
    """Count the checkpoints that were compared, and those of steps at which no baseline run saved one."""
    is_known = _known(baseline)
    saves = [is_known(attempt, save) for attempt, save in _saves(baseline, attempts)]
    return sum(saves), len(saves) - sum(saves)


def compared_files(baseline: Attempt, attempts: Sequence[Attempt]) -> dict[str, bool]:
    """Return whether what each saved file held last was compared, by its path in the case."""
    is_known = _known(baseline)
    files: dict[str, bool] = {}
    for attempt in attempts:
        for log in attempt.ranks.values():
            for name in log.moved:
                files.pop(name, None)
            for name, save in log.saves.items():
                files[name] = is_known(attempt, save) and not is_resized(attempt, baseline)
    return files


def _known(baseline: Attempt) -> Callable[[Attempt, Any], bool]:
    """Return what tells whether the baseline run saved at a step, too; on the same side of an epoch's end.

    Before the end and after it, a loop has done as many steps and not the same.
    """
    expected, lengths = saves_of(baseline), lengths_of(baseline)

    def is_known(attempt: Attempt, save: Save) -> bool:
        places = [
            (place, other)
            for rank, log in attempt.ranks.items()
            if rank in baseline.ranks
            for place, other in zip(log.held.get(save, ()), baseline.ranks[rank].held.get(save, ()), strict=False)
        ]
        beyond = any(one != other and ordinal(one, lengths) == ordinal(other, lengths) for one, other in places)
        return save in expected and not beyond

    return is_known


def _saves(baseline: Attempt, attempts: Sequence[Attempt]) -> Iterator[tuple[Attempt, Save]]:
    drafts = {series for log in baseline.ranks.values() for series in log.drafts}
    for attempt in takewhile(lambda attempt: not is_resized(attempt, baseline), attempts):
        saves = dict.fromkeys(save for log in attempt.ranks.values() for save in log.parts)
        drafts |= {series for log in attempt.ranks.values() for series in log.drafts}
        yield from ((attempt, save) for save in saves if save[0] not in drafts)


# What a part of a checkpoint is, by what is beside it: schedulers, scalers and optimizers name their parts alike.

# The role, a name that only such a state has, and the parts of it that depend on nothing but the number of its steps.
_ROLES = {
    "optimizer": ("param_groups", ()),
    "scheduler": ("last_epoch", ("last_epoch", "_step_count")),
    "scaler": ("_growth_tracker", ("_growth_tracker", "scale")),
    "generators": ("numpy", ()),
}
_WHOLE = re.compile(r"-?\d+( u?int\d+)?")


def prefixes(paths: Iterable[str], role: str) -> dict[str, tuple[str, ...]]:
    """Return where the states of a role are, each with its own counters."""
    mark, own = _ROLES[role]
    found = {path.split(f".{mark}")[0] for path in paths if re.search(rf"\.{mark}(\.|$)", path)}
    return {prefix: tuple(f"{prefix}.{name}" for name in own) for prefix in sorted(found)}


def first_of(differing: set[str], states: dict[str, tuple[str, ...]]) -> str:
    """Return the first counter of these states that differs, or nothing."""
    return next((path for counters in states.values() for path in counters if path in differing), "")


def counters_of(paths: Iterable[str], found: Mapping[str, str]) -> set[str]:
    """Return those of the parts that are whole numbers, outside of the states whose roles are known."""
    known = [prefix for role in _ROLES for prefix in prefixes(paths, role)]
    return {
        path
        for path, text in found.items()
        if _WHOLE.fullmatch(text) and not any(path.startswith(f"{prefix}.") for prefix in known)
    }
