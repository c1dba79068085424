"""The signs of a cause: what differs between the starts of a case and its baseline run, and follows from nothing else.

place not loaded     a start got a checkpoint with the state of a loader, and loaded the state of none
no place             a start got a checkpoint without the state of a loader, and trained
place earlier, later a checkpoint has another place of the loader than in the baseline run, at the same step
counts backwards     a store refused a step
other content        samples with the indices of the baseline run have another content
other samples        other samples come, or those of the baseline run in another order
step after the save  an optimizer stepped while its loader stood at the place that was saved
other weights        at its first step, a start had weights that are not in its checkpoint
old weights          it had those in its checkpoint, and the baseline run had others
other optimizer      it had another state of the optimizer
entry missing        a list in a checkpoint is shorter
evaluation missing   steps are lost, and none of them of the loader that has most steps
scheduler, scaler    the counters in their states differ
generators           a global generator that the script uses is elsewhere
counter              a whole number differs, outside of all of these
weights alone        no tensor in any checkpoint differs, and the final weights do
first part           at the first step at which any part of a checkpoint differs, no other one does
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from resumable.chaos.verify.history import effective_history, how_data_differ, steps_of
from resumable.chaos.verify.parts import compared
from resumable.chaos.verify.roles import counters_of, first_of, prefixes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from resumable.chaos.recorder.logs import Attempt, Place, RankLog, Update
    from resumable.chaos.verify.parts import Compared

__all__ = ["find_signs"]


def find_signs(baseline: Attempt, attempts: Sequence[Attempt], violations: Mapping[str, str]) -> dict[str, str]:
    """Return what is seen of each sign that is there, in words."""
    finders = (_signs_of_places, _signs_of_order, _signs_of_data, _signs_of_updates, _signs_of_parts)
    signs = dict(chain.from_iterable(finder(baseline, attempts) for finder in finders))
    if "same weights" in violations and "compared" in signs and "tensors" not in signs:
        signs["weights alone"] = "the final weights"
    return signs


def _pairs(baseline: Attempt, attempts: Sequence[Attempt]) -> Iterator[tuple[int, RankLog, RankLog]]:
    for attempt in attempts[1:]:
        for rank, log in attempt.ranks.items():
            if rank in baseline.ranks:
                yield attempt.number, log, baseline.ranks[rank]


def _signs_of_places(baseline: Attempt, attempts: Sequence[Attempt]) -> Iterator[tuple[str, str]]:
    lengths = _lengths(baseline)
    for number, log, healthy in _pairs(baseline, attempts):
        for save in log.resumed:
            if save in healthy.held and not log.loaded and log.batches:
                yield ("place not loaded" if healthy.held[save] else "no place"), str(number)
        for save in log.held.keys() & healthy.held.keys():
            for found, expected in zip(log.held[save], healthy.held[save], strict=False):
                by = _ordinal(found, lengths) - _ordinal(expected, lengths)
                if by:
                    yield ("place later" if by > 0 else "place earlier"), f"{abs(by)} batch{'es' * (abs(by) > 1)}"


def _lengths(baseline: Attempt) -> dict[int, int]:
    """Return the number of steps in each epoch of the loader that has most of them."""
    lengths: dict[int, int] = {}
    main = _main(baseline)
    for loader, place in steps_of(baseline):
        if loader == main:
            lengths[place.epoch] = max(lengths.get(place.epoch, 0), place.step)
    return lengths


def _main(baseline: Attempt) -> int:
    loaders = [loader for loader, _ in steps_of(baseline)]
    return max(loaders, key=loaders.count, default=0)


def _ordinal(place: Place, lengths: dict[int, int]) -> int:
    return place.step + sum(length for epoch, length in lengths.items() if epoch < place.epoch)


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
    if lost and _main(baseline) not in lost:
        yield "evaluation missing", f"loader {min(lost)}"


def _signs_of_updates(baseline: Attempt, attempts: Sequence[Attempt]) -> Iterator[tuple[str, str]]:
    main = _main(baseline)
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
    elif _state(found) != _state(expected):
        yield "other optimizer", number


def _state(update: Update) -> dict[str, str]:
    """Return the state of an optimizer without its settings, which schedulers change."""
    return {path: text for path, text in update.state.items() if path.startswith("state.")}


def _signs_of_parts(baseline: Attempt, attempts: Sequence[Attempt]) -> Iterator[tuple[str, str]]:
    every = [one for one in compared(baseline, attempts) if one.start > 0]
    if every:
        yield "compared", str(len(every))
    differing = {path for one in every for path in one.differing}
    paths = {path for one in every for parts in one.expected for path in parts}
    if any("]: " in text for one in every for path in one.differing for text in _texts(one, path)):
        yield "tensors", "differ"
    for role in ("scheduler", "scaler"):
        if path := first_of(differing, prefixes(paths, role)):
            yield role, path
    if generators := sorted(_generators(baseline, attempts)):
        yield "generators", ", ".join(generators)
    for one in every:
        yield from _signs_of_values(one, paths)
    first = {path.partition(".")[0] for path in next((one.differing for one in every if one.differing), ())}
    if len(first) == 1:
        yield "first part", first.pop()


def _signs_of_values(one: Compared, paths: set[str]) -> Iterator[tuple[str, str]]:
    for path in one.differing:
        found, expected = one.found.get(path, ""), one.expected[0].get(path, "")
        if found and _length(found) < _length(expected):
            yield "entry missing", path
        if path in counters_of(paths, {path: found}) and expected:
            yield "counter", path


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
