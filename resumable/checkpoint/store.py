"""CheckpointStore: what a training run and its restart see of the checkpoints."""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  # it registers itself, and has to before `_at_exit` does: see there
import contextlib
import contextvars
import functools
import logging
import operator
import os
import threading
from typing import TYPE_CHECKING, Any, Self, SupportsIndex

from resumable._warn import warn
from resumable.checkpoint.limits import limited, reporting
from resumable.checkpoint.saving import Saving, import_torch, refuse_unloadable, serialize, unpickle
from resumable.checkpoint.steps import Cleaner, Steps, Writer
from resumable.checkpoint.together import Team
from resumable.errors import CheckpointNotFoundError, ConfigurationError, StepOrderWarning
from resumable.failpoints import point

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


__all__ = ["CheckpointStore"]


# The course of a run through the steps of a store: a save that `latest()` would not give is refused, or told.


class Course:
    """The step to which a run has come, by what it has saved to a store and loaded from it.

    Args:
        steps: those of the store.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._at: int | None = None  # None before the first save or load
        self._loads = False  # a step was loaded since the last save
        self._looked = False  # for later steps, since the last load

    def saved(self, step: int) -> None:
        """Note that a step is saved; threads may save at once, in any order."""
        self._at, self._loads = step if self._at is None else max(self._at, step), False

    def resumed(self, step: int | None) -> None:
        """Note that the run goes on from the latest step; None where there was none."""
        if step is not None:
            self._go_to(step)

    def loaded(self, step: int) -> None:
        """Note that the run may go on from a step: of several, from the earliest, as others may only be looked at."""
        self._go_to(min(step, self._at) if self._loads and self._at is not None else step)

    def _go_to(self, step: int) -> None:
        self._looked = self._looked and step == self._at
        self._at, self._loads = step, True

    def admit(self, step: int) -> None:
        """Look whether a step that is about to be saved would be the one that `latest()` gives.

        Raises:
            ConfigurationError: it would not, as the run counts backwards.
            CheckpointError: the storage failed.

        Warns:
            StepOrderWarning: it would not, as there are later steps that the run does not come from; once.
        """
        at = self._at
        backwards = at is not None and step < at
        if self._looked and not backwards:
            return
        with reporting(f"step {step} was not saved to {self._steps.root}, as its steps could not be listed"):
            newest = self._steps.newest_above(step)
        if newest is not None and backwards:
            raise ConfigurationError(_backwards(self._steps.root, step, at, newest))
        self._looked = True
        if backwards:
            self._at = step  # the later ones were deleted
        if newest is not None:
            warn(_not_the_latest(self._steps.root, step, newest), StepOrderWarning)


def _backwards(root: str, step: int, at: int | None, newest: int) -> str:
    return (
        f"step {step} was not saved to {root}: this run has already saved or loaded a later one.\n"
        f"  to be saved:          {step}\n  the run has come to:  {at}\n  newest in the store:  {newest}\n"
        f"`latest()` would go on giving step {newest}, and all that is trained meanwhile would be lost with a crash. "
        "Number checkpoints by what only grows: `save(loader.global_step, ...)`. A new run needs a folder of its own. "
        "If the run went back on purpose, `delete` the steps that it left, or `load` the one that it went back to."
    )


def _not_the_latest(root: str, step: int, newest: int) -> str:
    return (
        f"step {step} is saved to {root}, but a later one is there, which this run does not come from.\n"
        f"  saved now:            {step}\n  newest in the store:  {newest}\n"
        f"`latest()` goes on giving step {newest}, so a restart would not go on from here. Give a new run a folder of "
        "its own. If this run went back to an earlier step, `delete` the later ones, which it left."
    )


# Saves that go on while the training does: one at a time, waited for at the exit, with errors for the next call.

_under_way: set[threading.Thread] = set()


class Background:
    """The save of one store that is under way, if any."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._process = os.getpid()

    def start(self, work: Callable[[], None], what: str) -> None:
        """Do it in a thread; the one before has been waited for."""

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  # the next call raises it
                self._error = error
                message = "%s failed in the background; the next call of the store raises it: %s"
                logging.getLogger("resumable").error(message, what, error)  # noqa: TRY400  # the traceback comes then
            finally:
                _under_way.discard(threading.current_thread())

        _wait_at_exit()
        context = contextvars.Context()  # no limit of the caller's
        self._process = os.getpid()
        self._thread = threading.Thread(target=context.run, args=(run,), name="resumable-save", daemon=True)
        _under_way.add(self._thread)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the save that is under way, and raise its error, once."""
        if self._process != os.getpid():  # in a fork, which has no thread of its parent's
            self._thread, self._error, self._process = None, None, os.getpid()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error


@functools.cache
def _wait_at_exit() -> None:
    """Register what waits, once: before the thread pools end, through which clients of object stores look up names.

    What `atexit` calls comes after their end.
    """
    getattr(threading, "_register_atexit", atexit.register)(_at_exit)


def _at_exit() -> None:
    for thread in tuple(_under_way):
        if thread.is_alive():
            thread.join()


class CheckpointStore:
    """Checkpoints in one directory or bucket prefix, each written whole or not at all.

    ```python
    store = CheckpointStore("runs/digits", keep=3)
    store.save(100, {"model": model.state_dict(), "data": loader.state_dict()})
    if (last := store.latest()) is not None:
        model.load_state_dict(last["model"])
    ```

    A store has one writing process at a time, whose threads may save at once, and any number of readers. The newest
    process that saves is the writer; an older one is refused. With `shared=True` all ranks of the process group use it
    together: rank 0 is the writer, and each rank adds its part. The how-to guide says what a filesystem must provide.

    Args:
        root: local path, or any URL that fsspec knows, such as `s3://bucket/run` or `memory://run`.
        keep: how many of the newest steps stay after a save; None keeps all. The step just saved always stays.
        keep_every: steps that are multiples of it stay for ever, besides the `keep` newest of the others.
        shared: all ranks of the default process group call `save` and `latest`; the latter gives the same step on all.
        timeout: seconds that a save, a load or a listing may take as a whole. None is 1,800 s, and no limit for a local
            path without `shared`; `math.inf` is no limit. After 10 s, 20 s, 40 s, ... a warning is logged.
        verify: try before each save whether `torch.load(weights_only=True)` will accept the content. It costs a
            pickling of everything but the tensors' data, and no reading back.
        storage_options: passed to the fsspec filesystem: credentials, endpoints.

    Raises:
        ConfigurationError: an option without meaning, a protocol that fsspec does not know, or a root that is a file.
        MissingDependencyError: the filesystem's package is not installed.
        CheckpointError: the storage failed.
        CheckpointTimeoutError: it did not answer in time.
    """

    def __init__(  # noqa: PLR0913  # options, by keyword alone
        self,
        root: str | os.PathLike[str],
        *,
        keep: int | None = None,
        keep_every: int | None = None,
        shared: bool = False,
        timeout: float | None = None,
        verify: bool = True,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.root = os.fspath(root)
        self.keep = keep if keep is None else _whole(keep, "keep", 1, "Use None to keep all.")
        self.keep_every = _keep_every(keep_every, self.keep)
        self.shared = shared
        self.timeout = timeout
        self.verify = verify
        self._steps = Steps(self.root, storage_options or {}, timeout, shared=shared)
        self._writer = Writer(self._steps)
        self._cleaner = Cleaner(self._steps, self._writer)
        self._course = Course(self._steps)
        self._background = Background()

    def __repr__(self) -> str:
        return f"CheckpointStore({self.root!r}, keep={self.keep})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        with contextlib.suppress(*([Exception] if error is not None else [])):  # it is in the log
            self.close()

    # ------------------------------------------------------------------ saving

    def save(self, step: SupportsIndex, content: Any, *, part: Any = None, background: bool = False) -> None:
        """Write `content` as the checkpoint of `step`, then remove old steps and the leftovers of crashed saves.

        When this returns, the checkpoint is durable. Until then the other steps, and an earlier save of this step, stay
        loadable. Leftovers are removed from lower steps only, and not where a thread of this process is writing.
        A removal that fails gives a RuntimeWarning, and the next save tries it again.

        A step below the newest one is not what `latest()` gives. So it is refused where this store has saved or loaded
        a later one, and warned about where it has not, or where it has loaded an earlier one since.

        Args:
            step: 0 or more; an integer of any kind, such as numpy's. `loader.global_step` is one that only grows.
            content: dicts and lists of plain values and tensors: what `torch.load(weights_only=True)` accepts. Of a
                shared store that of rank 0 is saved.
            part: what this rank alone has, for `load_part`; of a shared store. All ranks give one, or none does. Each
                rank writes its own, and rank 0 commits when all are there; it returns on no rank before that.
            background: copy the content to memory, and write it in a thread. Every later call of this store first waits
                for it, and raises its error; so does `close`, and the end of the program waits.

        Raises:
            ConfigurationError: the step is negative or no integer, the run counts backwards, the content is None, or
                the ranks save different steps.
            CheckpointError: the content could not be loaded back, the storage failed (then that error is the cause), or
                another rank could not save its part.
            CheckpointTimeoutError: storage or a rank did not answer in time.
            WriterFencedError: a newer process has become the writer.

        Warns:
            StepOrderWarning: a later step is there, which this run does not come from; once.
        """
        number = _step(step)
        if content is None:
            raise ConfigurationError("content is None, which is how `latest()` says no checkpoint. Save a dict.")
        import_torch()
        team = self._team(part)
        self._background.wait()
        if team.rank and part is None:
            return  # what all ranks have, rank 0 saves
        saving = Saving(self._steps, number, None if part is None else team.meet("save"))
        with saving.guarded(), self._limited(f"saving step {number} to"):
            self._steps.refuse_linked(number, "saved")
            if team.rank == 0:
                self._course.admit(number)
                self._writer.claim(f"step {number} was not saved")
            # What this rank writes: the content if it is rank 0, and its part if it has one. An error here comes before
            # the first byte.
            mine = [*([content] if team.rank == 0 else []), *([] if part is None else [part])]
            for one in mine if self.verify else []:
                refuse_unloadable(number, one)
            point("store.save", self, number, content)
            if not background:
                self._write(saving, content, part)
                return
            content = serialize(content) if team.rank == 0 else None
            part = None if part is None else serialize(part)
        self._background.start(lambda: self._write_later(saving, content, part), f"saving step {number} to {self.root}")

    def _write_later(self, saving: Saving, content: Any, part: Any) -> None:
        with saving.guarded(), self._limited(f"saving step {saving.step} in the background to"):
            self._write(saving, content, part)

    def _write(self, saving: Saving, content: Any, part: Any) -> None:
        if saving.rank:
            saving.add(part)
            return
        replaced = saving.commit(content, part, lambda: self._writer.claim(f"step {saving.step} was not saved"))
        self._course.saved(saving.step)
        self._cleaner.tidy(saving.step, replaced, self.keep, self.keep_every)
        point("store.saved", self, saving.step)

    def close(self) -> None:
        """Wait for the save in the background, if there is one; a `with` block does it at its end.

        Raises:
            CheckpointError: as for `save`.
        """
        self._background.wait()

    # ------------------------------------------------------------------ loading

    def load(self, step: SupportsIndex, *, map_location: Any = "cpu") -> Any:
        """Give the content of the checkpoint of `step`, after its bytes were compared with the checksum.

        Args:
            step: a committed step.
            map_location: where tensors go, as in `torch.load`.

        Raises:
            CheckpointNotFoundError: the step is not committed.
            CorruptCheckpointError: its bytes are not the ones that were written; nothing was unpickled.
            CheckpointError: the storage failed, the marker has a newer format, or a class is not allowed here.
            CheckpointTimeoutError: the storage did not answer in time.
        """
        number = _step(step)
        self._background.wait()
        point("store.load", self)
        with self._limited(f"loading step {number} from"):
            content = self._load(number, map_location)
        self._course.loaded(number)
        point("store.loaded", self, number, content)
        return content

    def load_part(self, step: SupportsIndex, *, rank: int | None = None, map_location: Any = "cpu") -> Any:
        """Give the part that a rank has saved with the checkpoint of `step`, after it was compared with the checksum.

        Args:
            step: a committed step, saved with `part=`.
            rank: the one that saved it; this rank by default.
            map_location: where tensors go, as in `torch.load`.

        Raises:
            CheckpointNotFoundError: the step is not committed, or has no part of that rank.
            CorruptCheckpointError: its bytes are not the ones that were written; nothing was unpickled.
            CheckpointError: as for `load`.
        """
        number = _step(step)
        whose = self._team(True).rank if rank is None else _whole(rank, "rank", 0, "Give the rank that saved the part.")
        self._background.wait()
        with self._limited(f"loading the part of rank {whose} of step {number} from"):
            return self._steps.read_part(number, whose, functools.partial(unpickle, self.root, map_location))

    def latest(self, *, map_location: Any = "cpu") -> Any | None:
        """Give the content of the newest checkpoint that is whole, or None before the first save.

        Corrupt checkpoints on the way are skipped with a CorruptCheckpointWarning each. A directory that a crashed save
        left without a marker is no checkpoint, and no reason for a warning. Of a shared store, rank 0 looks for it and
        tells the others, so that all ranks give the same one; each of them has to call this.

        Args:
            map_location: where tensors go, as in `torch.load`.

        Raises:
            CorruptCheckpointError: there are checkpoints and all are corrupt: None would restart training from zero.
            CheckpointError: as for `load`. Storage that fails is not skipped: the checkpoint may be whole.
            CheckpointTimeoutError: storage, or rank 0, did not answer in time.
        """
        point("store.load", self)
        step, content = self._agreed(
            lambda step, file: (step, unpickle(self.root, map_location, step, file)),
            lambda step: (step, self._load(step, map_location)),
        ) or (None, None)
        self._course.resumed(step)
        point("store.loaded", self, step, content)
        return content

    def latest_step(self) -> int | None:
        """Give the step of the checkpoint that `latest()` gives, or None; its data is compared, not unpickled.

        Of a shared store, rank 0 looks and tells the others, as for `latest()`.

        Raises:
            CorruptCheckpointError: there are checkpoints and all are corrupt.
            CheckpointError: as for `load`.
        """
        found = self._agreed(lambda step, _: (step, None), lambda step: (step, None))
        return None if found is None else found[0]

    def steps(self) -> list[int]:
        """Give the committed steps in ascending order, without reading their data.

        Raises:
            CheckpointError: the storage failed.
        """
        self._background.wait()
        with self._limited("listing the steps of"):
            return self._steps.committed()

    def delete(self, step: SupportsIndex) -> None:
        """Remove the checkpoint of `step`, its marker first, so that a crash leaves no half of it.

        Of a shared store, only rank 0 removes it.

        Raises:
            CheckpointNotFoundError: the step is not committed.
            CheckpointError: the storage failed, or the step's directory is a symbolic link.
            WriterFencedError: a newer process has become the writer.
        """
        number = _step(step)
        self._background.wait()
        if self._team(None).rank:
            return
        with self._limited(f"deleting step {number} from"), reporting(f"step {number} in {self.root} was not deleted"):
            if number not in self._steps.committed():
                raise self._steps.not_found(number, "deleted")
            self._steps.refuse_linked(number, "deleted")
            self._writer.claim(f"step {number} was not deleted")
            self._cleaner.remove(number)

    # ------------------------------------------------------------------ inside

    def _limited(self, what: str) -> contextlib.AbstractContextManager[Any]:
        return limited(f"{what} {self.root}", self._steps.seconds)

    def _team(self, part: Any) -> Team:
        if self.shared:
            return Team.of(self.root)
        if part is not None:
            raise ConfigurationError(
                "a part of a rank belongs to a store that all ranks share, and this one is not shared.\n"
                "Make it with CheckpointStore(..., shared=True), on every rank."
            )
        return Team(self.root, None)

    def _load(self, number: int, map_location: Any) -> Any:
        try:
            return self._steps.read(number, functools.partial(unpickle, self.root, map_location))
        except CheckpointNotFoundError:
            raise self._steps.not_found(number, "loaded") from None

    def _agreed(
        self, use: Callable[[int, Any], tuple[int, Any]], follow: Callable[[int], tuple[int, Any]]
    ) -> tuple[int, Any] | None:
        """Give what `use` makes of the newest step, on rank 0, and what `follow` makes of that step, on the others."""
        self._background.wait()
        team = self._team(None)
        with self._limited("looking for the latest step of"):
            if not self.shared:
                return self._steps.newest(use)
            meeting = team.meet("latest")
            if team.rank:
                with reporting("the ranks could not agree on a step"):
                    step = meeting.hear("the ranks could not agree on a step to go on from")
                return None if step is None else follow(step)
            with meeting.leading():
                found = self._steps.newest(use)
                meeting.announce(None if found is None else found[0])
            return found


def _keep_every(value: int | None, keep: int | None) -> int | None:
    if value is None:
        return None
    number = _whole(value, "keep_every", 1, "Use None to keep none for ever.")
    if keep is None:
        raise ConfigurationError(
            f"keep_every={number} has no meaning without `keep`: all steps stay.\nGive both, such as keep=3."
        )
    return number


def _step(step: SupportsIndex) -> int:
    return _whole(step, "step", 0, "Give the number of training steps that were done.")


def _whole(value: SupportsIndex, name: str, least: int, hint: str) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool):
        raise ConfigurationError(
            f"{name} has no meaning here.\n  needed: a whole number, {least} or more\n  got:    {value!r}\n{hint}"
        )
    return number
