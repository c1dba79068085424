"""Recorder: writes where this process is, twice per batch, into memory that the kernel keeps when the process dies."""

from __future__ import annotations

import logging
import os
import sys
import weakref
from typing import TYPE_CHECKING, Any

from resumable._fetch.lost_workers import is_death
from resumable._fetch.reading import Spot
from resumable._flight.layout import (
    END,
    FIRST,
    GLOBAL_BATCH,
    MOST_READERS,
    NO_READER,
    READERS,
    SAVED,
    SIZE,
    place_at,
    word,
    write_slot,
)
from resumable._flight.opening import check_folder
from resumable._flight.start import Start
from resumable.errors import WorkerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from resumable._fetch import Fetcher
    from resumable._order.cursor import Cursor
    from resumable._state import Mark

__all__ = ["Recorder"]

_log = logging.getLogger("resumable")
_HEAD = 14 * 8  # bytes of the header
_OPENED, _TRAINING, _STATE, _BETWEEN = map(word, ("opened", "training", "state", "between"))


class Recorder:
    """Writes the record of this process. Until a file is open, and where none can be, it writes to nowhere.

    Args:
        folder: of the files of all ranks; made where it is not there.
        fetcher: whose batches they are.

    Raises:
        ConfigurationError: nothing can be written to the folder.
    """

    def __init__(self, folder: str, fetcher: Fetcher) -> None:
        self._folder, self._fetcher = check_folder(folder), fetcher
        workers = fetcher.inside.shows.get("num_workers")
        self._phase = word("waiting" if workers else "reading")
        self._count, self._at = 0, FIRST  # of what was written to the slots; the word of the last one's phase
        self._process = 0
        self._start: Start | None = None  # until a state was loaded
        self._spot: Spot | None = None
        self._write_to(bytearray(SIZE))

    def read_from(self, fetcher: Fetcher) -> None:
        """Go on with another fetcher of the same source."""
        self._fetcher = fetcher
        self._tell_readers()

    # ------------------------------------------------------------------ each batch

    def reading(self, cursor: Cursor, steps: int) -> None:
        """Note that the batch after a cursor is read, before which there were `steps` over all epochs."""
        self._count = count = self._count + 1
        at, phase = self._at, self._phase
        self._at = write_slot(self._memory, at, count, cursor.epoch, cursor.step, cursor.position, steps, phase)

    def delivered(self) -> None:
        """Note that the batch was delivered."""
        self._words[self._at] = _TRAINING

    # ------------------------------------------------------------------ now and then

    def between(self, mark: Mark) -> None:
        """Note that an epoch is over, at a mark."""
        self._note(mark, _BETWEEN)

    def state_taken(self, steps: int) -> None:
        """Note that a state was taken, after so many steps over all epochs."""
        self._words[SAVED] = steps + 1
        if self._words[self._at] == _TRAINING:  # another thread may take one while a batch is read
            self._words[self._at] = _STATE

    def looking(self, look_at: Callable[[], Any], cursor: Cursor, steps: int) -> Any:
        """Read a batch without moving: note it, and that it is over."""
        place, phase = place_at(self._memory, self._at), self._words[self._at]
        self.reading(cursor, steps)
        batch = look_at()
        self._write(*place, phase)
        return batch

    # ------------------------------------------------------------------ a process

    def begin(self, mark: Mark, global_batch: int, *, loaded: bool = False) -> None:
        """Open the file of this rank, once, and tell what the process before this one wrote.

        Args:
            mark: where the loader stands.
            global_batch: samples per step over all ranks.
            loaded: it stands there by a state.
        """
        if first := self._process == 0:
            self._open(mark)
        elif self._process != os.getpid():
            self._leave_to_parent()
        self._words[GLOBAL_BATCH] = global_batch
        if self._start is not None and (first or loaded):
            self._start.tell(mark.global_step if loaded else None)
            self._start = None if loaded else self._start

    def _open(self, mark: Mark) -> None:
        self._process = os.getpid()
        self._start = Start(self._folder, self._fetcher)
        if (memory := self._start.open()) is not None:
            self._write_to(memory)
            self._spot = Spot(str(self._start.path), memory[:_HEAD], SIZE, READERS, MOST_READERS)
            self._tell_readers()
            weakref.finalize(self, _end, self._words, self._process)
        self._note(mark, _OPENED)

    def _leave_to_parent(self) -> None:
        parent, self._process = self._process, os.getpid()
        self._start = self._spot = None
        self._write_to(bytearray(SIZE))
        self._tell_readers()
        _log.warning(
            "flight recorder: the process %d is a fork of %d, which records this loader, and is not recorded itself. "
            "To have that, wrap the source in the new process, with a folder of its own.",
            self._process,
            parent,
        )

    def _tell_readers(self) -> None:
        if (reading := self._fetcher.inside.reading) is None:
            return
        if self._spot is None:
            reading.end()
        else:
            reading.begin(self._words, self._spot)

    def _note(self, mark: Mark, phase: int) -> None:
        cursor = mark.cursor
        self._write(cursor.epoch, cursor.step, cursor.position, mark.global_step, phase)

    def _write(self, *slot: int) -> None:
        self._count += 1
        self._at = write_slot(self._memory, self._at, self._count, *slot)

    def _write_to(self, memory: Any) -> None:
        self._memory, self._words = memory, memoryview(memory).cast("Q")


def _end(words: Any, process: int) -> None:
    """Note how the process ended, or that it has no use for its loader any more."""
    if os.getpid() == process:  # and not in a fork
        error = getattr(sys, "last_value", None)
        words[NO_READER] = not _by_worker(error)
        words[END] = word("cleanly" if error is None else "raised")


def _by_worker(error: BaseException | None) -> bool:
    """Return whether an exception comes from the death of a worker, and not from what the loop does."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, WorkerError) or is_death(error):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False
