"""The signs of a cause: what differs between the starts of a case and its baseline run, and follows from nothing else.

ranks apart          the ranks of a start went on from different places
place not loaded     a start got a checkpoint with the state of a loader, and loaded the state of none
no place             a start got a checkpoint without the state of a loader, and trained
place earlier, later a checkpoint has another place of the loader than in the baseline run, at the same step; or a file
                     that was saved at the same place has counters of earlier or later steps (`counts.py`)
other place          a loader went on at a place that is in no checkpoint from which the weights come
counts backwards     a store refused a step
other content        samples with the indices of the baseline run have another content
other samples        other samples come, or those of the baseline run in another order
step after the save  an optimizer stepped while its loader stood at the place that was saved
other weights        at its first step, a start had weights that are not in its checkpoint
old weights          it had those in its checkpoint, and the baseline run had others
other optimizer      it had another state of the optimizer
equal weights, equal optimizer  it had those of the baseline run, so that no bug before this step has changed them
entry missing        a list in a checkpoint is shorter
evaluation missing   steps are lost, and none of them of the loader that has most steps
scheduler, scaler    the counters in their states differ
generators           a global generator that the script uses is elsewhere
counter              a whole number differs, outside of all of these
weights alone        no tensor in any checkpoint differs, and the final weights, or those in a file at the end, do
in place             a file was written under the name by which a later start read it, in place of an older content
first part           at the first step at which any part of a checkpoint differs, no other one does

Where no checkpoint differs, the files that are left at the end are looked at in the same way.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING

from resumable._content import split
from resumable.chaos.verify.counts import signs_of_counts
from resumable.chaos.verify.files import compare_files
from resumable.chaos.verify.history import (
    effective_history,
    first_elsewhere,
    how_data_differ,
    lengths_of,
    main_of,
    ordinal,
    steps_of,
    without_a_place,
)
from resumable.chaos.verify.inplace import find_in_place
from resumable.chaos.verify.parts import compared, count_compared
from resumable.chaos.verify.ranks import apart
from resumable.chaos.verify.roles import counters_of, first_of, prefixes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from resumable.chaos.recorder.attempts import Attempt
    from resumable.chaos.recorder.logs import RankLog, Update
    from resumable.chaos.verify.parts import Compared

__all__ = ["find_signs"]


def find_signs(baseline: Attempt, attempts: Sequence[Attempt], violations: Mapping[str, str]) -> dict[str, str]:
    """Return what is seen of each sign that is there, in words."""
    finders = (
        *(_signs_of_ranks, _signs_of_places, _signs_of_other_places, signs_of_counts, _signs_of_order),
        *(_signs_of_data, _signs_of_updates, _signs_of_parts),
    )
    signs = dict(chain.from_iterable(finder(baseline, attempts) for finder in finders))
    if names := [name for name, over in find_in_place(baseline, attempts).items() if over]:
        signs["in place"] = ", ".join(sorted(names))
    alone = "the final weights do" if "same weights" in violations else _first_file(baseline, attempts)
    if alone and "compared" in signs and "tensors" not in signs:
        signs["weights alone"] = alone
    return signs


def _first_file(baseline: Attempt, attempts: Sequence[Attempt]) -> str:
    """Say which is the first file with a tensor that differs, if there is one."""
    files = (one for one in compare_files(baseline, attempts) if one.found)
    return next((f"those in {one.save[0]} do" for one in files if _has_tensors([one])), "")


def _pairs(baseline: Attempt, attempts: Sequence[Attempt]) -> Iterator[tuple[int, RankLog, RankLog]]:
    for attempt in attempts[1:]:
        for rank, log in attempt.ranks.items():
            if rank in baseline.ranks:
                yield attempt.number, log, baseline.ranks[rank]


def _signs_of_ranks(_: Attempt, attempts: Sequence[Attempt]) -> Iterator[tuple[str, str]]:
    every = (f"{one.number} {text}" for one in attempts for text in apart(one))
    yield from (("ranks apart", first) for first in islice(every, 1))


def _signs_of_places(baseline: Attempt, attempts: Sequence[Attempt]) -> Iterator[tuple[str, str]]:
    lengths = lengths_of(baseline)
    for number, log, healthy in _pairs(baseline, attempts):
        for save in log.resumed:
            if save in healthy.held and not log.loaded and log.batches:
                yield ("place not loaded" if healthy.held[save] else "no place"), str(number)
        for save in log.held.keys() & healthy.held.keys():
            for found, expected in zip(log.held[save], healthy.held[save], strict=False):
                by = ordinal(found, lengths) - ordinal(expected, lengths)
                if by:
                    yield ("place later" if by > 0 else "place earlier"), f"{abs(by)} batch{'es' * (abs(by) > 1)}"


def _signs_of_other_places(_: Attempt, attempts: Sequence[Attempt]) -> Iterator[tuple[str, str]]:
    if found := first_elsewhere(attempts):
        yield "other place", str(found.start)


def _signs_of_order(_: Attempt, attempts: Sequence[Attempt]) -> Iterator[tuple[str, str]]:
    if any("this run has already saved or loaded a later one" in attempt.output for attempt in attempts[1:]):
        yield "counts backwards", "the step"


def _signs_of_data(baseline: Attempt, attempts: Sequence[Attempt]) -> Iterator[tuple[str, str]]:
    expected = steps_of(baseline)
    for attempt in reversed(attempts):
        for key, step in sorted(steps_of(attempt).items(), reverse=True):
            if key in expected and (how := how_data_differ(step, expected[key], expected)):
                yield how, f"epoch {key[1].epoch}, step {key[1].step - 1}"
    lost = {loader for loader, _ in expected.keys() - effective_history(attempts).keys()}
    lost -= without_a_place(baseline, attempts)
    if lost and main_of(baseline) not in lost:
        yield "evaluation missing", f"loader {min(lost)}"


def _signs_of_updates(baseline: Attempt, attempts: Sequence[Attempt]) -> Iterator[tuple[str, str]]:
    main = main_of(baseline)
    for number, log, healthy in _pairs(baseline, attempts):
        expected = {(one.save, one.optimizer): one for one in healthy.updates if not one.resumed}
        for found in log.updates:
            if found.resumed and (found.save, found.optimizer) in expected:
                other = expected[found.save, found.optimizer]
                stands = other.stands[main : main + 1]
                if stands and stands[0] in healthy.held.get(found.save, ()):
                    yield "step after the save", f"step {found.save[1]}"
                yield from _compare_updates(str(number), found, other, healthy)


def _compare_updates(number: str, found: Update, expected: Update, healthy: RankLog) -> Iterator[tuple[str, str]]:
    if found.weights != expected.weights:
        texts = {text for parts in healthy.parts.get(found.save, ()) for text in parts.values()}
        yield ("old weights" if texts.issuperset(found.weights.values()) else "other weights"), number
    else:
        yield "equal weights", number
    yield ("equal optimizer" if _state(found) == _state(expected) else "other optimizer"), number


def _state(update: Update) -> dict[str, str]:
    """Return the state of an optimizer without its settings, which schedulers change."""
    return {path: text for path, text in update.state.items() if path.startswith("state.")}


def _signs_of_parts(baseline: Attempt, attempts: Sequence[Attempt]) -> Iterator[tuple[str, str]]:
    every = [one for one in compared(baseline, attempts) if one.start > 0]
    if every:
        yield "compared", str(len(every))
    differing = {path for one in every for path in one.differing}
    paths = {path for one in every for parts in one.expected for path in parts}
    if _has_tensors(every):
        yield "tensors", "differ"
    at_the_end = not differing
    if at_the_end:
        every = [one for one in compare_files(baseline, attempts) if one.found]
        differing = {path for one in every for path in one.differing}
        paths = {path for one in every for parts in one.expected for path in parts}
    for role in ("scheduler", "scaler"):
        if path := first_of(differing, prefixes(paths, role)):
            yield role, path
    generators = sorted(_generators(baseline, attempts))
    saved = count_compared(baseline, attempts)[0] > 0
    if generators and not (at_the_end and saved):  # else the saves would differ, too
        yield "generators", ", ".join(generators)
    for one in every:
        yield from _signs_of_values(one, paths)
    if (early := next((one for one in every if one.differing), None)) is not None:
        names = {split(path)[0] for path in early.differing}
        if len(names) == 1:
            yield "first part", names.pop() + (f" in {early.save[0]}" if early.step < 0 else "")


def _signs_of_values(one: Compared, paths: set[str]) -> Iterator[tuple[str, str]]:
    for path in one.differing:
        found, expected = one.found.get(path, ""), one.expected[0].get(path, "")
        if found and _length(found) < _length(expected):
            yield "entry missing", path
        if path in counters_of(paths, {path: found}) and expected:
            yield "counter", path


def _has_tensors(every: Sequence[Compared]) -> bool:
    return any("]: " in text for one in every for path in one.differing for text in _texts(one, path))


def _texts(one: Compared, path: str) -> list[str]:
    return [one.found.get(path, ""), *(parts.get(path, "") for parts in one.expected)]


def _length(text: str) -> int:
    """Return the number of values in a list, from its text; 0 for anything else."""
    return int(text.split()[2].rstrip(":")) if text.startswith("list of ") else 0


def _generators(baseline: Attempt, attempts: Sequence[Attempt]) -> Iterator[str]:
    """Yield the generators that move in the baseline run, and stand elsewhere at the same step of a resumed start."""
    for _, log, healthy in _pairs(baseline, attempts):
        for name in ("python", "numpy", "torch"):
            states = {save: known.get(name) for save, known in healthy.generators.items()}
            elsewhere = any(
                states.get(save, text[name]) != text[name] for save, text in log.generators.items() if name in text
            )
            if elsewhere and len(set(states.values())) > 1:
                yield name
