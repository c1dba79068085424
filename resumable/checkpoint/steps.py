"""The steps of a store: which are there, and what their checkpoints hold."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from resumable._warn import warn
from resumable.checkpoint.files import connect
from resumable.checkpoint.marker import MARKER, Marker, Part, corrupt
from resumable.checkpoint.reports import reporting
from resumable.errors import CheckpointError, CheckpointNotFoundError, CorruptCheckpointError, CorruptCheckpointWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Steps"]

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
