"""Reads the same loaders in a fresh process with a different PYTHONHASHSEED: the parent's side and the child's."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from resumable._processes import kill_all
from resumable._selfcheck.scripts import Maker, hearing, loading
from resumable._selfcheck.streams import Clock, Generators, read
from resumable.errors import ResumableError

if TYPE_CHECKING:
    from resumable._selfcheck.scripts import Makes
    from resumable._selfcheck.streams import Batch

__all__ = ["Function", "Job", "Process", "Read", "Target", "answer", "is_fresh", "main"]

_LEAST = 20.0  # seconds granted to the process regardless of the time left, as importing a framework is slow
_VARIABLE = "PYTHONHASHSEED"
_MARK = "RESUMABLE_CHECK_PROCESS"  # identifies the process and all that it starts
_CODE = (
    "import sys; sys.path.append(sys.argv[1]); from resumable._selfcheck.fresh import main; sys.exit(main(sys.argv[2]))"
)


class Target(Protocol):
    """Starts processes that have the loaders."""

    @property
    def patience(self) -> float:
        """Seconds granted to a process in addition to its time limit."""
        ...

    def start(self, folder: Path, jobs: list[Job], seconds: float, **options: Any) -> subprocess.Popen[bytes]:
        """Start one.

        Args:
            folder: for the file `read`, which the process writes.
            jobs: what to read.
            seconds: time limit of its loops.
            options: of `Popen`, with a part of the environment.
        """
        ...


class Function:
    """A function of a script or module that returns the loaders.

    Args:
        spec: of the function.
        generators: state of the global RNGs; None for a new process's own.
    """

    patience = _LEAST

    def __init__(self, spec: str, generators: Any) -> None:
        self._spec, self._generators = spec, generators

    def start(self, folder: Path, jobs: list[Job], seconds: float, **options: Any) -> subprocess.Popen[bytes]:
        """Start this module's `main`."""
        asked = (self._spec, sys.argv[1:], jobs, self._generators, seconds)
        (folder / "asked").write_bytes(pickle.dumps(asked))
        options["env"] = {**os.environ, **options["env"]}
        return subprocess.Popen(  # noqa: S603  # this very module
            [sys.executable, "-c", _CODE, str(Path(__file__).parents[2]), str(folder)], **options
        )


class Process:
    """A process that reads in the background until `result` is called.

    Args:
        target: starts it.
        jobs: what to read.
        seconds: time limit of its loops.
    """

    def __init__(self, target: Target, jobs: list[Job], seconds: float) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="resumable-check-")
        self._patience = seconds + target.patience
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # close() closes it
        seed = {_VARIABLE: "2" if os.environ.get(_VARIABLE) == "1" else "1", _MARK: self._folder.name}
        self._child = target.start(
            Path(self._folder.name),
            jobs,
            seconds,
            env=seed,
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=self._said,
        )

    def result(self) -> dict[str, Read] | str:
        """Return what was read from each loader, or a message that says why nothing was read."""
        try:
            status = self._child.wait(self._patience)
        except subprocess.TimeoutExpired:
            return "It did not finish in time."
        finally:
            self._end()
        if status:
            self._said.seek(0)
            told = self._said.read().decode(errors="replace").strip()
            return f"It failed with exit status {status}.\n{told[-2000:]}"
        if not Path(self._folder.name, "read").exists():
            return "It ended before it read a batch."
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
        kill_all(f"{_MARK}={self._folder.name}", 0)
        self._child.wait()


class Job(NamedTuple):
    """A request to read from one loader.

    Args:
        key: of the loader.
        first: number of batches to read without a state.
        rest: number of batches to read from the state.
        state: the state to continue from, pickled because its classes may belong to the script; None for none.
    """

    key: str
    first: int
    rest: int
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
    """Return whether this is such a process; it must not start one itself."""
    return _inside


def main(folder: str) -> int:
    """Read what the parent asked for, and return the exit status."""
    global _inside  # noqa: PLW0603  # describes the process
    _inside = True
    try:
        _answer(Path(folder))
    except ResumableError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _answer(folder: Path) -> None:
    asked = pickle.loads((folder / "asked").read_bytes())  # noqa: S301  # the process before wrote it
    spec, words, jobs, generators, seconds = asked
    with loading(spec, words) as make, hearing():
        answer(folder, Maker(make, Generators(generators), spec), jobs, seconds)


def answer(folder: Path, maker: Makes, jobs: list[Job], seconds: float) -> None:
    """Read from the loaders, and write the file `read`."""
    clock = Clock(seconds)
    found = {job.key: _read(maker, job, clock) for job in jobs}
    (folder / "read").write_bytes(pickle.dumps(found))


def _read(maker: Makes, job: Job, clock: Clock) -> Read:
    def begin() -> list[Batch]:
        with maker.loader(job.key) as loader:
            return read(loader, job.first, clock)

    def resume() -> list[Batch] | str:
        try:
            assert job.state is not None
            with maker.loader(job.key, pickle.loads(job.state)) as loader:  # noqa: S301  # our own bytes
                return read(loader, job.rest, clock)
        except Exception as error:  # noqa: BLE001  # any error is a result
            return f"{type(error).__name__}: {error}"

    beginning = maker.apart(begin) if job.first else []
    return Read(beginning, maker.apart(resume) if job.rest and not clock.is_over() else [])
