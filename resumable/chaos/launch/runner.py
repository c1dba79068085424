"""Runs one case: starts the command, lets its fault happen, and starts it again until it comes to its end."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from resumable.chaos.launch.inventory import changed, stamps, take_inventory
from resumable.chaos.launch.processes import Group
from resumable.chaos.launch.ranks import SURVIVE, environment_of_agents, wait_for_the_dead
from resumable.chaos.launch.storage import DAMAGES, MARRING
from resumable.chaos.launch.stores import find_unloadable
from resumable.chaos.plan import FAULTS
from resumable.chaos.recorder import overlay
from resumable.chaos.recorder.attempts import Attempt, read_attempts
from resumable.chaos.recorder.digest import EXACT
from resumable.errors import ConfigurationError
from resumable.failpoints import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resumable.chaos.launch.inventory import Stamps
    from resumable.chaos.launch.preload import Preload
    from resumable.chaos.launch.reaper import Reaper
    from resumable.chaos.plan import Case, Leg

__all__ = ["CASE", "Command", "run_case"]

CASE = "case.json"  # in the directory of each case, before anything else

_SHOWN = 4000  # characters of a process's output
_MODULE = {"-m", "--module"}
_MORE = 2  # starts in peace, at most: the first of them has to come to its end


@dataclass(frozen=True, slots=True)
class Command:
    """The user's command.

    Args:
        words: the command and its arguments. `{dir}` stands for a directory of the run, `{ranks}` for their number.
        patience: seconds without any sign of life after which a process hangs.
        grace: seconds from SIGTERM to SIGKILL.
        limit: seconds for one start.
        preload: forks each start; None to start it as it stands.
        ignore: patterns of files that are not compared.
    """

    words: tuple[str, ...]
    patience: float = 60.0
    grace: float = 5.0
    limit: float = 3600.0
    preload: Preload | None = field(default=None, compare=False)
    ignore: tuple[str, ...] = ()

    def start(self, directory: Path, ranks: int) -> tuple[list[str], Path]:
        """Return the words of one start, and the directory to start them in.

        Without `{dir}`, that is the run's own directory, so that relative paths lead to fresh checkpoints.
        """
        place = Path.cwd() if any("{dir}" in word for word in self.words) else directory
        words = [word.replace("{dir}", str(directory)).replace("{ranks}", str(ranks)) for word in self.words]
        words = [re.sub(r"(--nproc[-_]per[-_]node=)\d+", rf"\g<1>{ranks}", word) for word in words]
        return [_absolute(word) for word in words], place


def _absolute(word: str) -> str:
    """Return the path of a script as it is from everywhere."""
    path = Path(word)
    return str(path.absolute()) if path.suffix == ".py" and path.is_file() else word


def run_case(command: Command, case: Case, directory: Path, reaper: Reaper | None = None) -> list[Attempt]:
    """Run a case in a fresh directory.

    Args:
        command: what to start.
        case: what is to go wrong.
        directory: for all that is written.
        reaper: kills the processes where this one cannot do it any longer.

    Returns:
        What each start did, those of an agent in the command among them. The last one has come to its end, or failed
        by itself.

    Raises:
        ConfigurationError: the command was stopped, as it would have gone on from a real run, or have changed one.
    """
    directory.mkdir(parents=True)
    (directory / CASE).write_text(json.dumps({"command": command.words, **case.as_dict()}, indent=1))
    (directory / "work").mkdir()
    attempts: list[Attempt] = []
    damaged = False
    spoilt: Stamps = {}
    legs = [*case.legs, *[case.legs[-1]] * _MORE]
    for leg in legs:
        started = _run_leg(command, leg, directory, attempts, reaper)
        attempts += started
        attempt, fired = started[-1], any(one.fired for one in started)
        if attempt.refused:
            raise ConfigurationError(attempt.refused)
        attempt.unloadable = find_unloadable(attempts, directory, damaged=damaged)
        if leg.fault and (damage := FAULTS[leg.fault.kind].storage):
            before = stamps(directory)
            fired &= DAMAGES[damage](attempts, directory)
            spoilt |= changed(before, directory)
            damaged |= damage in MARRING
            for one in started:
                one.fired &= fired
            attempt.unloadable += find_unloadable(attempts, directory, damaged=damaged)
        if attempt.status == 0 and not attempt.killed and not _may_be_unfinished(leg):
            break
        if leg.fault is None or not fired:
            break
    rounded = any(log.world > EXACT for attempt in attempts for log in attempt.ranks.values())
    attempts[-1].left = take_inventory(directory, command.ignore, spoilt, rounded=rounded)
    return attempts


def _may_be_unfinished(leg: Leg) -> bool:
    """Return whether a status of 0 says nothing: many a script, and Lightning, ends well on SIGTERM."""
    return leg.fault is not None and leg.fault.kind == "term"


def _run_leg(
    command: Command, leg: Leg, directory: Path, before: Sequence[Attempt], reaper: Reaper | None
) -> list[Attempt]:
    number = before[-1].leg + 1 if before else 0
    ledgers = directory / f"attempt-{number}"
    ledgers.mkdir()
    plan = ledgers / "plan.json"
    faults = [leg.fault.as_plan()] if leg.fault and leg.fault.after is None else []
    values = {"attempt": number, "directory": str(ledgers), "case": str(directory), "faults": faults}
    plan.write_text(json.dumps(values))
    words, place = command.start(directory / "work", leg.ranks)
    output = ledgers / "output.txt"
    watch = _Watch(command, leg, ledgers)
    server = command.preload.server(number) if command.preload else None
    with Group(words, place, _environment(plan, words, place), output, reaper, preload=server) as group:
        status, killed = group.wait(watch.is_overdue)
        orphans = [] if leg.fault and leg.fault.target in SURVIVE else group.orphans()
    plan.rename(plan.with_suffix(".done.json"))  # so that a variable which lives on names nothing
    started = read_attempts(ledgers, len(before), number)
    attempt = started[-1]
    attempt.status, attempt.killed, attempt.orphans = status, killed, orphans
    attempt.fired |= watch.struck
    attempt.output = output.read_text(errors="replace")[-_SHOWN:]
    return started


def _environment(plan: Path, words: Sequence[str] = (), place: Path | None = None) -> dict[str, str]:
    """Return what makes a process of the command a watched one, from its first line on if it is one of Python.

    A module is found from here, as `python -m` and `torchrun -m` find it in the directory in which they are started.
    """
    here = str(Path.cwd()) if _MODULE & set(words) and place != Path.cwd() else ""
    paths = [str(Path(overlay.__file__).parent / "startup"), here, os.environ.get("PYTHONPATH", "")]
    return {VARIABLE: str(plan), "PYTHONPATH": os.pathsep.join(filter(None, paths)), **environment_of_agents()}


class _Watch:
    """Says when a process has to be killed: after a grace period, or when it hangs."""

    def __init__(self, command: Command, leg: Leg, ledgers: Path) -> None:
        self._command, self._leg, self._ledgers = command, leg, ledgers
        self._begun = self._alive = time.monotonic()
        self._size = -1
        self._looked = 0.0
        self.struck = False  # the fault that comes from outside has happened

    def is_overdue(self) -> str:
        now = time.monotonic()
        if now - self._looked < 0.1:  # noqa: PLR2004  # seconds between two looks at the files
            return ""
        self._looked = now
        size = sum(path.stat().st_size for path in self._ledgers.glob("*.jsonl"))
        size += (self._ledgers / "output.txt").stat().st_size
        if size != self._size:
            self._size, self._alive = size, now
        if now - self._begun > self._command.limit:
            return f"it took more than {self._command.limit:.0f} s"
        fault = self._leg.fault
        if fault and fault.after is not None and now - self._begun > fault.after:
            self.struck = True
            return f"SIGKILL came from outside after {fault.after:.1f} s"
        if fault and fault.kind == "term" and now - self._alive > self._command.grace and self._has_fired():
            return f"it lived on {self._command.grace:.0f} s after SIGTERM"
        if waits := wait_for_the_dead(fault, now - self._alive, self._ledgers):
            return waits
        patience = 2.0 if fault and fault.kind == "hang" and self._has_fired() else self._command.patience
        return f"it gave no sign of life for {patience:.0f} s" if now - self._alive > patience else ""

    def _has_fired(self) -> bool:
        return any(b'"fire"' in path.read_bytes() for path in self._ledgers.glob("*.jsonl"))
