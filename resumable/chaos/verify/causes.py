"""The table of causes: probable faults in a script, with their signs in the ledgers.

The first cause with all of its signs counts.
"""

from __future__ import annotations

from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, NamedTuple

from resumable._content import split
from resumable.chaos.verify.checks import apart, find_remaining
from resumable.chaos.verify.files import compare_files, few, find_in_place
from resumable.chaos.verify.history import (
    compared,
    counters_of,
    effective_history,
    first_elsewhere,
    first_of,
    how_data_differ,
    lengths_of,
    main_of,
    ordinal,
    prefixes,
    same_step,
    saves_of,
    steps_of,
    without_a_place,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from resumable.chaos.ledger import Attempt, RankLog, Update
    from resumable.chaos.verify.history import Compared


__all__ = ["CAUSES", "Cause", "find_cause", "find_signs"]


class Cause(NamedTuple):
    """A cause.

    Args:
        name: for reports and for programs that read them.
        signs: the signs that must all be present.
        text: what is probably wrong, and the fix; `{...}` is replaced with the value of a sign.
    """

    name: str
    signs: frozenset[str]
    text: str


def _cause(name: str, signs: str, text: str) -> Cause:
    return Cause(name, frozenset(signs.split(", ")), text)


CAUSES = (
    _cause(
        "ranks resume apart",
        "ranks apart",
        "in launch {ranks apart}: each rank probably searches for its own newest checkpoint; let rank 0 search, and "
        "broadcast the step that it found (torch.distributed.broadcast_object_list)",
    ),
    _cause(
        "loader not loaded",
        "place not loaded",
        "the checkpoint contains the loader's state, but launch {place not loaded} did not load it: call "
        "loader.load_state_dict",
    ),
    _cause(
        "loader not saved",
        "no place",
        "the checkpoint from which launch {no place} resumed does not contain the loader's state: save "
        "loader.state_dict()",
    ),
    _cause(
        "loader from elsewhere",
        "other place",
        "the loader of launch {other place} resumed at a position that is in no checkpoint with its weights: its state "
        "is probably in a separate file, or changed after it was loaded; save both in one checkpoint",
    ),
    _cause(
        "second loop",
        "other loop",
        "a resume continues in a different loop than the interrupted one: {other loop}; a Loader has one position, so "
        "use loader.for_evaluation() in the loop that does not train",
    ),
    _cause(
        "saved in the wrong order",
        "count apart",
        "after a resume the number of a save is {count apart} than the loader's position: its counter probably changes "
        "after the save; save last in each step",
    ),
    _cause(
        "loader one batch early",
        "place earlier",
        "after a resume the loader's position is {place earlier} earlier than the weights: its state is probably saved "
        "too early, before the last batch in the weights; a resume then trains on that batch twice",
    ),
    _cause(
        "loader one batch late",
        "place later",
        "after a resume the loader's position is {place later} later than the weights: its state is probably saved too "
        "late, after the next batch was fetched; a resume then skips that batch. Take the state before that fetch",
    ),
    _cause(
        "loader one batch late",
        "epoch ended",
        "{epoch ended} is the number of an epoch whose end is already in the loader's state, so a resume trains one "
        "epoch more: the state is probably taken after the loop fetched ahead. Take it before that fetch",
    ),
    _cause(
        "step counter not restored",
        "counts backwards",
        "the step number restarts after a resume: it is probably not restored",
    ),
    _cause(
        "memory of the dataset",
        "other content",
        "the sample indices are equal but their content differs, first in {other content}: the dataset probably "
        "depends on earlier reads, for example through a counter, or uses an unseeded RNG; make each sample depend "
        "only on its index, and use torch, numpy or random",
    ),
    _cause(
        "order of the source",
        "other samples",
        "different samples follow a resume, first in {other samples}: the source's order probably depends on more than "
        "its state, for example on os.listdir, a set, or an unseeded shuffle; sort it",
    ),
    _cause(
        "saved before the step",
        "step after the save",
        "the optimizer steps after {step after the save} was saved and before the next batch is fetched, so a resume "
        "loses this step: save after optimizer.step(), and before the next batch is fetched",
    ),
    _cause(
        "model not restored",
        "other weights",
        "launch {other weights} continued from weights that are not in its checkpoint: the model is probably not "
        "restored",
    ),
    _cause(
        "saved before the step",
        "old weights",
        "the weights in the checkpoint of launch {old weights} are older than those with which the baseline run "
        "continued: the model is probably copied before optimizer.step()",
    ),
    _cause(
        "optimizer not restored",
        "other optimizer",
        "the optimizer state of launch {other optimizer} differs from the baseline run, while the weights are equal: "
        "it is probably not restored, or not saved",
    ),
    _cause(
        "evaluation skipped",
        "entry missing",
        "{entry missing} is shorter than in the baseline run: the code that appends to it was probably skipped on a "
        "resume, for example the evaluation at an epoch's end",
    ),
    _cause(
        "evaluation skipped",
        "evaluation missing",
        "only steps of {evaluation missing} are missing: the evaluation at an epoch's end was probably skipped on a "
        "resume",
    ),
    _cause(
        "evaluation repeated",
        "entry added",
        "{entry added} is longer than in the baseline run: the code that appends to it probably runs again on a "
        "resume, for example evaluation before the first step",
    ),
    _cause("scheduler not restored", "scheduler", "{scheduler} differs first: the scheduler is probably not restored"),
    _cause("GradScaler not restored", "scaler", "{scaler} differs first: the GradScaler is probably not restored"),
    _cause(
        "generators of other ranks",
        "generators of a rank",
        "the state of the RNG {generators of a rank} differs from the baseline run, but not on rank 0: each rank needs "
        "its own state, and probably has the state of rank 0; save one for each rank",
    ),
    _cause(
        "generators not restored",
        "generators",
        "the state of the RNG {generators} differs from the baseline run: it is probably not restored; save "
        "resumable.rng.state_dict()",
    ),
    _cause(
        "step counter not restored",
        "counter",
        "{counter} differs from the baseline run: this counter is probably not restored",
    ),
    _cause(
        "index restarts",
        "index, equal weights, equal optimizer",
        "possibly, something depends on the index of enumerate in {index}, which restarts at 0 after a resume within "
        "an epoch: use epoch.enumerate()",
    ),
    _cause(
        "saved in the wrong order",
        "continued",
        "{continued}, although it was restored: it probably changes after the save; save last in each step",
    ),
    _cause(
        "scheduler not restored",
        "learning rate, equal weights, equal optimizer",
        "{learning rate} differs first, although weights and optimizer were restored: the scheduler, or the step from "
        "which the loop computes the learning rate, is probably not saved or not restored",
    ),
    _cause(
        "in no checkpoint",
        "weights alone",
        "no tensor in the checkpoints differs, but {weights alone}: something that the weights depend on is possibly "
        "in no checkpoint, such as an average of the weights (EMA)",
    ),
    _cause(
        "a part not restored",
        "first part",
        "{first part} differs first: possibly, it is not restored, or saved before its last change",
    ),
    _cause(
        "gradients lost",
        "accumulation, equal weights, equal optimizer, tensors",
        "launch {equal weights} continued from equal weights and an equal optimizer state, but reached different "
        "weights: gradients of batches before the save are possibly lost, because the save interrupts an accumulation; "
        "save after optimizer.step(). Or the loss depends on something that is in no checkpoint",
    ),
    _cause(
        "in no checkpoint",
        "equal weights, equal optimizer, tensors",
        "launch {equal weights} continued from equal weights and an equal optimizer state, but reached different "
        "weights: possibly, the loss depends on something that is in no checkpoint, such as a generator, a hidden "
        "state, a running average or a schedule",
    ),
    _cause(
        "non-atomic save",
        "in place",
        "{in place} is overwritten in place and read on startup, so a kill during a save destroys the only copy; write "
        "to a temporary file, then os.replace() it",
    ),
    _cause(
        "a part not restored",
        "first parts",
        "{first parts} differ first: possibly, one of them is not restored, or they depend on something that is in no "
        "checkpoint",
    ),
)


def find_cause(signs: dict[str, str]) -> Cause | None:
    """Return the first cause with all of its signs, and their values in its text; None if no cause is known."""
    for cause in CAUSES:
        if cause.signs <= signs.keys():
            return cause._replace(text=cause.text.format_map(signs))
    return None


# The signs: differences between the launches of a case and its baseline run, each of which has only one explanation.
#
# ranks apart          the ranks of a launch resumed at different positions
# place not loaded     a launch got a checkpoint with the state of a loader, but loaded the state of none
# no place             a launch got a checkpoint without the state of a loader, and trained
# place earlier, later a checkpoint has a different position of the loader than the baseline run at the same step; or a
#                      file saved at the same position has counters of earlier or later steps (`signs_of_counts`)
# epoch ended          launches train on a later epoch than the baseline run, and resumed from a checkpoint in which the
#                      loader is at the start of an epoch, while a counter of epochs has the number of the one before
# other place          a loader resumed at a position that is in no checkpoint with the loaded weights
# counts backwards     a store rejected a step
# other content        samples with the same indices as in the baseline run have different content
# other samples        different samples, or the samples of the baseline run in a different order
#                      or an optimizer's first step after the resume is at a different position of its loader
# step after the save  an optimizer stepped while its loader was at the saved position
# other weights        at its first step, a launch had weights that are not in its checkpoint
# old weights          it had the weights of its checkpoint, but the baseline run had others
# other optimizer      it had a different optimizer state
# equal weights, equal optimizer  it had those of the baseline run, so no earlier bug has changed them
# learning rate        a learning rate in an optimizer's state differs as soon as anything does
# accumulation         in the baseline run, two or more batches were delivered between a save and the next step
# entry missing, added a list in a checkpoint is shorter or longer
# evaluation missing   steps are missing, but none of the loader with most steps
# scheduler, scaler    the counters in their states differ, and did not continue from the checkpoint's values
# generators           a global RNG that the script uses differs when the first batch after the resume is delivered
# generators of a rank the same on other ranks than rank 0 alone
# counter              an integer outside all of these differs, and did not continue from the checkpoint's value
# count apart          the same, but the optimizer's first steps after the resume are at the right position
# continued            a counter of a scheduler or an integer differs, but continued from the checkpoint's value
# other loop           the first batch after a resume went to another loop of the program than in the baseline run
# index                the program loops over it by `enumerate`, and a launch resumed within an epoch
# weights alone        no tensor in any checkpoint differs, but the final weights do, or those in a file at the end
# in place             a file was overwritten under the name that a later launch read
# first part, parts    the parts of a checkpoint that differ at the first step with a difference; exactly one, or more
#
# If no checkpoint differs, the files at the end are examined in the same way.


def find_signs(baseline: Attempt, attempts: Sequence[Attempt], violations: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the signs that are present, in words."""
    finders = (
        *(_signs_of_ranks, _signs_of_places, _signs_of_epochs, _signs_of_other_places, signs_of_counts),
        *(_signs_of_order, _signs_of_data, _signs_of_updates, _signs_of_first_batches, _signs_of_parts),
    )
    signs = dict(chain.from_iterable(finder(baseline, attempts) for finder in finders))
    if names := [name for name, over in find_in_place(baseline, attempts).items() if over]:
        signs["in place"] = ", ".join(sorted(names))
    alone = "the final weights do" if "same weights" in violations else _first_file(baseline, attempts)
    if alone and "compared" in signs and "tensors" not in signs:
        signs["weights alone"] = alone
    return signs


def _first_file(baseline: Attempt, attempts: Sequence[Attempt]) -> str:
    """Describe the first file with a tensor that differs, if there is one."""
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
                if by and 0 in steps_apart(baseline, attempts):
                    yield "count apart", f"{abs(by)} {'lower' if by > 0 else 'higher'}"
                else:
                    yield from _shifted(by)


def _shifted(by: int) -> Iterator[tuple[str, str]]:
    if by:
        yield ("place later" if by > 0 else "place earlier"), f"{abs(by)} batch{'es' * (abs(by) > 1)}"


def _signs_of_epochs(baseline: Attempt, attempts: Sequence[Attempt]) -> Iterator[tuple[str, str]]:
    main, lengths = main_of(baseline), lengths_of(baseline)
    if not any(key[0] == main and key[1].epoch > max(lengths) for attempt in attempts for key in steps_of(attempt)):
        return
    for _, log, healthy in _pairs(baseline, attempts):
        for save in log.resumed:
            ends = [place.epoch - 1 for place in healthy.held.get(save, ())[main : main + 1] if not place.step]
            parts = healthy.parts.get(save, [{}])[-1]
            counters = [path for path in sorted(parts) if [parts[path]] == [str(end) for end in ends]]
            yield from (("epoch ended", path) for path in counters if _counts_epochs(path, healthy, main))


def _counts_epochs(path: str, healthy: RankLog, main: int) -> bool:
    """Return whether a part of each checkpoint within an epoch is the number of that epoch."""
    within = {
        (str(place.epoch), healthy.parts[save][-1].get(path))
        for save, places in healthy.held.items()
        for place in places[main : main + 1]
        if place.step and healthy.parts.get(save)
    }
    return len(within) > 1 and all(number == text for number, text in within)


def _signs_of_other_places(_: Attempt, attempts: Sequence[Attempt]) -> Iterator[tuple[str, str]]:
    if found := first_elsewhere(attempts):
        yield "other place", str(found.start)


def _signs_of_order(_: Attempt, attempts: Sequence[Attempt]) -> Iterator[tuple[str, str]]:
    if any("this run has already saved or loaded a later" in attempt.output for attempt in attempts[1:]):
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
    main, lengths = main_of(baseline), lengths_of(baseline)
    remaining = find_remaining(baseline, attempts)
    lost = remaining.expected - remaining.found if remaining else 0
    for by in steps_apart(baseline, attempts):
        yield from _shifted(lost if lost * by > 0 else by)
    if remaining and not remaining.found:  # it did no step: was it already after the batch of the next one?
        began, stands = [log.loaded.get(main) for log in attempts[-1].ranks.values()], remaining.first.stands[main:]
        if began and began[0] and stands and ordinal(began[0], lengths) >= ordinal(stands[0], lengths):
            yield from _shifted(lost)
    for number, log, healthy in _pairs(baseline, attempts):
        for found in (one for one in log.updates if one.resumed):
            if (other := same_step(healthy, found)) is not None:
                if _is_between(other, healthy, main):
                    yield "step after the save", f"step {found.save[1]}"
                yield from _compare_updates(str(number), found, other, healthy)
        for other in (one for one in healthy.updates if not one.resumed):
            ends = other.stands[main : main + 1], healthy.held.get(other.save, ())[main : main + 1]
            if all(ends) and ordinal(ends[0][0], lengths) - ordinal(ends[1][0], lengths) > 1:
                yield "accumulation", f"step {other.save[1]}"


def _is_between(update: Update, healthy: RankLog, main: int) -> bool:
    """Return whether a checkpoint of the baseline run was saved after a batch, and before the step with its gradients.

    Its loader is then where it was saved, as after a save that follows the fetch of the next batch.
    """
    stands = update.stands[main : main + 1]
    return bool(stands) and stands[0] in healthy.held.get(update.save, ()) and not update.backward


def steps_apart(baseline: Attempt, attempts: Sequence[Attempt]) -> set[int]:
    """Return by how many batches the loader was apart at the first optimizer steps after a resume, with equal weights.

    The end of an epoch counts as a batch, because a loop that fetches ahead may have reached it. A save between a
    batch and its step is left out.
    """
    main, lengths, apart_by = main_of(baseline), lengths_of(baseline), set()

    def fetches(update: Update) -> int:
        place = update.stands[main]
        return ordinal(place, lengths) + sum(epoch < place.epoch for epoch in lengths)

    for _, log, healthy in _pairs(baseline, attempts):
        for found in (one for one in log.updates if one.resumed and len(one.stands) > main):
            other = same_step(healthy, found)
            if other is None or len(other.stands) <= main or found.weights != other.weights:
                continue
            if not _is_between(other, healthy, main):
                apart_by.add(fetches(found) - fetches(other))
    return apart_by


def _compare_updates(number: str, found: Update, expected: Update, healthy: RankLog) -> Iterator[tuple[str, str]]:
    if found.weights != expected.weights:
        texts = {text for parts in healthy.parts.get(found.save, ()) for text in parts.values()}
        yield ("old weights" if texts.issuperset(found.weights.values()) else "other weights"), number
    else:
        yield "equal weights", number
    yield ("equal optimizer" if _state(found) == _state(expected) else "other optimizer"), number


def _signs_of_first_batches(baseline: Attempt, attempts: Sequence[Attempt]) -> Iterator[tuple[str, str]]:
    """Compare the first batch of each resumed launch with its delivery in the baseline run: the loop, and the RNGs."""
    main = main_of(baseline)
    found: dict[int, set[str]] = {}
    for _, log, healthy in _pairs(baseline, attempts):
        first = next((key for key in log.batches if key[0] == main), None)
        if main not in log.loaded or first not in healthy.batches:
            continue
        (line, _), (other, _) = log.loops[first], healthy.loops[first]
        if line and other and line != other:
            yield "other loop", f"{line}, instead of {other}"
        for line, indexed in [one for key, one in log.loops.items() if key[0] == main]:
            if indexed and log.loaded[main].step > 0:
                yield "index", line
        changing = [states for key, states in healthy.drawn.items() if key[0] == main]
        for name, state in log.drawn[first].items():
            if state != healthy.drawn[first].get(name) and len({states.get(name) for states in changing}) > 1:
                found.setdefault(log.rank, set()).add(name)
    if found:
        names = ", ".join(sorted(set().union(*found.values())))
        yield ("generators", names) if 0 in found else ("generators of a rank", f"{names} of rank {min(found)}")


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
    values = _restored(baseline, attempts)
    seen: set[str] = set()
    for one in every:
        for path in [path for path in one.differing if path not in seen]:
            seen.add(path)
            yield from _signs_of_part(path, one, paths, values.get(one.start, {}))
    if (early := next((one for one in every if one.differing), None)) is not None:
        names = {split(path)[0] for path in early.differing}
        of = f" in {early.save[0]}" if early.step < 0 else ""
        at_once = {path for one in every if one.step == early.step for path in one.differing}
        rates = sorted(path for path in at_once if split(path)[-1] == "lr" and "param_groups" in split(path))
        yield from (("learning rate", path) for path in rates[:1])
        yield "first part" if len(names) == 1 else "first parts", few(sorted(names)) + of


def _signs_of_part(path: str, one: Compared, paths: set[str], restored: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the signs of a part at its first difference.

    Args:
        path: of the part.
        one: the save.
        paths: of all parts.
        restored: parts of the checkpoint from which its launch resumed.
    """
    found, expected = one.found.get(path, ""), one.expected[0].get(path, "")
    role = next((role for role in ("scheduler", "scaler") if first_of({path}, prefixes(paths, role))), "")
    is_counter = path in counters_of(paths, {path: found}) and bool(expected)
    if (is_counter or role == "scheduler") and _continued(found, restored.get(path, "")):
        yield "continued", f"{path} is {found}, but {expected} in the baseline run"
    elif role or is_counter:
        yield role or "counter", path
    if found and (by := _length(found) - _length(expected)):
        yield ("entry missing" if by < 0 else "entry added"), path


def _restored(baseline: Attempt, attempts: Sequence[Attempt]) -> dict[int, dict[str, str]]:
    """Return the parts of the checkpoint from which each launch resumed, for each number of a launch."""
    saves = saves_of(baseline)
    return {
        attempt.number: parts
        for attempt in attempts
        for log in attempt.ranks.values()
        for save in log.resumed
        for parts in saves.get(save, ())
    }


def _continued(found: str, restored: str) -> bool:
    """Return whether a whole number continued from its value in a checkpoint."""
    return found.isdecimal() and restored.isdecimal() and int(found) > int(restored)


def _has_tensors(every: Sequence[Compared]) -> bool:
    return any("]: " in text for one in every for path in one.differing for text in _texts(one, path))


def _texts(one: Compared, path: str) -> list[str]:
    return [one.found.get(path, ""), *(parts.get(path, "") for parts in one.expected)]


def _length(text: str) -> int:
    """Return the number of values in a list, from its text; 0 for anything else."""
    return int(text.split()[2].rstrip(":")) if text.startswith("list of ") else 0


# Whether a loader is earlier or later than the weights, in files that a script saves without CheckpointStore.
#
# The files contain no position of the loader to compare. But they contain counters: if a counter of a resumed launch
# has the value that it has in the baseline run at some step, the loader must have reached that step.


def signs_of_counts(baseline: Attempt, attempts: Sequence[Attempt]) -> Iterator[tuple[str, str]]:
    """Yield by how much the loader is earlier or later, if all counters agree.

    A counter that a resume did not restore lacks all steps of the earlier run, and says nothing about the loader.
    """
    resumed = {save[1] for attempt in attempts for log in attempt.ranks.values() for save in log.resumed}
    shifts = set(_shifts(baseline, attempts))
    by = min(shifts, key=abs, default=0)
    if all(by * shift > 0 for shift in shifts) and by not in resumed:
        yield from _shifted(by)


def _shifts(baseline: Attempt, attempts: Sequence[Attempt]) -> Iterator[int]:
    places = _places(baseline)
    for attempt in attempts[1:]:
        for (series, step), contents in saves_of(attempt).items():
            for path, text in (item for parts in contents for item in parts.items()):
                if (place := places.get((series, path), {}).get(text)) is not None:
                    yield step - place


def _places(baseline: Attempt) -> dict[tuple[str, str], dict[str, int]]:
    """Return the step at which each counter in the files has each value; counters grow from save to save."""
    files = {save[0] for log in baseline.ranks.values() for save in log.saves.values()}
    values: dict[tuple[str, str], dict[str, int]] = {}
    for (series, step), contents in sorted(saves_of(baseline).items(), key=lambda item: item[0][1]):
        if series in files:
            for path, text in contents[-1].items():
                if text.isdecimal():
                    values.setdefault((series, path), {}).setdefault(text, step)
    return {
        key: known
        for key, known in values.items()
        if len(known) > 1 and all(int(one) < int(other) for one, other in pairwise(known))
    }
