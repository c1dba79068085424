"""What two baseline runs have in common: only that can be expected of a run that was broken."""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from resumable._content import UNCOMPARED, topmost
from resumable.chaos.digests import EXACT, SEPARATOR, without_digest
from resumable.chaos.launch.inventory import SAMPLED
from resumable.chaos.verify.files import drop_unlike_files
from resumable.chaos.verify.history import how_data_differ, is_resized, saves_of, steps_of
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from resumable.chaos.recorder.ledger import Attempt, RankLog
    from resumable.chaos.verify.history import Key, Step


__all__ = [
    "Coverage",
    "check_healthy",
    "check_seen",
    "cover",
    "drop_what_differs",
    "forgive_rounding",
    "note_coverage",
    "note_outside",
]


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


# What the baseline runs of a command have to show, so that crashing it can prove something.


def check_healthy(attempt: Attempt, directory: Path) -> None:
    """See that a baseline run came to its end, and trained.

    Raises:
        ConfigurationError: it did not; the message says what it did.
    """
    if attempt.status != 0 or attempt.killed:
        how = attempt.killed or f"its exit status is {attempt.status}"
        raise ConfigurationError(
            f"the command fails without any fault: {how}.\nNothing can be learnt from crashing it. It ran in "
            f"{directory}/work, unless {{dir}} is in the command{_redirected(attempt)}; its last words:\n"
            f"{attempt.output}"
        )
    if not any(log.batches for log in attempt.ranks.values()):
        raise ConfigurationError(_why_nothing_was_trained(attempt))


def _redirected(attempt: Attempt) -> str:
    if not attempt.written:
        return ""
    return (
        f". What it wrote to {', '.join(topmost_folders(attempt.written))} was redirected into the run's directory, "
        "where programs and libraries that are no Python do not look for it"
    )


def _why_nothing_was_trained(attempt: Attempt) -> str:
    logs = attempt.ranks.values()
    said = "the command trained on no batch of a resumable loader"
    if not any(log.wrapped for log in logs):
        return (
            f"{said}.\nThere is nothing to watch. Wrap its loader with resumable.wrap(...), and run this with the "
            "Python that has resumable installed."
        )
    if attempt.read or any(log.loaded for log in logs):
        of = f", from {', '.join(sorted(attempt.read))}" if attempt.read else ""
        return (
            f"{said}: it resumed a finished run{of}.\nNothing is left to be broken. Give the checkpoints a relative "
            "path, which leads to a fresh directory, or {dir}; or let it train for more epochs."
        )
    return (
        f"{said}, though it made one.\nThere is nothing to watch. Let the script train: it may have found by other "
        "means than a loader's state that all epochs are done, or trained on what was wrapped and not on the Loader."
    )


def check_seen(leader: RankLog, ranks: tuple[int, ...]) -> list[str]:
    """Say what of a crash's damage these runs cannot show.

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
            "the command never takes the state of its loader.\nEvery start would begin with the first batch, and what "
            "earlier starts left in the weights would be trained on twice, which nothing here could see. Save "
            "loader.state_dict() with the model, and load it with the model."
        )
    if not takes:
        notes.append(
            "the state of no loader was ever taken, so that every start begins with the first batch: a script that "
            "saves its weights has to save loader.state_dict() with them"
        )
    if leader.lost:
        notes.append(
            "weights are NaN throughout in the baseline run, and then they are the same whatever was lost: let the "
            "script train with a smaller learning rate"
        )
    if len(set(ranks)) > 1:
        notes.append(
            "after a change of the number of ranks the weights are not compared, as sums are rounded in another order"
        )
    return notes


def note_outside(written: set[str], read: set[str]) -> list[str]:
    """Say what a command wrote and read outside of its directory."""
    return [
        *(
            f"written outside of the run's directory, and redirected into it: {path}"
            for path in topmost_folders(written)
        ),
        *(f"read from outside of the run's directory: {path}" for path in sorted(read)),
    ]


def topmost_folders(paths: set[str]) -> list[str]:
    """Return the paths that are below no other one, in order."""
    return sorted(
        path for path in paths if not any(path.startswith(f"{other.rstrip('/')}/") for other in paths - {path})
    )


# What the runs of a command leave to compare, and what they do not.

_NUMBERS = re.compile(r"(?:b?float\w+|complex\w+)\[([\d, ]*)\]: ")
_ONE = re.compile(r"\S+ (?:b?float|complex)\w+")
_SIZE = re.compile(r"(\d+) bytes: ")
_HALF = 2  # of a model is enough: others may be shared, or held by other ranks


class Coverage(NamedTuple):
    """What was compared.

    Args:
        compared: in words.
        missing: what was not, and why, in words.
        model: whether something of the model was compared; None where torch trains nothing.
    """

    compared: tuple[str, ...]
    missing: tuple[str, ...]
    model: bool | None

    def __str__(self) -> str:
        missing = f" Not compared: {'; '.join(self.missing)}." if self.missing else ""
        return f"Compared: {'; '.join(self.compared)}.{missing}"


def cover(baseline: Attempt, saves: tuple[int, int] | None = None, unseen: frozenset[str] = frozenset()) -> Coverage:
    """Say what was compared.

    Args:
        baseline: the run that is compared with, without what is not the same in two of them.
        saves: number of the checkpoints that were compared, and of those that no baseline run has; None for no case.
        unseen: files that were compared in no case.
    """
    logs = baseline.ranks.values()
    stores = {store for (store, _), contents in saves_of(baseline).items() if any(contents)}
    written = {root for log in logs for root, _ in log.saved}
    weights = any(log.weights for log in logs)
    files = {
        name: parts for name, parts in (baseline.left.files if baseline.left else {}).items() if name not in unseen
    }
    checkpoints = bool(stores) and (saves is None or saves[0] > 0)
    saved = stores & {series for log in logs for series, _ in log.saves.values()}  # files, save by save
    compared = [_name_data(baseline)]
    compared += [_count(len(stores - saved), "checkpoints of {} store")] * (checkpoints and stores > saved)
    compared += [_count(len(saved), "what was saved to {} file")] * (checkpoints and bool(saved))
    compared += ["the final weights"] * weights + [_count(len(files), "{} file at the end")] * bool(files)
    missing = list(_name_saves(len(written - {None}) - len(stores - saved), saves))
    large = [name for name, parts in files.items() if SAMPLED in parts]
    missing += [f"most bytes of {', '.join(sorted(large))} (more than 1 GB)"] * bool(large)
    elements = max((log.trains for log in logs if log.trains is not None), default=None)
    if elements is None:
        return Coverage(tuple(compared), tuple(missing), None)
    contents = [_join(parts for many in saves_of(baseline).values() for parts in many)] if checkpoints else []
    texts = [text for parts in (*contents, *files.values()) for text in parts.values()]
    if not weights and not _holds(texts, elements):
        missing.insert(0, "the weights (nothing that was compared holds them)")
        return Coverage(tuple(compared), tuple(missing), model=False)
    return Coverage(tuple(compared), tuple(missing), model=True)


def note_coverage(found: Coverage) -> list[str]:
    """Say how the weights would be compared, where they are not."""
    if found.model is None and len(found.compared) > 1:
        return []
    which = "only the data are compared" if found.model is None else "the weights are not compared"
    ways = "save them with CheckpointStore, leave a file with them, or call resumable.chaos.record_weights(model)"
    return [f"{which}: {ways} at the end of the script"] if not found.model else []


def _name_data(baseline: Attempt) -> str:
    loaders = {loader for log in baseline.ranks.values() for loader, _ in log.trained()}
    return _count(len(loaders), "order and batches of {} loader")


def _count(number: int, words: str) -> str:
    """Put a number and its noun into words, in the plural where that is called for."""
    before, after = words.split("{}")
    noun, _, rest = after.strip().partition(" ")
    return f"{before}{number} {noun}{'s' * (number != 1)}{f' {rest}' * bool(rest)}"


def _name_saves(unlike: int, saves: tuple[int, int] | None) -> Iterator[str]:
    if unlike > 0:
        yield _count(unlike, "the checkpoints of {} store") + " (two baseline runs have none in common)"
    elif saves and saves[1]:
        yield f"{saves[1]} of {sum(saves)} checkpoints (no baseline run saved one at their step)"


def _join(contents: Iterable[dict[str, str]]) -> dict[str, str]:
    return {path: text for parts in contents for path, text in parts.items()}


def _holds(texts: Iterable[str], elements: int) -> bool:
    """Return whether parts hold as many numbers as half of a model; a file of unknown kind, as many bytes."""
    held = sum(map(_size_of, texts))
    return held > 0 and _HALF * held >= elements


def _size_of(text: str) -> int:
    if found := _NUMBERS.match(text):
        return prod(int(number) for number in found[1].split(",") if number.strip())
    if _ONE.fullmatch(text):
        return 1
    found = _SIZE.match(text)
    return int(found[1]) // _HALF if found else 0


# Above two ranks, weights are equal up to rounding: texts that differ by no more are made those of the baseline run.
#
# So everything that compares afterwards can compare exactly. Data are compared exactly with any number of ranks.

TOLERANCE = 1e-4  # of a tensor's norm: rounding was seen to make 1e-8, and a momentum that is lost 1e-2


def forgive_rounding(baseline: Attempt, attempts: Sequence[Attempt]) -> None:
    """Give what differs from the baseline run by rounding alone the texts that it has there."""
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
    """Return the text of the baseline run that this one equals up to rounding; itself where there is none."""
    return next((other for other in expected if _is_close(text, other)), text)


def _is_close(text: str, other: str) -> bool:
    sketches, its_sketches = (one.split(SEPARATOR)[1:] for one in (text, other))
    alike = without_digest(text) == without_digest(other) and len(sketches) == len(its_sketches)
    return alike and all(map(_are_close, sketches, its_sketches))


def _are_close(sketch: str, other: str) -> bool:
    one, two = ([float(number) for number in text.split(",")] for text in (sketch, other))
    allowed = TOLERANCE * max(one[0], two[0])  # the norms
    return sketch == other or all(abs(number - its) <= allowed for number, its in zip(one, two, strict=True))
