"""Writes the position of this process while its Loader runs, and logs where the previous process ended."""

from __future__ import annotations

import json
import logging
import mmap
import os
import sys
import tempfile
import weakref
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from resumable._flight import record
from resumable._flight.record import DamagedError, FlightRecord, ForeignError
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import TypeAlias

    from resumable._order.cursor import Cursor
    from resumable._order.world import World

    _Passes: TypeAlias = Callable[[Any, Any], Any] | None

__all__ = ["Recorder"]

_log = logging.getLogger("resumable")
_MOST = 1 << 63  # indices
_HOW = {"cleanly": "ended cleanly", "raised": "ended with an exception", "running": "crashed"}


class Recorder:
    """Writes the record of this process. Until a file is open, or if none can be opened, it writes to memory only.

    Args:
        folder: of the files of all ranks; it is created if it does not exist.

    Raises:
        ConfigurationError: the folder is not writable.
    """

    def __init__(self, folder: str) -> None:
        self._folder = _writable(folder)
        self._process = 0  # the process that opened the file
        self._earlier: FlightRecord | None = None  # from the previous process, until it is logged
        self._count, self._phase = 0, 0  # writes to the slots; the word with the phase of the last one
        self._write_to(bytearray(record.SIZE))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle nothing: a worker writes no record."""
        return type(None), ()

    def begin(self, world: World, fingerprint: Mapping[str, Any], at: Cursor, global_step: int) -> None:
        """Open the file of this rank, once per process; a fork finds that its parent records there.

        Args:
            world: the rank.
            fingerprint: of the run; the record of a different one is not compared.
            at: the position of the loader.
            global_step: global batches before it, over all epochs.
        """
        if self._process != os.getpid():
            self._open(world, fingerprint)
            self._note(at, global_step, record.OPENED)

    def reading(self, at: Cursor, global_step: int) -> None:
        """Note that a batch is read; before the first one, log where the previous process was."""
        if self._earlier is not None:
            _tell(self._earlier, global_step)
            self._earlier = None
        self._note(at, global_step, record.READING)

    def delivered(self) -> None:
        """Note that the batch was delivered."""
        self._words[self._phase] = record.TRAINING

    def between(self, at: Cursor, global_step: int) -> None:
        """Note that an epoch is over."""
        self._note(at, global_step, record.BETWEEN)

    def state_taken(self, global_step: int) -> None:
        """Note that a state was saved."""
        self._words[record.SAVED] = global_step + 1
        if self._words[self._phase] == record.TRAINING:  # a second thread may save a state while a batch is read
            self._words[self._phase] = record.STATE

    @contextmanager
    def noting(self, source: Any, passes: _Passes = None) -> Iterator[tuple[Any, _Passes]]:
        """Yield a source that records each sample read from it in the block, and its function that takes an RNG."""
        if self._process != os.getpid():
            yield source, passes
            return
        recording = _Noting(source, self._words)
        try:
            yield recording, None if passes is None else recording.noted(passes)
        finally:
            self._words[record.SAMPLE] = 0

    def _note(self, at: Cursor, global_step: int, phase: int) -> None:
        self._count += 1
        self._phase = record.write_slot(self._memory, self._count, at.epoch, at.step, global_step, phase)

    def _write_to(self, memory: Any) -> None:
        self._memory, self._words = memory, memoryview(memory).cast("Q")

    def _open(self, world: World, fingerprint: Mapping[str, Any]) -> None:
        self._process, self._earlier = os.getpid(), None
        self._write_to(bytearray(record.SIZE))
        path = self._folder / record.name_of_rank(world.rank)
        run = crc32(json.dumps(fingerprint, sort_keys=True).encode())
        try:
            earlier = _left_at(path, run)
            self._write_to(_replaced(path, record.new_record(world, run)))
        except (OSError, ForeignError) as error:
            _log.warning("flight recorder: nothing is recorded in %s: %s. The training continues.", path, error)
        else:
            self._earlier = earlier
            weakref.finalize(self, _end, self._words, self._process)


class _Noting:
    """A source that records which sample is read."""

    __slots__ = ("_source", "_words")

    def __init__(self, source: Any, words: Any) -> None:
        self._source, self._words = source, words

    def __getitem__(self, index: Any) -> Any:
        self._note(index)
        return self._source[index]

    def noted(self, read: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Return a function that records an index before it reads the sample."""

        def recording(index: Any, rng: Any) -> Any:
            self._note(index)
            return read(index, rng)

        return recording

    def _note(self, index: Any) -> None:
        has_number = issubclass(type(index), int) and 0 <= index < _MOST  # a sampler may yield keys of any type
        self._words[record.SAMPLE] = index + 1 if has_number else 0


def _writable(folder: str) -> Path:
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(bytes(record.SIZE))
    except OSError as error:
        raise ConfigurationError(
            f"the folder of flight_recorder cannot be written to: {error}.\n"
            "After a crash, there would be no record. Pass a folder on a disk with free space, or leave it out."
        ) from error
    return path.resolve()


def _left_at(path: Path, run: int) -> FlightRecord | None:
    """Return the record that an earlier process of this run left; None if there is none.

    Raises:
        ForeignError: the file belongs to another process or program.
        OSError: it cannot be read.
    """
    try:
        earlier = record.read_record(path)
    except FileNotFoundError:
        return None
    except DamagedError as error:
        _log.warning("flight recorder: a new record replaces %s: %s.", path, error)
        return None
    if earlier.alive and earlier.ended == "running":
        if earlier.pid == os.getpid():
            raise ForeignError("a second loader of this process records there; use a separate folder for each loader")
        raise ForeignError(f"the process {earlier.pid}, which is alive, also records there as rank {earlier.rank}")
    if earlier._run == run:  # noqa: SLF001  # same package
        return earlier
    _log.warning(
        "flight recorder: a new record replaces %s: it belongs to a run with different data, order or "
        "options. Use a separate folder for each run.",
        path,
    )
    return None


def _replaced(path: Path, content: bytes) -> mmap.mmap:
    """Replace the file of an earlier process, and map the new one.

    Raises:
        OSError: it cannot be written; the earlier file still exists.
    """
    new = path.with_suffix(".new")
    try:
        with new.open("w+b") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # its blocks must exist, or writing to the memory could kill the process
            memory = mmap.mmap(file.fileno(), len(content))
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    return memory


def _tell(earlier: FlightRecord, global_step: int) -> None:
    """Log where the previous process was, and how many steps are trained again after a global step."""
    saved = f" (the last state was saved at {earlier.saved})" if (earlier.saved or 0) > global_step else ""
    steps = max(0, earlier.delivered - global_step)
    _log.log(
        logging.WARNING if earlier.crashed else logging.INFO,
        "flight recorder: the previous process (rank %d, pid %d) %s %s; this one starts at global step %d%s: "
        "%s trained again.",
        *(earlier.rank, earlier.pid, _HOW[earlier.ended], earlier.where, global_step, saved),
        "1 step is" if steps == 1 else f"{steps} steps are",
    )


def _end(words: Any, process: int) -> None:
    """Record how the process ended, or that its loader is gone."""
    if os.getpid() == process:  # not in a fork
        words[record.END] = record.CLEANLY if getattr(sys, "last_value", None) is None else record.RAISED
