"""The steps of a store: which are there, and what their checkpoints hold."""

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

DIRECTORY = re.compile(r"step-([0-9]{12}|[1-9][0-9]{12,})")  # each step has one spelling
SHOWN = 10  # steps listed in an error message


class Steps:
    """The steps under a root: a directory each, with a marker if it is committed."""

    def __init__(
        self, root: str, options: Mapping[str, Any], timeout: float | None = None, *, shared: bool = False
    ) -> None:
        self.root = root
        self.files, self.path, self.seconds = connect(root, options, timeout, shared=shared)
        self.identity = repr((self.path, options))  # of the root, in this process

    def directory(self, step: int) -> str:
        """Give the path of a step's directory."""
        return f"{self.path}/step-{step:012d}"

    def listed(self) -> list[int]:
        """Give the steps that have a directory, committed or not, in ascending order."""
        return sorted(int(match[1]) for match in map(DIRECTORY.fullmatch, self.files.names(self.path)) if match)

    def committed(self) -> list[int]:
        """Give the steps that have a marker, in ascending order."""
        with reporting(f"The steps in {self.root} could not be listed"):
            return [step for step in self.listed() if MARKER in self.files.names(self.directory(step))]

    def newest_above(self, step: int) -> int | None:
        """Give the newest committed step above a step, or None; one that is known to be corrupt is none."""
        later = (number for number in reversed(self.listed()) if number > step)
        return next(filter(self._may_be_whole, later), None)

    def _may_be_whole(self, step: int) -> bool:
        try:
            self.read(step, lambda _, __: None)
        except (CheckpointNotFoundError, CorruptCheckpointError):
            return False
        except CheckpointError:
            return True  # of a newer version, or the storage failed: `latest()` does not skip it
        return True

    def marker(self, step: int) -> Marker:
        """Read the marker of a step; one that has none gives a CheckpointNotFoundError."""
        try:
            raw = self.files.read(f"{self.directory(step)}/{MARKER}")
        except FileNotFoundError:
            raise CheckpointNotFoundError(f"step {step} has no committed checkpoint in {self.root}.") from None
        return Marker.parse(raw, step)

    def data_file(self, step: int) -> str | None:
        """Give the name of the data file that all ranks load, or None if no readable marker names it."""
        try:
            return self.marker(step).file
        except CheckpointError:
            return None

    def data_files(self, step: int) -> set[str]:
        """Give the names of the data files that the step's marker names; none if no readable marker does."""
        try:
            return set(self.marker(step).sizes)
        except CheckpointError:
            return set()

    def is_linked(self, step: int) -> bool:
        """Return whether the step's directory is a symbolic link: nothing is ever written or removed through it."""
        return self.files.is_link(self.directory(step))

    def refuse_linked(self, step: int, done: str) -> None:
        """Raise a CheckpointError for a step whose directory is a symbolic link."""
        with reporting(f"step {step} was not {done}, as its directory could not be looked up"):
            linked = self.is_linked(step)
        if linked:
            raise CheckpointError(
                f"step {step} was not {done}: {self.directory(step)} is a symbolic link.\n"
                "What it points to is not this store's alone, so nothing is written or removed there. Remove the link "
                "by hand to do without the step here."
            )

    def not_found(self, step: int, verb: str) -> CheckpointNotFoundError:
        """Give the error for a step that is not committed, with the steps that are."""
        steps = self.committed()
        more = f" and {len(steps) - SHOWN} before" if len(steps) > SHOWN else ""
        return CheckpointNotFoundError(
            f"step {step} has no committed checkpoint in {self.root}, so nothing was {verb}.\n"
            f"  asked for: {step}\n  committed: {', '.join(map(str, steps[-SHOWN:])) or 'none'}{more}\n"
            "Use a committed step; `latest()` finds the newest."
        )

    def read(self, step: int, use: Callable[[int, BinaryIO], Result]) -> Result:
        """Give what `use` makes of a step and its data file, whose bytes were compared with the marker."""
        with reporting(f"step {step} in {self.root} could not be read, which does not mean that it is corrupt"):
            marker, file = self._open(step)
            with file:
                marker.compare(file)
                return use(step, file)

    def read_part(self, step: int, rank: int, use: Callable[[int, BinaryIO], Result]) -> Result:
        """Give what `use` makes of a step and the part of a rank, whose bytes were compared with the marker."""
        with reporting(f"step {step} in {self.root} could not be read, which does not mean that it is corrupt"):
            marker, file = self._open(step, rank)
            with file:
                self._part(marker, rank).compare(step, file)
                return use(step, file)

    def _open(self, step: int, rank: int | None = None) -> tuple[Marker, BinaryIO]:
        """Open a data file of a step; if it is gone, the step may just have been saved again or deleted."""
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
        ranks = f"ranks 0 to {len(marker.parts) - 1}" if marker.parts else "no rank: it was saved without `part=`"
        raise CheckpointNotFoundError(
            f"step {marker.step} in {self.root} has no part of rank {rank}.\n  parts it has: {ranks}\n"
            "Give `rank=` one of those. With more ranks than at the save, say what a new rank begins with."
        )

    def newest(self, use: Callable[[int, BinaryIO], Result]) -> Result | None:
        """Give what `use` makes of the newest whole checkpoint, or None if there is none; warn of the corrupt ones."""
        skipped: list[CorruptCheckpointError] = []
        with reporting(f"The steps in {self.root} could not be listed"):
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
        # A writer may have committed a step, and pruned those listed, in the meantime.
        return self.newest(use) if self.committed() else None


def _warn_skipped(skipped: list[CorruptCheckpointError], used: int) -> None:
    for error in skipped:
        message = f"{error}\nIt was skipped, and step {used} is used: the work since then is done again."
        warn(message, CorruptCheckpointWarning)


def _all_corrupt(root: str, skipped: list[CorruptCheckpointError]) -> str:
    return (
        f"No checkpoint in {root} can be loaded, and starting again would silently lose the training so far.\n"
        + "\n".join(f"- {error}" for error in skipped)
        + "\nRestore the files from a copy. To start again on purpose, `delete(step)` each or use another root."
    )


# Who writes to a store: the process that took the token last; an older one is refused.

TOKEN = "WRITER.json"  # in the root; not a secret  # noqa: S105
LENGTH = 256  # bytes, always, so that it is written over in place


class _Process:
    """This process as a writer, and the roots that it has taken."""

    def __init__(self) -> None:
        self.token = secrets.token_hex(8)
        self.taken: set[str] = set()


_processes: dict[int, _Process] = {}  # by their numbers; a fork is a writer of its own


def _this_process() -> _Process:
    return _processes.setdefault(os.getpid(), _Process())


class Writer:
    """Takes a store's token for this process, and sees that it still has it.

    The newest process takes it without asking, as a killed one on another host looks like one that lives.

    Args:
        steps: those of the store.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps, self._path = steps, f"{steps.path}/{TOKEN}"

    def claim(self, failed: str) -> None:
        """Take the token if this process has not had it yet, else see that no other has taken it.

        Args:
            failed: the first line of the error, without its end.

        Raises:
            WriterFencedError: another process has taken it since.
            CheckpointError: the storage failed.
        """
        own, root = _this_process(), self._steps.identity
        with reporting(f"{failed}, as the token of its writer could not be read or written"):
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
        """Give what the token says; None without one, and nothing of one that cannot be read."""
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
        "Two writers would remove each other's checkpoints, so the newest one goes on, and this one has to end. If it "
        "is this run that should go on, end the other one and start this one again: it goes on from `latest()`. If "
        "both should, give each a root of its own."
    )


# Removing steps, and the leftovers of crashed saves, so that a crash or a reader in between sees nothing torn.

_writing: set[tuple[str, str]] = set()  # (directory, token) of the saves under way in this process
_registry = threading.Lock()  # so that no step is registered as being written while it is removed


@contextlib.contextmanager
def being_written(directory: str) -> Iterator[str]:
    """Give a token to name files with, and keep this process from cleaning the directory while the block runs."""
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
        self._settled: set[int] = set()  # committed steps without leftovers, which need not be listed at each save

    def tidy(self, saved: int, replaced: set[str], keep: int | None, keep_every: int | None = None) -> None:
        """Remove what the commit of `saved` made superfluous; a failure here is no failed save, for it is durable.

        Raises:
            WriterFencedError: another process is the writer, and what this one would remove is that one's.
        """
        try:
            for name in sorted(replaced):
                self.steps.files.remove(f"{self.steps.directory(saved)}/{name}")
            self._prune(saved, keep, keep_every)
        except WriterFencedError:
            raise
        except Exception as error:  # noqa: BLE001 - a filesystem may raise anything, and training must go on
            message = f"step {saved} is saved in {self.steps.root}, but older files could not be removed: {error!r}. "
            warn(message + "They take up space until the next save tries again.", RuntimeWarning)

    def remove(self, step: int) -> None:
        """Remove a step: first the marker, durably, then the files that it may have named."""
        directory = self.steps.directory(step)
        self._settled.discard(step)
        names = self.steps.files.names(directory)
        if MARKER in names:
            self.steps.files.remove(f"{directory}/{MARKER}")
        self._remove_files(directory, names)
        self.steps.files.remove_dir(directory)

    def _remove_files(self, directory: str, names: set[str]) -> None:
        """Remove files that no marker names, after it is durable that none does."""
        with contextlib.suppress(FileNotFoundError):
            self.steps.files.settle(directory)
        for name in filter(OURS.fullmatch, names):
            self.steps.files.remove(f"{directory}/{name}")

    def _prune(self, saved: int, keep: int | None, keep_every: int | None) -> None:
        """Remove the oldest steps first: a reader on its way down must not find an older one than it missed."""
        committed = [step for step in self.steps.listed() if step == saved or self._is_committed(step, saved)]
        passing = [step for step in committed if keep_every is None or step % keep_every]
        old = [step for step in (passing[:-keep] if keep else ()) if step != saved]
        if old:
            self._writer.claim(f"step {saved} is saved to {self.steps.root}, but no older step was removed")
        for step in old:
            with _registry:
                if not self._is_busy(step):
                    self.remove(step)

    def _is_committed(self, step: int, saved: int) -> bool:
        """Return whether a step may be removed when it is old, and remove leftovers below the one just saved."""
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
