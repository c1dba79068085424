"""CheckpointStore, which saves, loads and deletes the checkpoints of a run."""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  # must register itself before `_at_exit`: see `_wait_at_exit`
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


class CheckpointStore:
    """Atomic checkpoints in one directory or bucket prefix.

    ```python
    store = CheckpointStore("runs/digits", keep=3)
    store.save(100, {"model": model.state_dict(), "data": loader.state_dict()})
    if (last := store.latest()) is not None:
        model.load_state_dict(last["model"])
    ```

    A store has one writing process at a time and any number of readers. Threads of the writer may save concurrently.
    The newest process that saves becomes the writer, and a save in an older one raises `WriterFencedError`. With
    `shared=True`, all ranks of the process group use the store together: rank 0 is the writer, and each rank adds its
    part. The how-to guide lists the requirements for a filesystem.

    Args:
        root: local path, or any URL that fsspec supports, such as `s3://bucket/run` or `memory://run`.
        keep: number of newest steps to keep after a save; None keeps all. The step just saved is always kept.
        keep_every: also keep all steps that are multiples of this, in addition to the `keep` newest others.
        shared: all ranks of the default process group call `save` and `latest`. `latest` returns the same step on all.
        timeout: seconds that each save, load or listing may take in total; `math.inf` for no limit. None means 1,800 s,
            or no limit for a local path without `shared`. After 10 s, 20 s, 40 s, ... a warning is logged.
        verify: check before each save that `torch.load(weights_only=True)` will accept the content. This pickles
            everything except the tensors' data, and does not read files back.
        storage_options: passed to the fsspec filesystem: credentials, endpoints.

    Raises:
        ConfigurationError: an option is invalid, fsspec does not know the protocol, or the root is a file.
        MissingDependencyError: the filesystem's package is not installed.
        CheckpointError: the storage failed.
        CheckpointTimeoutError: the storage did not answer in time.
    """

    def __init__(  # noqa: PLR0913  # keyword-only options
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
        with contextlib.suppress(*([Exception] if error is not None else [])):  # the log has it
            self.close()

    # ------------------------------------------------------------------ saving

    def save(self, step: SupportsIndex, content: Any, *, part: Any = None, background: bool = False) -> None:
        """Write `content` as the checkpoint of `step`, then remove old steps and the leftovers of crashed saves.

        When this returns, the checkpoint is durable. Until then, all other steps and an earlier save of this step stay
        loadable. Leftovers are removed only from lower steps, and not where a thread of this process is writing. If a
        removal fails, a RuntimeWarning is issued and the next save tries again.

        `latest()` does not return a step below the newest one. Saving such a step raises an error if this store has
        saved or loaded a later step. Otherwise, or if it has loaded an earlier step since, a warning is issued.

        Args:
            step: an integer of at least 0, of any type, such as NumPy's. `loader.global_step` always grows.
            content: dicts and lists of plain values and tensors, as `torch.load(weights_only=True)` accepts them. A
                shared store saves rank 0's content.
            part: content of this rank only, for `load_part`; needs a shared store. Either all ranks pass a part or
                none. Each rank writes its own part, and rank 0 commits when all are written. The call returns after the
                commit.
            background: copy the content to memory, and write it in a thread. Later calls of this store, including
                `close`, first wait for that save and raise its error. The program waits for it at exit.

        Raises:
            ConfigurationError: the step is not an integer of at least 0, the run counts backwards, the content is None,
                or the ranks save different steps.
            CheckpointError: the content could not be loaded again, the storage failed (that error is the cause), or a
                different rank could not save its part.
            CheckpointTimeoutError: the storage or a rank did not answer in time.
            WriterFencedError: a newer process has become the writer.

        Warns:
            StepOrderWarning: the store has a later step that this run did not resume from; once.
        """
        number = _step(step)
        if content is None:
            raise ConfigurationError(
                "content is None, which `latest()` returns if there is no checkpoint. Save a dict instead."
            )
        import_torch()
        team = self._team(part)
        self._background.wait()
        if team.rank and part is None:
            return  # rank 0 saves the content of all ranks
        saving = Saving(self._steps, number, None if part is None else team.meet("save"))
        with saving.guarded(), self._limited(f"saving step {number} to"):
            self._steps.refuse_linked(number, "saved")
            if team.rank == 0:
                self._course.admit(number)
                self._writer.claim(f"step {number} was not saved")
            # Rank 0 writes the content, and each rank its part. Verify them before the first byte is written.
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
        """Wait for a background save, if there is one. A `with` block does this at its end.

        Raises:
            CheckpointError: as for `save`.
        """
        self._background.wait()

    # ------------------------------------------------------------------ loading

    def load(self, step: SupportsIndex, *, map_location: Any = "cpu") -> Any:
        """Return the content of the checkpoint of `step`, after verifying its checksum.

        Args:
            step: a committed step.
            map_location: device for the tensors, as in `torch.load`.

        Raises:
            CheckpointNotFoundError: the step is not committed.
            CorruptCheckpointError: the bytes have changed. Nothing was unpickled.
            CheckpointError: the storage failed, the marker has a newer format, or `torch.load` does not allow a class.
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
        """Return the part that a rank saved with the checkpoint of `step`, after verifying its checksum.

        Args:
            step: a committed step, saved with `part=`.
            rank: the rank that saved the part. The default is this rank.
            map_location: device for the tensors, as in `torch.load`.

        Raises:
            CheckpointNotFoundError: the step is not committed, or has no part of that rank.
            CorruptCheckpointError: the bytes have changed. Nothing was unpickled.
            CheckpointError: as for `load`.
        """
        number = _step(step)
        whose = self._team(True).rank if rank is None else _whole(rank, "rank", 0, "Pass the rank that saved the part.")
        self._background.wait()
        with self._limited(f"loading the part of rank {whose} of step {number} from"):
            return self._steps.read_part(number, whose, functools.partial(unpickle, self.root, map_location))

    def latest(self, *, map_location: Any = "cpu") -> Any | None:
        """Return the content of the newest intact checkpoint, or None before the first save.

        Newer corrupt checkpoints are skipped with a CorruptCheckpointWarning each. Directories of crashed saves, which
        have no marker, are skipped without a warning. In a shared store, rank 0 finds the step for all ranks, so they
        return the same one. All ranks must call this.

        Args:
            map_location: device for the tensors, as in `torch.load`.

        Raises:
            CorruptCheckpointError: all checkpoints are corrupt. Returning None would restart training from scratch.
            CheckpointError: as for `load`. A checkpoint is not skipped if the storage fails, because it may be intact.
            CheckpointTimeoutError: the storage or rank 0 did not answer in time.
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
        """Return the step of the checkpoint that `latest()` would return, or None. Its checksum is verified.

        In a shared store, rank 0 finds the step for all ranks, as in `latest()`.

        Raises:
            CorruptCheckpointError: all checkpoints are corrupt.
            CheckpointError: as for `load`.
        """
        found = self._agreed(lambda step, _: (step, None), lambda step: (step, None))
        return None if found is None else found[0]

    def steps(self) -> list[int]:
        """Return the committed steps in ascending order, without reading their data.

        Raises:
            CheckpointError: the storage failed.
        """
        self._background.wait()
        with self._limited("listing the steps of"):
            return self._steps.committed()

    def delete(self, step: SupportsIndex) -> None:
        """Remove the checkpoint of `step`. Its marker is removed first, so a crash cannot leave a partial checkpoint.

        In a shared store, only rank 0 removes it.

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
                "parts of ranks need a shared store, but this store has shared=False.\n"
                "Create it with CheckpointStore(..., shared=True) on every rank."
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
        """Return the result of `use` for the newest step on rank 0, and of `follow` for that step on other ranks."""
        self._background.wait()
        team = self._team(None)
        with self._limited("finding the latest step of"):
            if not self.shared:
                return self._steps.newest(use)
            meeting = team.meet("latest")
            if team.rank:
                with reporting("the ranks could not agree on a step"):
                    step = meeting.hear("the ranks could not agree on a step to continue from")
                return None if step is None else follow(step)
            with meeting.leading():
                found = self._steps.newest(use)
                meeting.announce(None if found is None else found[0])
            return found


def _keep_every(value: int | None, keep: int | None) -> int | None:
    if value is None:
        return None
    number = _whole(value, "keep_every", 1, "Use None to keep only the newest steps.")
    if keep is None:
        raise ConfigurationError(
            f"keep_every={number} has no effect without `keep`, because all steps are kept.\nPass both, for example "
            f"keep=3, keep_every={number}."
        )
    return number


def _step(step: SupportsIndex) -> int:
    return _whole(step, "step", 0, "Pass the number of training steps so far.")


def _whole(value: SupportsIndex, name: str, least: int, hint: str) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool):
        raise ConfigurationError(f"{name} must be an integer of at least {least}, but got {value!r}.\n{hint}")
    return number


# ---------------------------------------------------------------------- saves that `latest()` would not return


class Course:
    """The steps that a run has saved and loaded. It rejects or reports a save that `latest()` would not return.

    Args:
        steps: of the store.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._at: int | None = None  # None before the first save or load
        self._loads = False  # a step was loaded since the last save
        self._checked = False  # for later steps, since the last load

    def saved(self, step: int) -> None:
        """Note that a step is saved. Threads may save concurrently, in any order."""
        self._at, self._loads = step if self._at is None else max(self._at, step), False

    def resumed(self, step: int | None) -> None:
        """Note that the run continues from the latest step; None if there was none."""
        if step is not None:
            self._go_to(step)

    def loaded(self, step: int) -> None:
        """Note that a step was loaded. If several are, assume that the run continues from the earliest."""
        self._go_to(min(step, self._at) if self._loads and self._at is not None else step)

    def _go_to(self, step: int) -> None:
        self._checked = self._checked and step == self._at
        self._at, self._loads = step, True

    def admit(self, step: int) -> None:
        """Check that `latest()` would return a step that is about to be saved.

        Raises:
            ConfigurationError: it would not, because the run counts backwards.
            CheckpointError: the storage failed.

        Warns:
            StepOrderWarning: it would not, because the store has a later step that this run did not resume from; once.
        """
        at = self._at
        backwards = at is not None and step < at
        if self._checked and not backwards:
            return
        with reporting(f"step {step} was not saved to {self._steps.root}: its steps could not be listed"):
            newest = self._steps.newest_above(step)
        if newest is not None and backwards:
            raise ConfigurationError(_backwards(self._steps.root, step, at, newest))
        self._checked = True
        if backwards:
            self._at = step  # the later ones were deleted
        if newest is not None:
            warn(_not_the_latest(self._steps.root, step, newest), StepOrderWarning)


def _backwards(root: str, step: int, at: int | None, newest: int) -> str:
    return (
        f"step {step} was not saved to {root}: this run has already saved or loaded a later step.\n"
        f"  step to save:             {step}\n  saved or loaded already:  {at}\n"
        f"  newest in the store:      {newest}\n"
        f"`latest()` would still return step {newest}, so a crash would lose the training since then. Use step numbers "
        "that only grow, such as `save(loader.global_step, ...)`. Use a separate folder for each run. If you went back "
        "on purpose, `delete` the later steps, or `load` the step that you went back to."
    )


def _not_the_latest(root: str, step: int, newest: int) -> str:
    return (
        f"step {step} was saved to {root}, but the store has a later step that this run did not resume from.\n"
        f"  saved now:            {step}\n  newest in the store:  {newest}\n"
        f"`latest()` still returns step {newest}, so a restart would not continue from this save. Use a separate "
        "folder for each run. If you went back to an earlier step on purpose, `delete` the later ones."
    )


# ---------------------------------------------------------------------- saves in the background

_under_way: set[threading.Thread] = set()


class Background:
    """The background save of a store, one at a time. The next call raises its error."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._process = os.getpid()

    def start(self, work: Callable[[], None], what: str) -> None:
        """Start work in a thread. The previous one must be done."""

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  # the next call raises it
                self._error = error
                message = "%s failed in the background: %s. The next call of the store raises this error."
                logging.getLogger("resumable").error(message, what, error)  # noqa: TRY400  # it has the traceback
            finally:
                _under_way.discard(threading.current_thread())

        _wait_at_exit()
        context = contextvars.Context()  # no limit of the caller's
        self._process = os.getpid()
        self._thread = threading.Thread(target=context.run, args=(run,), name="resumable-save", daemon=True)
        _under_way.add(self._thread)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the save in progress, and raise its error once."""
        if self._process != os.getpid():  # a forked process does not have its parent's threads
            self._thread, self._error, self._process = None, None, os.getpid()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error


@functools.cache
def _wait_at_exit() -> None:
    """Make the interpreter wait for saves at exit, before it shuts down thread pools. Runs only once.

    Clients of object stores use such pools to look up host names. Functions of `atexit` would run too late.
    """
    getattr(threading, "_register_atexit", atexit.register)(_at_exit)


def _at_exit() -> None:
    for thread in tuple(_under_way):
        if thread.is_alive():
            thread.join()
