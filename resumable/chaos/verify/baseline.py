"""The common result of two baseline runs; only that can be expected from a run with faults."""

from __future__ import annotations

import re
import sys
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from resumable._content import UNCOMPARED, topmost
from resumable.chaos.digests import EXACT, SEPARATOR, without_digest
from resumable.chaos.inventory import SAMPLED
from resumable.chaos.verify.files import drop_unlike_files
from resumable.chaos.verify.history import how_data_differ, is_resized, saves_of, steps_of
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from resumable.chaos.ledger import Attempt, RankLog
    from resumable.chaos.verify.history import Key, Step


__all__ = [
    "Coverage",
    "check_healthy",
    "check_seen",
    "cover",
    "drop_what_differs",
    "forgive_rounding",
    "note_coverage",
    "note_read",
]


def drop_what_differs(baseline: Attempt, again: Attempt) -> list[str]:
    """Compare two baseline runs, and drop everything that differs; the checks then expect only the rest.

    Returns:
        The differences in words: parts of the checkpoints, files, and the final weights.

    Raises:
        ConfigurationError: they trained on different data.
    """
    forgive_rounding(baseline, [again])
    first, second = steps_of(baseline), steps_of(again)
    if first != second:
        keys = sorted(first.keys() | second.keys())
        place = next(key[1] for key in keys if first.get(key) != second.get(key))
        raise ConfigurationError(
            f"two runs without faults trained on different data, first before {place}.\nThe effects of a crash could "
            f"not be distinguished: {_why_other_data(first, second)}. Seed every loader and every source of randomness."
        )
    notes = _drop_parts(baseline, again) + drop_unlike_files(baseline, again)
    for rank, log in baseline.ranks.items():
        if log.weights != again.ranks[rank].weights:
            log.weights = None
            notes.append("the final weights differ between two baseline runs, and are not compared")
    return sorted(set(notes))


def _why_other_data(first: dict[Key, Step], second: dict[Key, Step]) -> str:
    """Describe the probable difference between the runs."""
    both = first.keys() & second.keys()
    kinds = {kind for key in both if (kind := how_data_differ(second[key], first[key], first))}
    if not kinds:
        return "they trained on a different number of steps"
    if kinds == {"other content"}:
        return "equal indices have different content, as with an unseeded random transform"
    return (
        "the same samples arrive in a different order, as with os.listdir, a set, or an unseeded shuffle of a list"
        if {digest for step in first.values() for digest in step.digests}.issuperset(
            digest for step in second.values() for digest in step.digests
        )
        else "the samples differ"
    )


def _drop_parts(baseline: Attempt, again: Attempt) -> list[str]:
    """Keep the parts of checkpoints that are the same in all common steps, also in steps that only one run saved."""
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
        *(f"'{name}' in the checkpoints differs between two baseline runs, and is not compared" for name in names),
        *(f"'{path}' in the checkpoints is {text}" for (_, path), text in unread.items()),
        *(f"two baseline runs saved no common step to {store}, so its content is not compared" for store in stores),
    ]


# Requirements on the baseline runs of a command, without which crashing it proves nothing.


def check_healthy(attempt: Attempt, directory: Path) -> None:
    """Verify that a baseline run finished, and trained.

    Raises:
        ConfigurationError: it did not; the message describes the failure.
    """
    if attempt.status != 0 or attempt.killed:
        how = attempt.killed or f"its exit status is {attempt.status}"
        missing = "No module named" in attempt.output
        fix = f"\nIf that module is installed for {sys.executable}, start the command with it." if missing else ""
        raise ConfigurationError(
            f"the command fails without faults: {how}.\nThe effects of a crash could not be distinguished. It ran in "
            f"{directory}/work, which mirrors the current directory. The end of its output:\n{attempt.output}{fix}"
        )
    if not any(log.batches for log in attempt.ranks.values()):
        raise ConfigurationError(_why_nothing_was_trained(attempt))


def _why_nothing_was_trained(attempt: Attempt) -> str:
    logs = attempt.ranks.values()
    said = "the command trained on no batch of a resumable loader"
    if not any(log.wrapped for log in logs):
        return (
            f"{said}.\nThere is nothing to test. Wrap its loader with resumable.wrap(...), and run this command in the "
            "Python environment in which resumable is installed."
        )
    if attempt.read or any(log.loaded for log in logs):
        of = f", from {', '.join(sorted(attempt.read))}" if attempt.read else ""
        return (
            f"{said}: it resumed a finished run{of}.\nNothing is left to test. Use a relative checkpoint path, "
            "which leads into the case, or {dir}; or train for more epochs."
        )
    return (
        f"{said}, although it created one.\nThere is nothing to test. The script must train through the Loader: it may "
        "have decided without the loader's state that all epochs are done, or trained on the object that was wrapped."
    )


def check_seen(leader: RankLog, ranks: tuple[int, ...]) -> list[str]:
    """Report damage that these runs cannot show.

    Raises:
        ConfigurationError: they can show none.
    """
    passed, notes = set(leader.points), []
    takes, shows = (
        passed & {"loader.state", "lightning.save"},
        passed & {"store.save", "torch.save.written", "lightning.end", "chaos.weights"},
    )
    if not takes and not shows:
        raise ConfigurationError(
            "the command never saves the state of its loader.\nEvery launch would start with the first batch and train "
            "again on batches that are already in the weights, which would go unnoticed here. Save loader.state_dict() "
            "with the model, and load it with the model."
        )
    if not takes:
        notes.append(
            "the state of no loader was saved, so every launch starts with the first batch: a script that saves its "
            "weights must save loader.state_dict() with them"
        )
    if leader.lost:
        notes.append(
            "weights are entirely NaN in the baseline run, so comparing them proves nothing: train with a smaller "
            "learning rate"
        )
    if len(set(ranks)) > 1:
        notes.append(
            "weights are not compared after a change of the number of ranks, because rounding depends on the number"
        )
    return notes


def note_read(paths: set[str]) -> list[str]:
    """List the files that a command read outside its cases with `torch.load`."""
    return [f"read from outside the cases: {path}" for path in sorted(paths)]


# The parts of a run that were compared, and those that were not.

_NUMBERS = re.compile(r"(?:b?float\w+|complex\w+)\[([\d, ]*)\]: ")
_ONE = re.compile(r"\S+ (?:b?float|complex)\w+")
_SIZE = re.compile(r"(\d+) bytes: ")
_HALF = 2  # half of a model is enough: parts may be shared, or be on other ranks


class Coverage(NamedTuple):
    """The extent of a comparison.

    Args:
        compared: in words.
        missing: what was not compared, and why, in words.
        model: whether part of the model was compared; None if no PyTorch model is trained.
    """

    compared: tuple[str, ...]
    missing: tuple[str, ...]
    model: bool | None

    def __str__(self) -> str:
        missing = f" Not compared: {'; '.join(self.missing)}." if self.missing else ""
        return f"Compared: {'; '.join(self.compared)}.{missing}"


def cover(baseline: Attempt, saves: tuple[int, int] | None = None, unseen: frozenset[str] = frozenset()) -> Coverage:
    """Describe what was compared.

    Args:
        baseline: the baseline run, without the differences between two such runs.
        saves: number of checkpoints that were compared, and of those that no baseline run has; None without a case.
        unseen: files that were not compared in any case.
    """
    logs = baseline.ranks.values()
    stores = {store for (store, _), contents in saves_of(baseline).items() if any(contents)}
    written = {root for log in logs for root, _ in log.saved}
    weights = any(log.weights for log in logs)
    files = {
        name: parts for name, parts in (baseline.left.files if baseline.left else {}).items() if name not in unseen
    }
    checkpoints = bool(stores) and (saves is None or saves[0] > 0)
    saved = stores & {series for log in logs for series, _ in log.saves.values()}  # single files
    compared = [_name_data(baseline)]
    compared += [_count(len(stores - saved), "checkpoints of {} store")] * (checkpoints and stores > saved)
    compared += [_count(len(saved), "every save to {} file")] * (checkpoints and bool(saved))
    compared += ["the final weights"] * weights + [_count(len(files), "{} file at the end")] * bool(files)
    missing = list(_name_saves(len(written - {None}) - len(stores - saved), saves))
    large = [name for name, parts in files.items() if SAMPLED in parts]
    missing += [f"most bytes of {', '.join(sorted(large))} (larger than 1 GB)"] * bool(large)
    elements = max((log.trains for log in logs if log.trains is not None), default=None)
    if elements is None:
        return Coverage(tuple(compared), tuple(missing), None)
    contents = [_join(parts for many in saves_of(baseline).values() for parts in many)] if checkpoints else []
    texts = [text for parts in (*contents, *files.values()) for text in parts.values()]
    if not weights and not _holds(texts, elements):
        missing.insert(0, "the weights (nothing that was compared contains them)")
        return Coverage(tuple(compared), tuple(missing), model=False)
    return Coverage(tuple(compared), tuple(missing), model=True)


def note_coverage(found: Coverage) -> list[str]:
    """Explain how the weights could be compared, if they are not."""
    if found.model is None and len(found.compared) > 1:
        return []
    which = "only the data is compared" if found.model is None else "the weights are not compared"
    ways = "save them with CheckpointStore, leave a file with them, or call resumable.chaos.record_weights(model)"
    return [f"{which}: {ways} at the end of the script"] if not found.model else []


def _name_data(baseline: Attempt) -> str:
    loaders = {loader for log in baseline.ranks.values() for loader, _ in log.trained()}
    return _count(len(loaders), "order and batches of {} loader")


def _count(number: int, words: str) -> str:
    """Insert a number into words, with its noun in the plural if necessary."""
    before, after = words.split("{}")
    noun, _, rest = after.strip().partition(" ")
    return f"{before}{number} {noun}{'s' * (number != 1)}{f' {rest}' * bool(rest)}"


def _name_saves(unlike: int, saves: tuple[int, int] | None) -> Iterator[str]:
    if unlike > 0:
        yield _count(unlike, "the checkpoints of {} store") + " (two baseline runs have no common step)"
    elif saves and saves[1]:
        yield f"{saves[1]} of {sum(saves)} checkpoints (no baseline run saved at their step)"


def _join(contents: Iterable[dict[str, str]]) -> dict[str, str]:
    return {path: text for parts in contents for path, text in parts.items()}


def _holds(texts: Iterable[str], elements: int) -> bool:
    """Return whether parts contain as many numbers as half of a model, or as many bytes for files of unknown kind."""
    held = sum(map(_size_of, texts))
    return held > 0 and _HALF * held >= elements


def _size_of(text: str) -> int:
    if found := _NUMBERS.match(text):
        return prod(int(number) for number in found[1].split(",") if number.strip())
    if _ONE.fullmatch(text):
        return 1
    found = _SIZE.match(text)
    return int(found[1]) // _HALF if found else 0


# Above two ranks, weights are equal up to rounding: texts that differ only by rounding are replaced with the texts of
# the baseline run. Everything afterwards can then compare exactly. Data is always compared exactly.

TOLERANCE = 1e-4  # of a tensor's norm: observed were 1e-8 for rounding, and 1e-2 for a lost momentum


def forgive_rounding(baseline: Attempt, attempts: Sequence[Attempt]) -> None:
    """Replace texts that differ from the baseline run only by rounding with the texts of the baseline run."""
    if max((log.world for log in baseline.ranks.values()), default=1) <= EXACT:
        return
    saves = saves_of(baseline)
    updates = {(one.save, one.optimizer): one for log in baseline.ranks.values() for one in log.updates}
    weights = {log.weights for log in baseline.ranks.values() if log.weights}
    for log in (log for one in attempts if not is_resized(one, baseline) for log in one.ranks.values()):
        log.weights = log.weights and _known(log.weights, weights)
        for save in log.parts.keys() & saves.keys():
            for parts in log.parts[save]:
                _forgive(parts, saves[save])
        for update in log.updates:
            if known := updates.get((update.save, update.optimizer)):
                _forgive(update.weights, [known.weights])
                _forgive(update.state, [known.state])
    if attempts and not is_resized(attempts[-1], baseline) and (left := attempts[-1].left) and baseline.left:
        for name, parts in left.files.items():
            _forgive(parts, [baseline.left.files.get(name, {})])


def _forgive(parts: dict[str, str], known: Sequence[dict[str, str]]) -> None:
    for path, text in parts.items():
        parts[path] = _known(text, (other[path] for other in known if path in other))


def _known(text: str, expected: Iterable[str]) -> str:
    """Return the text of the baseline run that equals this one up to rounding, else this one."""
    return next((other for other in expected if _is_close(text, other)), text)


def _is_close(text: str, other: str) -> bool:
    sketches, its_sketches = (one.split(SEPARATOR)[1:] for one in (text, other))
    alike = without_digest(text) == without_digest(other) and len(sketches) == len(its_sketches)
    return alike and all(map(_are_close, sketches, its_sketches))


def _are_close(sketch: str, other: str) -> bool:
    one, two = ([float(number) for number in text.split(",")] for text in (sketch, other))
    allowed = TOLERANCE * max(one[0], two[0])  # the norms
    return sketch == other or all(abs(number - its) <= allowed for number, its in zip(one, two, strict=True))
