"""The steps in the weights: for each step, the last attempt that no resume has undone."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from resumable.chaos.plan import main_loader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from resumable.chaos.ledger import Attempt, Batch, RankLog, Save, StepRef, Update


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
    "same_step",
    "saves_of",
    "steps_of",
    "without_a_place",
]


Key: TypeAlias = "tuple[int, StepRef]"


class Step(NamedTuple):
    """A step over all ranks, in the order of the ranks, which is the order of the global batch."""

    indices: tuple[str, ...] | None
    digests: tuple[str, ...]


def steps_of(attempt: Attempt) -> dict[Key, Step]:
    """Return the steps that an attempt trained on, combined over all ranks."""
    worlds = {log.world for log in attempt.ranks.values()}
    world = max(worlds, default=1)
    return {key: _merge(ranks) for key, ranks in attempt.trained().items() if len(ranks) == world}


def _merge(ranks: Mapping[int, Batch]) -> Step:
    batches = [batch for _, batch in sorted(ranks.items())]
    known = all(batch.indices is not None for batch in batches)
    indices = tuple(index for batch in batches for index in batch.indices or ()) if known else None
    return Step(indices, tuple(digest for batch in batches for digest in batch.digests))


def main_of(baseline: Attempt) -> int:
    """Return the loader with most steps, which is the one that is trained on."""
    return main_loader(loader for loader, _ in steps_of(baseline))


def lengths_of(baseline: Attempt) -> dict[int, int]:
    """Return the number of steps in each epoch of the main loader."""
    lengths: dict[int, int] = {}
    main = main_of(baseline)
    for loader, place in steps_of(baseline):
        if loader == main:
            lengths[place.epoch] = max(lengths.get(place.epoch, 0), place.step)
    return lengths


def ordinal(place: StepRef, lengths: Mapping[int, int]) -> int:
    """Return the number of steps before a position, over all epochs."""
    return place.step + sum(length for epoch, length in lengths.items() if epoch < place.epoch)


def how_data_differ(found: Step, expected: Step, baseline: Mapping[Key, Step]) -> str:
    """Return whether a step has different samples, or the same ones with different content; empty if neither.

    Indices may be equal although the samples are not, for example if files are listed in a different order.
    """
    if found.digests == expected.digests:
        return ""
    known = {digest for step in baseline.values() for digest in step.digests}
    same = found.indices is not None and found.indices == expected.indices and not known.issuperset(found.digests)
    return "other content" if same else "other samples"


def begun(attempt: Attempt) -> dict[int, StepRef]:
    """Return the position of each loader when an attempt started; the least advanced rank counts."""
    places: dict[int, StepRef] = {}
    for log in attempt.ranks.values():
        for loader, place in log.begun.items():
            places[loader] = min(places.get(loader, place), place)
    return places


def same_step(healthy: RankLog, found: Update) -> Update | None:
    """Return the first step of an optimizer after the same checkpoint in the baseline run.

    A file may be saved several times at a position of its loader; then the step with the same weights counts.
    """
    known = (one for one in healthy.updates if not one.resumed)
    after = [one for one in known if (one.save, one.optimizer) == (found.save, found.optimizer)]
    return next((one for one in after if one.weights == found.weights), after[-1] if after else None)


class Elsewhere(NamedTuple):
    """A loader that resumed at a position from no checkpoint that its launch loaded.

    Args:
        start: number of the launch.
        loader: number of the loader.
        place: the position at which it resumed.
        expected: the positions in the checkpoint that was loaded last.
    """

    start: int
    loader: int
    place: StepRef
    expected: set[StepRef]


def first_elsewhere(attempts: Sequence[Attempt]) -> Elsewhere | None:
    """Return the first loader that resumed at a different position than the weights; None if there is none."""
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
    """Return the steps in the final weights."""
    history: dict[Key, Step] = {}
    for attempt in attempts:
        starts = begun(attempt)
        if starts:
            history = {key: step for key, step in history.items() if key[1] <= starts.get(key[0], key[1])}
        history |= steps_of(attempt)
    return history


def without_a_place(baseline: Attempt, attempts: Sequence[Attempt]) -> set[int]:
    """Return the loaders with identical epochs that no launch restores, if other loaders are restored.

    Validation sets are read like this. Epoch numbers restart in each launch, so they do not tell how often the set was
    read; its batches are still compared.
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
    """Return whether the number of ranks differs, so sums of gradients are rounded differently."""
    worlds = {log.world for log in attempt.ranks.values()}
    return bool(worlds) and worlds != {log.world for log in baseline.ranks.values()}


def evaluating(baseline: Attempt | None, attempts: Sequence[Attempt]) -> frozenset[int]:
    """Return the loaders that are not trained on: wrapped for evaluation, or read like a validation set."""
    told = {loader for attempt in attempts for log in attempt.ranks.values() for loader in log.evaluating}
    return frozenset(told if baseline is None else told | without_a_place(baseline, attempts))


def retrained(attempts: Sequence[Attempt], leaving_out: frozenset[int] = frozenset()) -> int:
    """Count the steps that were trained on more than once, without some loaders."""
    keys = [key for attempt in attempts for key in steps_of(attempt) if key[0] not in leaving_out]
    return len(keys) - len(set(keys))


# Compares the content of each checkpoint in a store, and of each saved file, with the baseline run.


class Compared(NamedTuple):
    """One save of one rank, and the saves of the same step in the baseline run.

    Args:
        start: number of the launch.
        save: name of the store, and the step.
        found: a dict from path to text of each part.
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
        """Paths of the parts that differ from the baseline run, or exist in only one of the two."""
        every = set().union(*self.expected)
        known = {path: {parts.get(path) for parts in self.expected} for path in every}
        return [path for path in sorted(every) if self.found.get(path) not in known[path]]

    @property
    def equal(self) -> list[str]:
        """Paths of the parts that equal the baseline run."""
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
    """Yield the saves of launches that the baseline run also has, in order, until the number of ranks changes."""
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
    """Count the checkpoints that were compared, and those at steps at which no baseline run saved."""
    is_known = _known(baseline)
    saves = [is_known(attempt, save) for attempt, save in _saves(baseline, attempts)]
    return sum(saves), len(saves) - sum(saves)


def compared_files(baseline: Attempt, attempts: Sequence[Attempt]) -> dict[str, bool]:
    """Return a dict from the path of each saved file in the case to whether its last content was compared."""
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
    """Return a function that says whether the baseline run also saved at a step, on the same side of an epoch's end.

    Before and after the end, a loop has done the same number of steps but different work.
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


# The role of a part of a checkpoint, judged from its neighbors: schedulers, scalers and optimizers use fixed names.

# The role, a name that only such a state has, and the parts of it that depend only on the number of steps.
_ROLES = {
    "optimizer": ("param_groups", ()),
    "scheduler": ("last_epoch", ("last_epoch", "_step_count")),
    "scaler": ("_growth_tracker", ("_growth_tracker", "scale")),
    "generators": ("numpy", ()),
}
_WHOLE = re.compile(r"-?\d+( u?int\d+)?")


def prefixes(paths: Iterable[str], role: str) -> dict[str, tuple[str, ...]]:
    """Return the paths of the states of a role, each with its counters."""
    mark, own = _ROLES[role]
    found = {path.split(f".{mark}")[0] for path in paths if re.search(rf"\.{mark}(\.|$)", path)}
    return {prefix: tuple(f"{prefix}.{name}" for name in own) for prefix in sorted(found)}


def first_of(differing: set[str], states: dict[str, tuple[str, ...]]) -> str:
    """Return the first counter of these states that differs, or an empty string."""
    return next((path for counters in states.values() for path in counters if path in differing), "")


def counters_of(paths: Iterable[str], found: Mapping[str, str]) -> set[str]:
    """Return the parts that are integers, outside states with a known role."""
    known = [prefix for role in _ROLES for prefix in prefixes(paths, role)]
    return {
        path
        for path, text in found.items()
        if _WHOLE.fullmatch(text) and not any(path.startswith(f"{prefix}.") for prefix in known)
    }
