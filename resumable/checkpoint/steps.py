"""The steps of a store: listing, reading, locking and removing them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import threading
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from resumable._warn import warn
from resumable.checkpoint.files import connect
from resumable.checkpoint.limits import reporting
from resumable.checkpoint.marker import MARKER, OURS, Marker, Part, corrupt
from resumable.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    CorruptCheckpointWarning,
    WriterFencedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


__all__ = ["TOKEN", "Cleaner", "Steps", "Writer", "being_written"]

Result = TypeVar("Result")

DIRECTORY = re.compile(r"step-([0-9]{12}|[1-9][0-9]{12,})")  # exactly one spelling for each step
SHOWN = 10  # steps listed in an error message


class Steps:
    """The steps under a root. Each has a directory, with a marker if it is committed."""

    def __init__(
        self, root: str, options: Mapping[str, Any], timeout: float | None = None, *, shared: bool = False
    ) -> None:
        self.root = root
        self.files, self.path, self.seconds = connect(root, options, timeout, shared=shared)
        self.identity = repr((self.path, options))  # identifies the root in this process

    def directory(self, step: int) -> str:
        """Return the path of a step's directory."""
        return f"{self.path}/step-{step:012d}"

    def listed(self) -> list[int]:
        """Return the steps that have a directory, committed or not, in ascending order."""
        return sorted(int(match[1]) for match in map(DIRECTORY.fullmatch, self.files.names(self.path)) if match)

    def committed(self) -> list[int]:
        """Return the steps that have a marker, in ascending order."""
        with reporting(f"the steps in {self.root} could not be listed"):
            return [step for step in self.listed() if MARKER in self.files.names(self.directory(step))]

    def newest_above(self, step: int) -> int | None:
        """Return the newest committed step above a step that is not known to be corrupt, or None."""
        later = (number for number in reversed(self.listed()) if number > step)
        return next(filter(self._may_be_whole, later), None)

    def _may_be_whole(self, step: int) -> bool:
        try:
            self.read(step, lambda _, __: None)
        except (CheckpointNotFoundError, CorruptCheckpointError):
            return False
        except CheckpointError:
            return True  # a newer version wrote it, or the storage failed: `latest()` does not skip such a step
        return True

    def marker(self, step: int) -> Marker:
        """Read the marker of a step.

        Raises:
            CheckpointNotFoundError: the step has none.
        """
        try:
            raw = self.files.read(f"{self.directory(step)}/{MARKER}")
        except FileNotFoundError:
            raise CheckpointNotFoundError(f"step {step} has no committed checkpoint in {self.root}.") from None
        return Marker.parse(raw, step)

    def data_file(self, step: int) -> str | None:
        """Return the name of the data file that all ranks load, or None without a readable marker."""
        try:
            return self.marker(step).file
        except CheckpointError:
            return None

    def data_files(self, step: int) -> set[str]:
        """Return the names of the data files in the step's marker. The set is empty without a readable marker."""
        try:
            return set(self.marker(step).sizes)
        except CheckpointError:
            return set()

    def is_linked(self, step: int) -> bool:
        """Return whether the step's directory is a symbolic link. The store never writes or removes through links."""
        return self.files.is_link(self.directory(step))

    def refuse_linked(self, step: int, done: str) -> None:
        """Raise a CheckpointError if the step's directory is a symbolic link."""
        with reporting(f"step {step} was not {done}: its directory could not be checked"):
            linked = self.is_linked(step)
        if linked:
            raise CheckpointError(
                f"step {step} was not {done}: {self.directory(step)} is a symbolic link.\n"
                "Its target may be used elsewhere, so nothing was written or removed there. If this store does not "
                "need the step, remove the link manually."
            )

    def not_found(self, step: int, verb: str) -> CheckpointNotFoundError:
        """Return the error for a step that is not committed, with a list of the committed steps."""
        steps = self.committed()
        more = f" and {len(steps) - SHOWN} earlier ones" if len(steps) > SHOWN else ""
        return CheckpointNotFoundError(
            f"step {step} has no committed checkpoint in {self.root}, so nothing was {verb}.\n"
            f"  requested: {step}\n  committed: {', '.join(map(str, steps[-SHOWN:])) or 'none'}{more}\n"
            "Use a committed step. `latest()` loads the newest."
        )

    def read(self, step: int, use: Callable[[int, BinaryIO], Result]) -> Result:
        """Return the result of `use` for a step and its data file, after verifying the file."""
        with reporting(_unread(step, self.root)):
            marker, file = self._open(step)
            with file:
                marker.compare(file)
                return use(step, file)

    def read_part(self, step: int, rank: int, use: Callable[[int, BinaryIO], Result]) -> Result:
        """Return the result of `use` for a step and the part of a rank, after verifying the part's file."""
        with reporting(_unread(step, self.root)):
            marker, file = self._open(step, rank)
            with file:
                self._part(marker, rank).compare(step, file)
                return use(step, file)

    def _open(self, step: int, rank: int | None = None) -> tuple[Marker, BinaryIO]:
        """Open a data file of a step. If the file is gone, the step may just have been saved again or deleted."""
        marker = self.marker(step)
        one = marker if rank is None else self._part(marker, rank)
        try:
            if marker.parts:
                marker.compare_sizes(self.files.sizes(self.directory(step)))
            return marker, self.files.fetch(f"{self.directory(step)}/{one.file}")
        except FileNotFoundError:
            if self.marker(step) == marker:
                raise corrupt(step, f"its data file {one.file}, {one.size} bytes, is missing") from None
        except CorruptCheckpointError:
            if self.marker(step) == marker:
                raise
        return self._open(step, rank)

    def _part(self, marker: Marker, rank: int) -> Part:
        for part in marker.parts:
            if part.rank == rank:
                return part
        ranks = f"ranks 0 to {len(marker.parts) - 1}" if marker.parts else "none: it was saved without `part=`"
        raise CheckpointNotFoundError(
            f"step {marker.step} in {self.root} has no part of rank {rank}.\n  parts: {ranks}\n"
            "Pass one of these ranks as `rank=`. If there are more ranks than at the save, choose a part for each new "
            "rank."
        )

    def newest(self, use: Callable[[int, BinaryIO], Result]) -> Result | None:
        """Return the result of `use` for the newest intact checkpoint, or None. Warn about newer corrupt ones."""
        skipped: list[CorruptCheckpointError] = []
        with reporting(f"the steps in {self.root} could not be listed"):
            listed = self.listed()
        for step in reversed(listed):
            try:
                result = self.read(step, use)
            except CheckpointNotFoundError:
                continue
            except CorruptCheckpointError as error:
                skipped.append(error)
                continue
            _warn_skipped(skipped, step)
            return result
        if skipped:
            raise CorruptCheckpointError(_all_corrupt(self.root, skipped))
        # Meanwhile, a writer may have committed a new step and removed the listed ones.
        return self.newest(use) if self.committed() else None


def _warn_skipped(skipped: list[CorruptCheckpointError], used: int) -> None:
    for error in skipped:
        message = f"{error}\nUsing step {used} instead: training repeats the steps since then."
        warn(message, CorruptCheckpointWarning)


def _all_corrupt(root: str, skipped: list[CorruptCheckpointError]) -> str:
    return (
        f"all checkpoints in {root} are corrupt. Starting from scratch would silently lose the training so far.\n"
        + "\n".join(f"- {error}" for error in skipped)
        + "\nRestore the files from a backup. To start from scratch on purpose, `delete` these steps, or use a "
        "different root."
    )


def _unread(step: int, root: str) -> str:
    return f"step {step} in {root} could not be read. This does not mean that it is corrupt"


# ---------------------------------------------------------------------- one writer per store

TOKEN = "WRITER.json"  # in the root; not a secret  # noqa: S105
LENGTH = 256  # bytes; constant, so it can be overwritten in place


class _Process:
    """This process as a writer, with the roots that it has claimed."""

    def __init__(self) -> None:
        self.token = secrets.token_hex(8)
        self.taken: set[str] = set()


_processes: dict[int, _Process] = {}  # by process id: a forked process is a separate writer


def _this_process() -> _Process:
    return _processes.setdefault(os.getpid(), _Process())


class Writer:
    """Takes a store's token for this process, and checks that the process still has it.

    The newest process takes the token without asking, because a killed process on a different host looks alive.

    Args:
        steps: of the store.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps, self._path = steps, f"{steps.path}/{TOKEN}"

    def claim(self, failed: str) -> None:
        """Take the token if this process has never had it. Otherwise check that no other process has taken it.

        Args:
            failed: start of the error message.

        Raises:
            WriterFencedError: a newer process has taken the token.
            CheckpointError: the storage failed.
        """
        own, root = _this_process(), self._steps.identity
        hint = "Check that the root is a directory or bucket to which this process may write."
        with reporting(f"{failed}: {self._path} could not be read or written", hint):
            held = self._read()
            if held is not None and held.get("token") == own.token:
                own.taken.add(root)
            elif held is None or root not in own.taken:
                self._steps.files.make_dir(self._steps.path)
                self._steps.files.put(self._path, _record(own))
                own.taken.add(root)
            else:
                raise WriterFencedError(_fenced(failed, self._steps.root, held))

    def _read(self) -> dict[str, Any] | None:
        """Return the fields of the token; None if there is none, and an empty dict if it cannot be read."""
        try:
            raw = self._steps.files.read(self._path)
        except FileNotFoundError:
            return None
        with contextlib.suppress(ValueError, TypeError):
            return dict(json.loads(raw))
        return {}


def _record(own: _Process) -> bytes:
    fields = {"token": own.token, "host": socket.gethostname()[:64], "process": os.getpid()}
    return json.dumps(fields).encode().ljust(LENGTH)


def _fenced(failed: str, root: str, held: dict[str, Any]) -> str:
    return (
        f"{failed}: a newer process has become the writer of this store.\n"
        f"  root:          {root}\n"
        f"  this process:  {os.getpid()} on {socket.gethostname()}\n"
        f"  the writer:    {held.get('process', 'unknown')} on {held.get('host', 'unknown')}\n"
        "Two writers would remove each other's checkpoints, so only the newest may continue. If this run should "
        "continue, stop the other process and restart this one: it resumes from `latest()`. If both should, use a "
        "separate root for each."
    )


# ---------------------------------------------------------------------- removing steps and leftovers

_writing: set[tuple[str, str]] = set()  # (directory, token) of the saves in progress in this process
_registry = threading.Lock()  # a step cannot be registered while it is being removed


@contextlib.contextmanager
def being_written(directory: str) -> Iterator[str]:
    """Yield a token for file names, and keep this process from cleaning the directory while the block runs."""
    writer = directory, secrets.token_hex(8)
    with _registry:
        _writing.add(writer)
    try:
        yield writer[1]
    finally:
        _writing.discard(writer)


class Cleaner:
    """Removes what a store no longer needs: old steps, and the leftovers of crashed saves."""

    def __init__(self, steps: Steps, writer: Writer) -> None:
        self.steps, self._writer = steps, writer
        self._settled: set[int] = set()  # committed steps without leftovers: no need to list them at each save

    def tidy(self, saved: int, replaced: set[str], keep: int | None, keep_every: int | None = None) -> None:
        """Remove files that are obsolete after the commit of `saved`. A failure is only a warning: the save is durable.

        Raises:
            WriterFencedError: a newer process is the writer, and the old steps belong to it.
        """
        try:
            for name in sorted(replaced):
                self.steps.files.remove(f"{self.steps.directory(saved)}/{name}")
            self._prune(saved, keep, keep_every)
        except WriterFencedError:
            raise
        except Exception as error:  # noqa: BLE001 - a filesystem may raise anything, and training must continue
            message = f"step {saved} was saved to {self.steps.root}, but older files could not be removed: {error!r}. "
            warn(message + "The next save tries again; until then, they take up space.", RuntimeWarning)

    def remove(self, step: int) -> None:
        """Remove a step: first the marker, durably, then its data files."""
        directory = self.steps.directory(step)
        self._settled.discard(step)
        names = self.steps.files.names(directory)
        if MARKER in names:
            self.steps.files.remove(f"{directory}/{MARKER}")
        self._remove_files(directory, names)
        self.steps.files.remove_dir(directory)

    def _remove_files(self, directory: str, names: set[str]) -> None:
        """Remove files that are not in a marker, after making the marker's removal durable."""
        with contextlib.suppress(FileNotFoundError):
            self.steps.files.settle(directory)
        for name in filter(OURS.fullmatch, names):
            self.steps.files.remove(f"{directory}/{name}")

    def _prune(self, saved: int, keep: int | None, keep_every: int | None) -> None:
        """Remove old steps, the oldest first. Else a concurrent reader could miss one and find an even older one."""
        committed = [step for step in self.steps.listed() if step == saved or self._is_committed(step, saved)]
        passing = [step for step in committed if keep_every is None or step % keep_every]
        old = [step for step in (passing[:-keep] if keep else ()) if step != saved]
        if old:
            self._writer.claim(f"step {saved} was saved to {self.steps.root}, but no older step was removed")
        for step in old:
            with _registry:
                if not self._is_busy(step):
                    self.remove(step)

    def _is_committed(self, step: int, saved: int) -> bool:
        """Return whether a step is committed and not in use. Remove leftovers in steps below the one just saved."""
        with _registry:
            if self._is_busy(step) or self.steps.is_linked(step):
                return False
            return step in self._settled or self._sweep(step, saved)

    def _is_busy(self, step: int) -> bool:
        return any(directory == self.steps.directory(step) for directory, _ in tuple(_writing))

    def _sweep(self, step: int, saved: int) -> bool:
        directory = self.steps.directory(step)
        names = self.steps.files.names(directory)
        if step < saved and MARKER not in names:
            self.remove(step)
        elif step < saved:
            if live := self.steps.data_files(step):
                self._remove_files(directory, names - live)
            self._settled.add(step)
        return MARKER in names
