"""Reads the same loaders in a fresh process with a different PYTHONHASHSEED: the parent's side and the child's."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from resumable._selfcheck.scripts import Maker, hearing, loading
from resumable._selfcheck.streams import Clock, Generators, read
from resumable.errors import ResumableError

if TYPE_CHECKING:
    from resumable._selfcheck.streams import Batch

__all__ = ["Job", "Process", "Read", "is_fresh", "main"]

_LEAST = 20.0  # seconds granted to the process regardless of the time left, as importing a framework is slow
_VARIABLE = "PYTHONHASHSEED"
_CODE = (
    "import sys; sys.path.append(sys.argv[1]); from resumable._selfcheck.fresh import main; "
    "sys.exit(main(*sys.argv[1:]))"
)


class Process:
    """A process that reads in the background until `result` is called.

    Args:
        spec: of the function.
        jobs: what to read.
        generators: state of the global RNGs; None for a new process's own.
        seconds: time limit of its loops.
    """

    def __init__(self, spec: str, jobs: list[Job], generators: Any, seconds: float) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="resumable-check-")
        self._seconds = seconds
        asked = Path(self._folder.name, "asked")
        asked.write_bytes(pickle.dumps((spec, sys.argv[1:], jobs, generators, seconds)))
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # close() closes it
        self._child = subprocess.Popen(  # noqa: S603  # this very module
            [sys.executable, "-c", _CODE, str(Path(__file__).parents[2]), str(asked), str(asked.with_name("read"))],
            env={**os.environ, _VARIABLE: "2" if os.environ.get(_VARIABLE) == "1" else "1"},
            stdout=self._said,
            stderr=self._said,
        )

    def result(self) -> dict[str, Read] | str:
        """Return what was read from each loader, or a message that says why nothing was read."""
        try:
            status = self._child.wait(self._seconds + _LEAST)
        except subprocess.TimeoutExpired:
            return "It did not finish in time."
        finally:
            self._end()
        if status:
            self._said.seek(0)
            told = self._said.read().decode(errors="replace").strip()
            return f"It failed with exit status {status}.\n{told[-2000:]}"
        found: dict[str, Read] = pickle.loads(Path(self._folder.name, "read").read_bytes())  # noqa: S301  # our own file
        return found

    def close(self) -> None:
        """End the process, and remove its files."""
        self._end()
        self._said.close()
        self._folder.cleanup()

    def _end(self) -> None:
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()


class Job(NamedTuple):
    """A request to read from one loader.

    Args:
        key: of the loader.
        length: number of batches, both from the start and from the state.
        state: the state to continue from, pickled because its classes may belong to the script; None for none.
    """

    key: str
    length: int
    state: bytes | None


class Read(NamedTuple):
    """The batches that were read from one loader.

    Args:
        beginning: the first batches.
        rest: the batches after the state, or an error message.
    """

    beginning: list[Batch]
    rest: list[Batch] | str


_inside = False  # whether this is such a process


def is_fresh() -> bool:
    """Return whether this is such a process; it must not start another one."""
    return _inside


def main(_: str, asked: str, answer: str) -> int:
    """Read what the parent asked for, and return the exit status."""
    global _inside  # noqa: PLW0603  # describes the process
    _inside = True
    try:
        _answer(Path(asked), Path(answer))
    except ResumableError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _answer(asked: Path, answer: Path) -> None:
    spec, words, jobs, generators, seconds = pickle.loads(asked.read_bytes())  # noqa: S301  # written by the process before
    clock = Clock(seconds)
    with loading(spec, words) as make, hearing():
        maker = Maker(make, Generators(generators), spec)
        found = {job.key: _read(maker, job, clock) for job in jobs}
    answer.write_bytes(pickle.dumps(found))


def _read(maker: Maker, job: Job, clock: Clock) -> Read:
    with maker.loader(job.key) as loader:
        beginning = read(loader, job.length, clock)
    rest: list[Batch] | str = []
    if job.state is not None and not clock.is_over():
        try:
            with maker.loader(job.key, pickle.loads(job.state)) as loader:  # noqa: S301  # our own bytes
                rest = read(loader, job.length, clock)
        except Exception as error:  # noqa: BLE001  # any error is a result
            rest = f"{type(error).__name__}: {error}"
    return Read(beginning, rest)
