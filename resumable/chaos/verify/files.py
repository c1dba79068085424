"""Compares the files at the end of a run with the baseline run's."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING

from resumable._content import UNCOMPARED, compare, split, topmost
from resumable.chaos.inventory import CHECKPOINTS, CURSOR
from resumable.chaos.verify.history import Compared, is_resized
from resumable.checkpoint.steps import DIRECTORY, TOKEN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from resumable.chaos.ledger import Attempt, Left
    from resumable.chaos.plan import Case


__all__ = [
    "compare_files",
    "describe_files",
    "drop_unlike_files",
    "few",
    "find_elsewhere",
    "find_extra",
    "find_in_place",
    "find_single",
    "find_survived",
    "note_files",
    "same_files",
]


_END = -1  # the step of files that are compared at the end
_SHOWN = 5  # names in a list
_NUMBER = re.compile(r"\d+")


def compare_files(baseline: Attempt, attempts: Sequence[Attempt]) -> Iterator[Compared]:
    """Yield the files at the end of the last launch and of the baseline run; none after a change of the ranks.

    A file with the state of a loader is a checkpoint. It is skipped if its position differs. So are values of logs that
    the last launch wrote only once, which may be averages over its own steps.
    """
    left, expected = attempts[-1].left if attempts else None, baseline.left
    if left is None or expected is None:
        return
    elsewhere = find_elsewhere(baseline, attempts)
    for name, parts in expected.files.items():
        if name in elsewhere:
            continue
        if name in left.files:
            single = set(_single_differences(name, left, expected))
            kept = {path: text for path, text in parts.items() if path not in single}
            known = {path: text for path, text in left.files[name].items() if path in kept}
            yield Compared(attempts[-1].number, (name, _END), known, [kept])
        elif name not in {*left.damaged, *left.records}:
            yield Compared(attempts[-1].number, (name, _END), {}, [parts])


def _single_differences(name: str, left: Left, expected: Left) -> Iterator[str]:
    """Yield the paths of the values of a log that differ, and that the last launch wrote at most once."""
    single = set(left.single.get(name, ()))
    for path, text in expected.files[name].items() if single else ():
        if split(path)[0].strip('"') in single and left.files[name].get(path) != text:
            yield path


def find_single(baseline: Attempt, attempts: Sequence[Attempt]) -> frozenset[str]:
    """Return the values of logs that differ but do not count, because the last launch wrote them once, in words."""
    left, expected = attempts[-1].left if attempts else None, baseline.left
    if left is None or expected is None or any(is_resized(attempt, baseline) for attempt in attempts):
        return frozenset()
    return frozenset(
        f"'{path}' in {name}"
        for name in left.files.keys() & expected.files.keys()
        for path in _single_differences(name, left, expected)
    )


def file_differences(baseline: Attempt, attempts: Sequence[Attempt]) -> Iterator[tuple[str, str]]:
    """Yield the name of each file that differs, and each difference in it."""
    for one in compare_files(baseline, attempts):
        name = one.save[0]
        if not one.found:
            yield name, f"{name} is missing"
            continue
        for path, expected, found in sorted(compare(one.expected[0], one.found)):
            yield name, f"'{path}' in {name} differs: {found or 'nothing'}, but {expected} in the baseline run"


def describe_files(baseline: Attempt, attempts: Sequence[Attempt]) -> tuple[list[str], list[str]]:
    """Return the names of the files that differ, and each with its topmost parts that differ."""
    names, texts = [], []
    for one in compare_files(baseline, attempts):
        if differing := one.differing:
            names.append(one.save[0])
            parts = few(sorted(topmost(differing, one.expected[0]))) if one.found else "missing"
            texts.append(f"{one.save[0]} ({parts})")
    return names, texts


def same_files(_: Case, baseline: Attempt, attempts: Sequence[Attempt]) -> str:
    """The files at the end have the same content as in the baseline run."""
    if attempts[-1].status != 0 or attempts[-1].killed:
        return ""  # it did not finish
    found = list(file_differences(baseline, attempts))
    if not found:
        return ""
    names = {name for name, _ in found}
    parts = f"{len(found) - 1} more part{'s' * (len(found) > 2)}"  # noqa: PLR2004  # two differences are one more
    of = f" of {len(names)} files" if len(names) > 1 else ""
    ignored = " ".join(f"--ignore {shlex.quote(name)}" for name in sorted(names)[:_SHOWN])
    also = f"; so do {parts}{of}" if len(found) > 1 else ""
    return f"{found[0][1]}{also}; if it may differ: {ignored}"


def find_extra(baseline: Attempt, attempts: Sequence[Attempt]) -> frozenset[str]:
    """Return the files that the baseline run does not have, except those with a different name in each run."""
    left, expected = attempts[-1].left if attempts else None, baseline.left
    if left is None or expected is None:
        return frozenset()
    return frozenset(
        name
        for name in left.files
        if name not in {*expected.files, *expected.records} and _without_numbers(name) not in expected.unlike
    )


def find_elsewhere(baseline: Attempt, attempts: Sequence[Attempt]) -> frozenset[str]:
    """Return the files from a different step than in the baseline run; with a different number of ranks, all files.

    These are files with the state of a loader at a different position, and files that the baseline run saved with a
    step or epoch number at which no launch saved, while it saved at others, as scripts that save by time do.
    """
    left, expected = attempts[-1].left if attempts else None, baseline.left
    if left is None or expected is None:
        return frozenset()
    if any(is_resized(attempt, baseline) for attempt in attempts):
        return frozenset(expected.files)
    both = left.files.keys() & expected.files.keys()
    moved = {name for name in both if _place_of(left.files[name]) != _place_of(expected.files[name])}
    return frozenset(moved) | (_saved_under_numbers(baseline, attempts) & (expected.files.keys() - left.files.keys()))


def _saved_under_numbers(baseline: Attempt, attempts: Sequence[Attempt]) -> set[str]:
    """Return names that only the baseline run saved, and that differ from a saved name only by numbers."""
    before = {name for log in baseline.ranks.values() for name in log.saves}
    saved = {name for attempt in attempts for log in attempt.ranks.values() for name in log.saves}
    forms = set(map(_without_numbers, saved))
    return {name for name in before - saved if _without_numbers(name) != name and _without_numbers(name) in forms}


def _place_of(parts: Mapping[str, str]) -> dict[str, str]:
    """Return the positions of the loaders with states in a file."""
    return {path: text for path, text in parts.items() if CURSOR in path.split(".")[:-1]}


def drop_unlike_files(baseline: Attempt, again: Attempt) -> list[str]:
    """Keep the files and parts that two baseline runs have in common.

    Returns:
        The differences, in words.
    """
    first, second = baseline.left, again.left
    if first is None or second is None:
        return []
    records = {*first.records, *second.records}
    alone = (first.files.keys() ^ second.files.keys()) - records
    kept: dict[str, dict[str, str]] = {}
    notes = []
    for name in first.files.keys() & second.files.keys():
        one, other = first.files[name], second.files[name]
        same = _place_of(one) == _place_of(other)
        kept[name] = {path: text for path, text in one.items() if same and other.get(path) == text}
        for path in [path for path, text in kept[name].items() if text.startswith(UNCOMPARED)]:
            notes.append(f"'{path}' in the file {name} is {kept[name].pop(path)}")
            one, other = ({key: text for key, text in parts.items() if key != path} for parts in (one, other))
        if unlike := {**one, **other}.keys() - kept[name].keys():
            notes.append(_note_unlike(name, topmost(unlike, {**one, **other}) if kept[name] else []))
    if alone:
        notes.append(
            f"only one of two baseline runs left {few(sorted(alone))}: the content of such files is not compared"
        )
    baseline.left = first._replace(
        files={name: parts for name, parts in sorted(kept.items()) if parts},
        unlike=tuple({_without_numbers(name) for name in {*alone, *kept} if not kept.get(name)}),
        records=tuple(sorted(records)),
    )
    return sorted(notes)


def _note_unlike(name: str, paths: Sequence[str]) -> str:
    what = f"{few(sorted(paths), quoted=True)} in the file {name}" if paths else f"the file {name}"
    differ, are = ("differ", "are") if len(paths) > 1 else ("differs", "is")
    return f"{what} {differ} between two baseline runs, and {are} not compared"


def _without_numbers(name: str) -> str:
    return _NUMBER.sub("#", name)


def few(names: Iterable[str], *, quoted: bool = False) -> str:
    """List the first names in a line, and the number of the others."""
    every = [f"'{name}'" if quoted else name for name in names]
    return ", ".join(every[:_SHOWN]) + (f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else "")


def note_files(
    baseline: Left | None,
    extra: Mapping[str, int],
    elsewhere: Mapping[str, int],
    single: Mapping[str, int],
    ignore: Sequence[str],
) -> list[str]:
    """Report the files that were left out, and those that only the runs with faults have.

    Args:
        baseline: the files of the baseline run.
        extra: names of files that it does not have, with the number of cases that do.
        elsewhere: names of checkpoints from a different step, or of files from other ranks, with the number of cases.
        single: values of logs that differ but do not count, with the number of cases.
        ignore: patterns that the user passed.
    """
    notes = []
    if elsewhere:
        notes.append(
            f"files from a different step than in the baseline run, or from a different number of ranks, are not "
            f"compared, in {_cases(max(elsewhere.values()))}: {few(sorted(elsewhere))}"
        )
    if single:
        notes.append(
            "values that differ, and that the last launch wrote only once, may be averages over its own steps, and "
            f"are not compared, in {_cases(max(single.values()))}: {few(sorted(single))}"
        )
    if baseline is not None and ignore:
        patterns = " ".join(f"--ignore {glob}" for glob in ignore)
        what = f"{few(sorted(baseline.ignored))}" if baseline.ignored else "no file of the baseline run"
        notes.append(f"left out with {patterns}: {what}")
    if baseline is not None and baseline.records:
        notes.append(f"files that were opened to append only record, and are not compared: {few(baseline.records)}")
    if extra:
        notes.append(
            f"files that the baseline run does not have, and that are not compared, in "
            f"{_cases(max(extra.values()))}: {few(sorted(extra))}"
        )
    return notes


def _cases(count: int) -> str:
    return f"{count} case{'s' * (count > 1)}"


# Checkpoints that a kill during a save destroys: they are written under the name that the next launch reads.

# Suffixes of files that may hold a state, if a function other than `torch.save` wrote them; no logs and no tables.
_STATES = {*CHECKPOINTS, ".json", ".msgpack", ".state"}


def find_in_place(baseline: Attempt, attempts: Sequence[Attempt]) -> dict[str, bool]:
    """Find the checkpoints that a launch wrote in place, and a later launch read before writing them.

    Returns:
        By path in the case, whether an older content is lost; otherwise each save has a separate name.
    """
    found: dict[str, bool] = {}
    written = {name for name, one in baseline.in_place.items() if one.over}
    earlier: set[str] = set()
    for attempt in attempts:
        for name, when in attempt.read_in_place.items():
            own = attempt.in_place.get(name)
            if name in earlier and (own is None or when < own.first) and _is_checkpoint(name, baseline, *attempts):
                found[name] = name in written
        earlier |= attempt.in_place.keys()
        written |= {name for name, one in attempt.in_place.items() if one.over}
    return found


def _is_checkpoint(name: str, *attempts: Attempt) -> bool:
    if DIRECTORY.fullmatch(PurePath(name).parent.name):  # of a CheckpointStore, which reads only committed files
        return False
    if PurePath(name).name == TOKEN:  # identifies the writer
        return False
    saved = any(name in log.saves for attempt in attempts for log in attempt.ranks.values())
    return saved or PurePath(name).suffix in _STATES


def find_survived(attempts: Sequence[Attempt]) -> set[str]:
    """Find the files half-written in one launch, if the next one resumed from another checkpoint and finished.

    It either read such a file and used a different file, or wrote it again.
    """
    if attempts[-1].status != 0 or attempts[-1].killed:
        return set()
    return {
        log.half
        for one, after in pairwise(attempts)
        for log in one.ranks.values()
        if one.fired
        and log.half in (after.read_in_place.keys() | after.in_place.keys())
        and any(other.loaded for other in after.ranks.values())
    }
