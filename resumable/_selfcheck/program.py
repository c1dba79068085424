"""`resumable check -- COMMAND`: starts a program, stops it at the first batch of its first Loader, and checks that.

The command's process calls `check_program`. The program calls `stop_at_first_batch` when it imports this package, and
never goes beyond its first batch. Each run of the check reads in a copy of the program (a fork), where nothing was read
before. In a program that cannot be copied, it reads a second Loader over the same source. If that source can be read
only once as well, each run is a separate launch: one without interruption, one more, and one from a state.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resumable import failpoints
from resumable._order.cursor import Cursor
from resumable._processes import kill_all
from resumable._selfcheck.fresh import answer
from resumable._selfcheck.report import CheckReport
from resumable._selfcheck.scripts import T, hearing, raised, unrecorded
from resumable._selfcheck.streams import Clock, Generators, carried
from resumable._selfcheck.trials import check_all
from resumable.errors import ConfigurationError, ResumableError
from resumable.loader.loader import Loader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection

    from resumable._selfcheck.fresh import Job
    from resumable._selfcheck.trials import Tell

__all__ = ["check_program", "stop_at_first_batch"]

_TICK = 0.05  # seconds after which new results are read
_QUIET = 10.0  # seconds between messages while the first batch is awaited
_GRACE = 5.0  # seconds from SIGTERM to SIGKILL
_LEAST = 60.0  # seconds granted to a copy of the program regardless of the time left
_FUNCTION = "Pass a function that makes the Loader instead: resumable check train.py:make_loader"


@dataclass(frozen=True)
class Asked:
    """A request to a program.

    Args:
        words: its command.
        folder: its working directory.
        environment: its environment variables.
        seconds: time limit for new trials.
        launched: time of its first launch, in seconds since 1970.
        jobs: what to read; None to check everything.
    """

    words: list[str]
    folder: str
    environment: dict[str, str]
    seconds: float
    launched: float
    jobs: list[Job] | None = None

    @property
    def patience(self) -> float:
        """Seconds that starting it again may take."""
        return 20.0 + 3 * (time.time() - self.launched)

    def start(self, folder: Path, jobs: list[Job] | None, seconds: float, **options: Any) -> subprocess.Popen[bytes]:
        """Start the program; it writes its answer into the folder.

        Raises:
            ConfigurationError: the command does not exist, or cannot be executed.
        """
        (folder / "asked").write_bytes(pickle.dumps(replace(self, jobs=jobs, seconds=seconds)))
        options["env"] = {**self.environment, **options["env"], failpoints.CHECKED: str(folder)}
        try:
            return subprocess.Popen(self.words, cwd=self.folder, **options)  # noqa: S603  # the user's own command
        except OSError as error:
            raise ConfigurationError(
                f"cannot start {self.words[0]!r}: {error.strerror}.\n"
                "Nothing was checked. Pass a command, as in: resumable check -- python train.py"
            ) from None


# The process of the command.


def check_program(words: Sequence[str], seconds: float, tell: Tell, say: Callable[[str], None]) -> CheckReport:
    """Start a program, and check its first Loader that delivers a batch.

    Args:
        words: the program's command.
        seconds: time limit for new trials, from the first batch on.
        tell: called with each part of the report as soon as it is known.
        say: called with a line for the user while the first batch is awaited.

    Raises:
        ConfigurationError: the program cannot be started, ended without a batch, or has several ranks.
    """
    with tempfile.TemporaryDirectory(prefix="resumable-check-") as name:
        asked = Asked(list(words), str(Path.cwd()), dict(os.environ), seconds, time.time())
        Path(name, "found").touch()
        with _started(asked, Path(name)) as child:
            for found in _found(child, Path(name, "found"), say):
                if isinstance(found, ResumableError):
                    raise found
                if isinstance(found, CheckReport):
                    return found
                tell(found)
            status = child.wait()
    raise ConfigurationError(
        f"the program ended with status {status} before a Loader delivered its first batch.\n"
        "Nothing was checked. Wrap its training data with resumable.wrap(); a Loader with evaluation=True is not "
        "checked."
    )


@contextmanager
def _started(asked: Asked, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program in a new process group, and end it with all that it started. A launcher gets time to do so."""
    options = {"stdin": subprocess.DEVNULL, "stdout": 2, "start_new_session": True}  # standard output is the report's
    child = asked.start(folder, None, asked.seconds, env={}, **options)
    try:
        yield child
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE)
        kill_all(f"{failpoints.CHECKED}={folder}", child.pid)
        child.wait()


def _found(child: subprocess.Popen[bytes], path: Path, say: Callable[[str], None]) -> Iterator[Any]:
    """Yield what a program writes, until it ends."""
    told = time.monotonic()
    with path.open("rb") as file:
        while True:
            has_ended, place = child.poll() is not None, file.tell()
            try:
                yield pickle.load(file)  # noqa: S301  # written by `_stop`
                told = float("inf")
            except (EOFError, pickle.UnpicklingError):  # not yet, or not whole yet
                file.seek(place)
                if has_ended:
                    return
                if time.monotonic() > told + _QUIET:
                    told = time.monotonic()
                    say("Waiting for the first batch of a Loader. Ctrl-C ends the program.")
                time.sleep(_TICK)


# The program's process.


def stop_at_first_batch(folder: str) -> None:
    """Check the first Loader that is about to deliver a batch, and end the process."""

    def fetch(name: str, about: tuple[Any, ...]) -> None:
        if name == "loader.fetch":
            failpoints.watch(None)
            _stop(about[0], Path(folder))

    failpoints.watch(fetch)


def _stop(loader: Loader, folder: Path) -> None:
    """Read what the request asks for, and end the process. The program does not continue."""
    os.environ.pop(failpoints.CHECKED, None)  # the program's other processes read as usual
    try:
        asked: Asked = pickle.loads((folder / "asked").read_bytes())  # noqa: S301  # written by `Asked.start`
        with hearing() as said:
            maker = Stopped(loader, said)
            if asked.jobs is not None:
                answer(folder, maker, asked.jobs, asked.seconds)
            else:
                _check(maker, folder / "found", asked, said)
    except FileNotFoundError:  # the check ended, for example because of a different rank
        os._exit(1)
    except BaseException as error:  # noqa: BLE001  # the program must not catch it and train
        sys.stderr.write(f"{raised('checking the program', error)}\n")
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def _check(maker: Stopped, path: Path, asked: Asked, said: list[str]) -> None:
    with path.open("ab") as file:

        def write(what: Any) -> None:
            file.write(pickle.dumps(what))
            file.flush()

        try:
            maker.refuse()
            write(check_all(maker, asked, Clock(asked.seconds), said, write))
        except ResumableError as error:
            write(error)


class Stopped:
    """Makes the Loader of a stopped program again.

    Args:
        loader: which has read nothing yet.
        said: the warnings of this package so far.
    """

    def __init__(self, loader: Loader, said: list[str]) -> None:
        self._loader, self._said, self._generators = loader, said, Generators()
        at_start = loader.acknowledged == Cursor() and not loader.global_step
        self._start = None if at_start else carried(loader.state_dict())
        self._is_copied = _can_be_copied()
        self.is_limited = not self._is_copied and bool(loader._cannot_open_twice())  # noqa: SLF001  # nothing public

    def refuse(self) -> None:
        """Reject a Loader that cannot be checked here.

        Raises:
            ConfigurationError: it has several ranks.
        """
        if (ranks := self._loader._fetcher.world().size) > 1:  # noqa: SLF001  # nothing public says it
            raise ConfigurationError(
                f"the program runs on {ranks} ranks, and a check reads the data of one process.\n"
                "Nothing was checked. Start it on one rank, or break all ranks: resumable chaos run -- COMMAND"
            )

    def all(self) -> dict[str, Loader]:
        """Return a second Loader over the source."""
        self._generators.put_back()
        loader = self._loader
        fetcher, options = loader._again(loader.seed, loader.name)  # noqa: SLF001  # the same
        made: Loader = Loader(fetcher, options, loader._wrapped, loader._again)  # noqa: SLF001  # the same
        if self._start is not None:
            made.load_state_dict(self._start)
        return {"": unrecorded(made)}

    @contextmanager
    def loader(self, key: str, state: Any = None, seek: tuple[int, int] | None = None) -> Iterator[Loader]:
        """Yield it, after it loaded a state or went to an epoch and step."""
        with self.all()[key] as loader:
            if state is not None:
                loader.load_state_dict(state)
            if seek is not None:
                loader.seek(epoch=seek[0], step=seek[1])
            yield loader

    def apart(self, run: Callable[[], T]) -> T:
        """Run a function in a copy of the program.

        Raises:
            ConfigurationError: the copy died, or did not finish in time.
        """
        if not self._is_copied:
            return run()
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=self._run, args=(run, sender))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of threads, which a copy does not have
            process.start()
        sender.close()
        try:
            if not receiver.poll(_LEAST):
                raise ConfigurationError(f"a copy of the program did not answer within {_LEAST:.0f} s.\n{_FUNCTION}")
            notes, error, found = receiver.recv()
        except EOFError:
            process.join()
            raise ConfigurationError(
                f"a copy of the program ended with status {process.exitcode} while it read.\n"
                f"Nothing more was checked. {_FUNCTION}"
            ) from None
        finally:
            receiver.close()
            process.kill()
            process.join()
        self._said += [note for note in notes if note not in self._said]
        if error is not None:
            raise error
        result: T = found
        return result

    def _run(self, run: Callable[[], Any], sender: Connection) -> None:
        known, error, found = len(self._said), None, None
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(1)  # the threads of the program do not exist in a copy
        try:
            found = run()
        except ResumableError as told:
            error = told
        sender.send((self._said[known:], error, found))


_THREADED = ("tensorflow", "jax", "nvidia.dali")  # frameworks whose threads a copy would miss


def _can_be_copied() -> bool:
    """Return whether a copy of this process can read."""
    torch = sys.modules.get("torch")
    uses_gpu = torch is not None and torch.cuda.is_initialized()
    is_threaded = any(name in sys.modules for name in _THREADED)
    is_possible = "fork" in multiprocessing.get_all_start_methods()
    is_wanted = multiprocessing.get_start_method(allow_none=True) in {None, "fork"}  # the script may know why not
    return is_possible and is_wanted and not uses_gpu and not is_threaded
