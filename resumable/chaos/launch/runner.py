"""Runs one case: launches the command, injects its faults, and relaunches it until it finishes."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from resumable.chaos.digests import EXACT
from resumable.chaos.inventory import changed, stamps, take_inventory
from resumable.chaos.launch.group import SURVIVE, Group, environment_of_agents, wait_for_the_dead
from resumable.chaos.launch.mirror import Mirror
from resumable.chaos.ledger import Attempt, read_attempts
from resumable.chaos.plan import FAULTS
from resumable.chaos.recorder import guard
from resumable.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    ConfigurationError,
    CorruptCheckpointError,
    MissingDependencyError,
)
from resumable.failpoints import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from resumable.chaos.inventory import Stamps
    from resumable.chaos.launch.preload import Preload
    from resumable.chaos.launch.reaper import Reaper
    from resumable.chaos.ledger import Attempt
    from resumable.chaos.plan import Case, Launch


__all__ = ["CASE", "DAMAGES", "Command", "committed", "find_unloadable", "run_case"]


CASE = "case.json"  # in the directory of each case, before anything else

_SHOWN = 4000  # characters of a process's output
_MORE = 2  # maximum number of additional launches without a fault; the first of them must finish
_SLOWER = 20  # how many times as slow as expected a launch may be, as on a machine that is busy


@dataclass(frozen=True, slots=True)
class Command:
    """The user's command.

    Args:
        words: the command and its arguments. `{dir}` is replaced with a directory, `{ranks}` with the number of ranks.
        patience: seconds without progress after which a process counts as hanging, if not `longest_silence`.
        grace: seconds from SIGTERM to SIGKILL.
        limit: time limit of one launch in seconds.
        preload: forks each launch; None to launch the command directly.
        ignore: patterns of files that are not compared.
        mirror: of the folder in which it runs; None for the current one.
        silence: seconds for which the baseline run made no progress, at most; None until it has run.
    """

    words: tuple[str, ...]
    patience: float = 60.0
    grace: float = 5.0
    limit: float = 3600.0
    preload: Preload | None = field(default=None, compare=False)
    ignore: tuple[str, ...] = ()
    mirror: Mirror = field(default_factory=lambda: Mirror(Path.cwd()), compare=False)
    silence: float | None = None

    @property
    def longest_silence(self) -> float:
        """Seconds without progress after which a process is killed.

        A start that imports a framework is silent for seconds, and on a busy machine for minutes. The baseline run
        shows for how long this program is silent. Before that, as long as the patience is expected.
        """
        expected = self.patience if self.silence is None else self.silence
        return max(self.patience, _SLOWER * expected)

    def start(self, work: Path, ranks: int) -> list[str]:
        """Return the words of one launch in a mirror."""
        words = [self.words[0], *(self.mirror.path(word, work) for word in self.words[1:])]
        words = [word.replace("{dir}", str(work)).replace("{ranks}", str(ranks)) for word in words]
        return [re.sub(r"(--nproc[-_]per[-_]node=)\d+", rf"\g<1>{ranks}", word) for word in words]


def run_case(command: Command, case: Case, directory: Path, reaper: Reaper | None = None) -> list[Attempt]:
    """Run a case in a new directory.

    Args:
        command: the command to launch.
        case: the faults.
        directory: for everything that is written.
        reaper: kills the processes if this process ends.

    Returns:
        The record of each launch, including restarts that an agent in the command made. The last one has finished, or
        failed on its own.

    Raises:
        ConfigurationError: the command was stopped because it would have resumed or changed a real run.
    """
    directory.mkdir(parents=True)
    (directory / CASE).write_text(json.dumps({"command": command.words, **case.as_dict()}, indent=1))
    inputs = command.mirror.build(directory / "work")
    attempts: list[Attempt] = []
    damaged = False
    spoilt: Stamps = {}
    launches = [*case.launches, *[case.launches[-1]] * _MORE]
    for launch in launches:
        started = _run_launch(command, launch, directory, attempts, reaper)
        attempts += started
        attempt, fired = started[-1], any(one.fired for one in started)
        if attempt.refused:
            raise ConfigurationError(attempt.refused)
        attempt.unloadable = find_unloadable(attempts, directory, damaged=damaged)
        if launch.fault and (damage := FAULTS[launch.fault.kind].storage):
            before = stamps(directory)
            fired &= DAMAGES[damage](attempts, directory)
            spoilt |= changed(before, directory)
            damaged |= damage in MARRING
            for one in started:
                one.fired &= fired
            attempt.unloadable += find_unloadable(attempts, directory, damaged=damaged)
        if attempt.status == 0 and not attempt.killed and not _may_be_unfinished(launch):
            break
        if launch.fault is None or not fired:
            break
    rounded = any(log.world > EXACT for attempt in attempts for log in attempt.ranks.values())
    appended = set[str]().union(*(attempt.appended for attempt in attempts))
    attempts[-1].left = take_inventory(
        directory,
        command.ignore,
        spoilt,
        inputs,
        appended=appended,
        old=_sizes_before(attempts),
        rounded=rounded,
    )
    return attempts


def _sizes_before(attempts: Sequence[Attempt]) -> dict[str, int]:
    """Return how many bytes of each file are older than the last launch, for files that were opened in Python."""
    *earlier, last = attempts
    old = {name: sys.maxsize for one in earlier for name in (*one.appended, *one.in_place)}
    return {**old, **dict.fromkeys(last.in_place, 0), **last.appended}


def _may_be_unfinished(launch: Launch) -> bool:
    """Return whether an exit status of 0 proves nothing: many scripts, and Lightning, return 0 on SIGTERM."""
    return launch.fault is not None and launch.fault.kind == "term"


def _run_launch(
    command: Command, launch: Launch, directory: Path, before: Sequence[Attempt], reaper: Reaper | None
) -> list[Attempt]:
    number = before[-1].launch + 1 if before else 0
    ledgers = directory / f"attempt-{number}"
    ledgers.mkdir()
    plan = ledgers / "plan.json"
    faults = [launch.fault.as_plan()] if launch.fault and launch.fault.after is None else []
    values = {"attempt": number, "directory": str(ledgers), "case": str(directory), "faults": faults}
    plan.write_text(json.dumps({**values, "project": str(command.mirror.project), "words": command.words}))
    work = (directory / "work").resolve()
    words = command.start(work, launch.ranks)
    output = ledgers / "output.txt"
    watch = _Watch(command, launch, ledgers)
    server = command.preload.server(number) if command.preload else None
    # Not in the case: the name of a socket may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as temporary:
        environment = {**environment_of(plan, work), "TMPDIR": temporary}
        with Group(words, work, environment, output, reaper, preload=server) as group:
            status, killed = group.wait(watch.is_overdue)
            orphans = [] if launch.fault and launch.fault.target in SURVIVE else group.orphans()
    plan.rename(plan.with_suffix(".done.json"))  # so a leftover variable refers to nothing
    started = read_attempts(ledgers, len(before), number)
    attempt = started[-1]
    attempt.status, attempt.killed, attempt.orphans = status, killed, orphans
    attempt.silence = watch.silence
    attempt.fired |= watch.struck
    attempt.output = output.read_text(errors="replace")[-_SHOWN:]
    return started


def environment_of(plan: Path, work: Path) -> dict[str, str]:
    """Return the variables that make a process of the command an observed one; a Python program from its first line."""
    paths = [str(Path(guard.__file__).parent / "startup"), os.environ.get("PYTHONPATH", "")]
    own = {
        VARIABLE: str(plan),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PWD": str(work),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return {**own, **environment_of_agents()}


class _Watch:
    """Decides when a process must be killed: after a grace period, or when it hangs."""

    def __init__(self, command: Command, launch: Launch, ledgers: Path) -> None:
        self._command, self._launch, self._ledgers = command, launch, ledgers
        self._begun = self._alive = time.monotonic()
        self._size = 0
        self._looked = 0.0
        self.silence = 0.0  # the longest one so far
        self.struck = False  # whether a fault from outside has happened

    def is_overdue(self) -> str:
        now = time.monotonic()
        if now - self._looked < 0.1:  # noqa: PLR2004  # seconds between two checks of the files
            return ""
        self._looked = now
        size = sum(path.stat().st_size for path in self._ledgers.glob("*.jsonl"))
        size += (self._ledgers / "output.txt").stat().st_size
        self.silence = max(self.silence, now - self._alive)
        if size != self._size:
            self._size, self._alive = size, now
        if now - self._begun > self._command.limit:
            return f"it took longer than {self._command.limit:.0f} s"
        fault = self._launch.fault
        if fault and fault.after is not None and now - self._begun > fault.after:
            self.struck = True
            return f"SIGKILL from outside after {fault.after:.1f} s"
        if fault and fault.kind == "term" and now - self._alive > self._command.grace and self._has_fired():
            return f"it was still running {self._command.grace:.0f} s after SIGTERM"
        if waits := wait_for_the_dead(fault, now - self._alive, self._ledgers):
            return waits
        patience = 2.0 if fault and fault.kind == "hang" and self._has_fired() else self._command.longest_silence
        return f"it made no progress for {patience:.0f} s" if now - self._alive > patience else ""

    def _has_fired(self) -> bool:
        return any(b'"fire"' in path.read_bytes() for path in self._ledgers.glob("*.jsonl"))


# Inspects the stores that a command wrote: which steps are committed, and whether they load.


def is_inside(path: str | Path, case: Path) -> bool:
    """Return whether a path leads into a directory once its links are resolved."""
    return Path(path).resolve().is_relative_to(case.resolve())


def local_roots(attempts: Sequence[Attempt], case: Path) -> list[str]:
    """Return the existing roots in a case's directory to which checkpoints were committed."""
    roots = {root for attempt in attempts for log in attempt.ranks.values() for root, _ in log.saved}
    return sorted(root for root in roots if "://" not in root and Path(root).is_dir() and is_inside(root, case))


def committed(root: str) -> Iterator[tuple[int, Path]]:
    """Yield the committed steps of a store with their data files."""
    steps = _steps(root)
    for step in steps.committed():
        if (name := steps.data_file(step)) and (data := Path(steps.directory(step), name)).exists():
            yield step, data


def find_unloadable(attempts: Sequence[Attempt], case: Path, *, damaged: bool) -> list[str]:
    """Load every committed checkpoint, as `torch.load(weights_only=True)` does.

    Args:
        attempts: the launches so far.
        case: the directory of the case.
        damaged: the newest one was damaged on purpose, so one failure per store is expected.

    Returns:
        The checkpoints that cannot be loaded, in words.
    """
    found: list[str] = []
    for root in local_roots(attempts, case):
        steps = _steps(root)
        errors = [error for step in steps.committed() if (error := _try(steps, root, step))]
        if not damaged or len(errors) > 1:
            found += errors
    return found


def _steps(root: str) -> Any:
    from resumable.checkpoint.steps import Steps  # noqa: PLC0415  # imports file systems

    return Steps(root, {})


def _try(steps: Any, root: str, step: int) -> str:
    from resumable.checkpoint.saving import unpickle  # noqa: PLC0415  # the same

    def load(number: int, file: BinaryIO) -> None:
        try:
            unpickle(root, "cpu", number, file)
        except (CheckpointError, MissingDependencyError):
            return  # its bytes are intact; a class that the script allows, or torch, may be missing here

    try:
        steps.read(step, load)
    except (CorruptCheckpointError, CheckpointNotFoundError) as error:
        return f"the committed checkpoint of step {step} in {root} does not load: {error}"
    except Exception as error:  # noqa: BLE001  # whatever torch raises for intact bytes
        return f"the committed checkpoint of step {step} in {root} does not load: {type(error).__name__}: {error}"
    return ""


# Damages checkpoints between two launches of a command, in the files of its stores and Trainers.
#
# Only files whose resolved path is in the directory of the case are changed. New content is written to a new file that
# replaces the old one, so a hard link outside the directory keeps the old content.


class _Checkpoint(NamedTuple):
    """A checkpoint on disk.

    Args:
        order: greater for a newer one.
        data: its data file.
        whole: what to remove to delete it: the directory of a step, or the file.
    """

    order: tuple[int, int]
    data: Path
    whole: Path


def _newest(attempts: Sequence[Attempt], case: Path) -> _Checkpoint | None:
    """Find the newest committed checkpoint of a store, or else of the Lightning Trainer."""
    stored = [
        _Checkpoint((step, data.stat().st_mtime_ns), data, data.parent)
        for root in local_roots(attempts, case)
        for step, data in committed(root)
        if is_inside(data, case)
    ]
    files = [
        _Checkpoint((0, path.stat().st_mtime_ns), path, path)
        for path in case.rglob("*.ckpt")
        if path.is_file() and is_inside(path, case)
    ]
    return max(stored or files, default=None)


def _rewrite(path: Path, content: bytes) -> None:
    draft = path.with_name(f"{path.name}.damaged")
    draft.write_bytes(content)
    draft.replace(path.resolve())


def _truncate(attempts: Sequence[Attempt], case: Path) -> bool:
    newest = _newest(attempts, case)
    if newest is None:
        return False
    content = newest.data.read_bytes()
    _rewrite(newest.data, content[: len(content) // 2])
    return True


def _flip(attempts: Sequence[Attempt], case: Path) -> bool:
    newest = _newest(attempts, case)
    if newest is None:
        return False
    content = bytearray(newest.data.read_bytes())
    content[len(content) // 2] ^= 1
    _rewrite(newest.data, bytes(content))
    return True


def _remove(attempts: Sequence[Attempt], case: Path) -> bool:
    newest = _newest(attempts, case)
    if newest is None:
        return False
    (shutil.rmtree if newest.whole.is_dir() else Path.unlink)(newest.whole)
    return True


def _lose(attempts: Sequence[Attempt], case: Path) -> bool:
    """Drop the content of files that were written but not made durable, as a power cut may."""
    for log in attempts[-1].ranks.values():
        durable = {path for point, path in log.files if point == "store.synced"}
        written = {path for point, path in log.files if point == "store.written"} - durable
        for path in map(Path, written):
            if path.exists() and is_inside(path, case):
                _rewrite(path, b"")
    return True


DAMAGES: dict[str, Callable[[Sequence[Attempt], Path], bool]] = {
    "truncate": _truncate,
    "flip": _flip,
    "stale": _remove,
    "lost-fsync": _lose,
}
MARRING = {"truncate", "flip"}  # faults that leave one checkpoint that cannot be loaded
