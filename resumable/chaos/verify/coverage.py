"""What the runs of a command leave to compare, and what they do not."""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from resumable.chaos.launch.contents import SAMPLED
from resumable.chaos.verify.parts import saves_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from resumable.chaos.recorder.attempts import Attempt

__all__ = ["Coverage", "cover", "note_coverage"]

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
