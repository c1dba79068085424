"""What the user asks for, checked: the command, the faults, and the numbers of ranks."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from resumable.chaos.plan import FAULTS
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resumable.chaos.plan import Survey

__all__ = ["check_amount", "check_kinds", "check_points", "check_words", "choose_kinds", "choose_ranks"]

_PROCESSES = re.compile(r"--nproc[-_]per[-_]node(=(?P<ranks>.*))?")


def check_words(command: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command, with torchrun's number of processes in one word.

    Raises:
        ConfigurationError: there are none, or the program is not there.
    """
    if isinstance(command, str) or not command:
        raise ConfigurationError(
            f"the command has to be a list of its words, but it is {command!r}.\nWrite it as in "
            'run(["python", "train.py"]), or after -- on the command line.'
        )
    words = [str(word) for word in command]
    program = shutil.which(words[0])
    if program is None:
        raise ConfigurationError(
            f"there is no program {words[0]!r}.\nThe command is started as it stands, without a shell. Check its "
            "spelling and PATH."
        )
    if os.sep in words[0]:  # a path from here, and the command may be started elsewhere
        words[0] = str(Path(program).absolute())
    for place in range(len(words) - 2, 0, -1):
        known = _PROCESSES.fullmatch(words[place])
        if known and known["ranks"] is None:
            words[place : place + 2] = [f"{words[place]}={words[place + 1]}"]
    return tuple(words)


def check_kinds(faults: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the kinds of faults, each once; nothing where None are named.

    Raises:
        ConfigurationError: the message says which ones there are.
    """
    if faults is None:
        return ()
    kinds = tuple(dict.fromkeys(faults.split(",") if isinstance(faults, str) else faults))
    if unknown := [str(kind) for kind in kinds if kind not in FAULTS]:
        raise ConfigurationError(f"there is no fault {', '.join(unknown)}.\nUse {', '.join(FAULTS)}.")
    if not kinds:
        raise ConfigurationError(f"no kind of fault is named, so nothing would be broken.\nUse {', '.join(FAULTS)}.")
    return kinds


def check_points(points: str | int | None, *, by_the_clock: bool) -> str | int:
    """Return "all", "auto", or the number of moments for each kind of fault.

    Raises:
        ConfigurationError: it is something else.
    """
    if points is None:
        return 0 if by_the_clock else "auto"
    if points == "all" or (isinstance(points, int) and not isinstance(points, bool) and points >= 0):
        return points
    raise ConfigurationError(
        f"points is {points!r}.\nIt says at how many moments each kind of fault happens: a whole number from 0, or "
        '"all" for every one. Left out, there are cases for some minutes.'
    )


def choose_kinds(kinds: tuple[str, ...], survey: Survey) -> tuple[str, ...]:
    """Return the kinds that were named; where none were, a kill of the training process, and one of a worker."""
    return kinds or (("kill", "worker-kill") if survey.worker_points else ("kill",))


def check_amount(name: str, value: float, least: float, *, whole: bool = True) -> None:
    """Refuse a number that is too small.

    Raises:
        ConfigurationError: the message has the value, and the least one.
    """
    fits = isinstance(value, int) if whole else isinstance(value, (int, float))
    if not fits or isinstance(value, bool) or not value >= least or (not whole and value <= 0):
        what = f"a whole number from {least}" if whole else "a number of seconds above 0"
        raise ConfigurationError(f"{name} is {value!r}.\nGive {what}.")


def choose_ranks(words: Sequence[str], ranks: int | None, resize: Sequence[int] | None) -> tuple[int, ...]:
    """Return the numbers of ranks to start with, in turn.

    Args:
        words: the command; where nothing else is said, it says the number itself.
        ranks: for every start.
        resize: for the first start, the second one and so on.

    Raises:
        ConfigurationError: they contradict each other, or the command cannot be told them.
    """
    chosen = _choose(words, ranks, resize)
    for number in chosen:
        check_amount("a number of ranks", number, 1)
    told = any("{ranks}" in word or _ranks_in(word) for word in words)
    if not told and set(chosen) != {1}:
        raise ConfigurationError(
            f"{max(chosen)} ranks are asked for, but nothing in the command says how many it starts.\nIt would start "
            "as many as ever. Use torchrun --nproc-per-node=N, or write {ranks} where the number belongs."
        )
    return chosen


def _choose(words: Sequence[str], ranks: int | None, resize: Sequence[int] | None) -> tuple[int, ...]:
    if resize is None:
        own = next((found for word in words if (found := _ranks_in(word))), 1)
        return (own if ranks is None else ranks,)
    if not resize or (ranks is not None and ranks != resize[0]):
        raise ConfigurationError(
            f"ranks is {ranks}, and resize is {list(resize)}.\nresize has the numbers of ranks of the starts in turn, "
            "the first of which is ranks. Give one of them, or the same number."
        )
    return tuple(resize)


def _ranks_in(word: str) -> int:
    """Return torchrun's number of processes, or 0 where a word does not say it."""
    known = _PROCESSES.fullmatch(word)
    return int(known["ranks"]) if known and (known["ranks"] or "").isdigit() else 0
