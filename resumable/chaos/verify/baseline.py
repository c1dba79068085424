"""What two baseline runs have in common: only that can be expected of a run that was broken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resumable._content import UNCOMPARED, topmost
from resumable.chaos.verify.files import drop_unlike_files
from resumable.chaos.verify.history import how_data_differ, steps_of
from resumable.chaos.verify.parts import saves_of
from resumable.chaos.verify.rounding import forgive_rounding
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from resumable.chaos.recorder.attempts import Attempt
    from resumable.chaos.verify.history import Key, Step

__all__ = ["drop_what_differs"]


def drop_what_differs(baseline: Attempt, again: Attempt) -> list[str]:
    """Compare two baseline runs, and forget what is not the same in both: the checks then expect it of no run.

    Returns:
        What differs, in words: parts of the checkpoints, files, and the final weights.

    Raises:
        ConfigurationError: they trained on other data.
    """
    forgive_rounding(baseline, [again])
    first, second = steps_of(baseline), steps_of(again)
    if first != second:
        keys = sorted(first.keys() | second.keys())
        place = next(key[1] for key in keys if first.get(key) != second.get(key))
        raise ConfigurationError(
            f"two runs without any fault trained on different data, first before {place}.\nA crash cannot be told from "
            f"that: {_why_other_data(first, second)}. Give every loader and every source of randomness a seed."
        )
    notes = _drop_parts(baseline, again) + drop_unlike_files(baseline, again)
    for rank, log in baseline.ranks.items():
        if log.weights != again.ranks[rank].weights:
            log.weights = None
            notes.append("the final weights are not the same in two baseline runs, and are not compared")
    return sorted(set(notes))


def _why_other_data(first: dict[Key, Step], second: dict[Key, Step]) -> str:
    """Say what is probably not the same in each run."""
    both = first.keys() & second.keys()
    kinds = {kind for key in both if (kind := how_data_differ(second[key], first[key], first))}
    if not kinds:
        return "they trained on another number of steps"
    if kinds == {"other content"}:
        return "equal indices have another content, as with a random transform without a seed"
    return (
        "the same samples come in another order, as with os.listdir, a set, or a list that is shuffled without a seed"
        if {digest for step in first.values() for digest in step.digests}.issuperset(
            digest for step in second.values() for digest in step.digests
        )
        else "other samples come"
    )


def _drop_parts(baseline: Attempt, again: Attempt) -> list[str]:
    """Keep the parts of checkpoints that are the same wherever both runs saved a step; of steps that one saved, too."""
    first, second = saves_of(baseline), saves_of(again)
    unread = {
        (save[0], path): text
        for save, contents in (*first.items(), *second.items())
        for parts in contents
        for path, text in parts.items()
        if text.startswith(UNCOMPARED)
    }
    same: set[tuple[str, str]] = set()
    other: set[tuple[str, str]] = set()
    for save in first.keys() & second.keys():
        for path in set().union(*first[save], *second[save]):
            texts = ({parts.get(path) for parts in contents} for contents in (first[save], second[save]))
            (same if len(set(map(frozenset, texts))) == 1 else other).add((save[0], path))
    whole = same - other - unread.keys()
    for rank, log in baseline.ranks.items():
        saves = again.ranks[rank].parts | log.parts
        log.parts = {
            save: [{path: text for path, text in parts.items() if (save[0], path) in whole} for parts in contents]
            for save, contents in saves.items()
            if any(save[0] == store for store, _ in same)
        }
    stores = {store for store, _ in (*first, *second)} - {store for store, _ in same | other}
    names = topmost((path for _, path in other - unread.keys()), (path for _, path in same | other))
    return [
        *(f"'{name}' in the checkpoints is not the same in two baseline runs, and is not compared" for name in names),
        *(f"'{path}' in the checkpoints is {text}" for (_, path), text in unread.items()),
        *(f"two baseline runs saved no step in common to {store}: what is in it is not compared" for store in stores),
    ]
