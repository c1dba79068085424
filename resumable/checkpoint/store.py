"""CheckpointStore: what a training run and its restart see of the checkpoints."""

from __future__ import annotations

import functools
import operator
import os
from typing import TYPE_CHECKING, Any, SupportsIndex

from resumable.checkpoint.cleaning import Cleaner, being_written
from resumable.checkpoint.content import refuse_unloadable, unpickle
from resumable.checkpoint.course import Course
from resumable.checkpoint.reports import reporting
from resumable.checkpoint.steps import Steps
from resumable.checkpoint.writing import commit
from resumable.errors import CheckpointNotFoundError, ConfigurationError
from resumable.failpoints import point

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CheckpointStore"]


class CheckpointStore:
    """Checkpoints in one directory or bucket prefix, each written whole or not at all.

    ```python
    store = CheckpointStore("runs/digits", keep=3)
    store.save(100, {"model": model.state_dict(), "data": loader.state_dict()})
    if (last := store.latest()) is not None:
        model.load_state_dict(last["model"])
    ```

    A store has one writing process at a time, such as rank 0, whose threads may save at once, and any number of
    readers. Ranks that save different content need a root each. The how-to guide says what a filesystem must provide.

    Args:
        root: local path, or any URL that fsspec knows, such as `s3://bucket/run` or `memory://run`.
        keep: how many of the newest steps stay after a save; None keeps all. The step just saved always stays.
        verify: try before each save whether `torch.load(weights_only=True)` will accept the content. It costs a
            pickling of everything but the tensors' data, and no reading back.
        storage_options: passed to the fsspec filesystem: credentials, endpoints.

    Raises:
        ConfigurationError: `keep` below 1, a protocol that fsspec does not know, or a root that is a file.
        MissingDependencyError: the filesystem's package is not installed.
        CheckpointError: the storage failed.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        keep: int | None = None,
        verify: bool = True,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.root = os.fspath(root)
        self.keep = keep if keep is None else _whole(keep, "keep", 1, "Use None to keep all.")
        self.verify = verify
        self._steps = Steps(self.root, storage_options or {})
        self._cleaner = Cleaner(self._steps)
        self._course = Course(self._steps)

    def __repr__(self) -> str:
        return f"CheckpointStore({self.root!r}, keep={self.keep})"

    def save(self, step: SupportsIndex, content: Any) -> None:
        """Write `content` as the checkpoint of `step`, then remove old steps and the leftovers of crashed saves.

        When this returns, the checkpoint is durable. Until then the other steps, and an earlier save of this step, stay
        loadable. Leftovers are removed from lower steps only, and not where a thread of this process is writing.
        A removal that fails gives a RuntimeWarning, and the next save tries it again.

        A step below the newest one is not what `latest()` gives. So it is refused where this store has saved or loaded
        a later one, and warned about where it has not, or where it has loaded an earlier one since.

        Args:
            step: 0 or more; an integer of any kind, such as numpy's. `loader.global_step` is one that only grows.
            content: dicts and lists of plain values and tensors: what `torch.load(weights_only=True)` accepts.

        Raises:
            ConfigurationError: the step is negative or no integer, the run counts backwards, or the content is None.
            CheckpointError: the content could not be loaded back, or the storage failed (then that error is the cause).

        Warns:
            StepOrderWarning: a later step is there, which this run does not come from; once.
        """
        number = _step(step)
        if content is None:
            raise ConfigurationError("content is None, which is how `latest()` says no checkpoint. Save a dict.")
        self._course.admit(number)
        if self.verify:
            refuse_unloadable(number, content)
        point("store.save", self, number, content)
        with being_written(self._steps.directory(number)) as token:
            replaced = commit(self._steps, number, token, content)
        self._course.saved(number)
        self._cleaner.tidy(number, replaced, self.keep)
        point("store.saved", self, number)

    def load(self, step: SupportsIndex, *, map_location: Any = "cpu") -> Any:
        """Give the content of the checkpoint of `step`, after its bytes were compared with the checksum.

        Args:
            step: a committed step.
            map_location: where tensors go, as in `torch.load`.

        Raises:
            CheckpointNotFoundError: the step is not committed.
            CorruptCheckpointError: its bytes are not the ones that were written; nothing was unpickled.
            CheckpointError: the storage failed, the marker has a newer format, or a class is not allowed here.
        """
        number = _step(step)
        point("store.load", self)
        try:
            content = self._steps.read(number, functools.partial(unpickle, self.root, map_location))
        except CheckpointNotFoundError:
            raise self._steps.not_found(number, "loaded") from None
        self._course.loaded(number)
        point("store.loaded", self, number, content)
        return content

    def latest(self, *, map_location: Any = "cpu") -> Any | None:
        """Give the content of the newest checkpoint that is whole, or None before the first save.

        Corrupt checkpoints on the way are skipped with a CorruptCheckpointWarning each. A directory that a crashed save
        left without a marker is no checkpoint, and no reason for a warning.

        Args:
            map_location: where tensors go, as in `torch.load`.

        Raises:
            CorruptCheckpointError: there are checkpoints and all are corrupt: None would restart training from zero.
            CheckpointError: as for `load`. Storage that fails is not skipped: the checkpoint may be whole.
        """
        point("store.load", self)
        found = self._steps.newest(lambda step, file: (step, unpickle(self.root, map_location, step, file)))
        step, content = (None, None) if found is None else found
        self._course.resumed(step)
        point("store.loaded", self, step, content)
        return content

    def latest_step(self) -> int | None:
        """Give the step of the checkpoint that `latest()` gives, or None; its data is compared, not unpickled.

        Raises:
            CorruptCheckpointError: there are checkpoints and all are corrupt.
            CheckpointError: as for `load`.
        """
        return self._steps.newest(lambda step, _: step)

    def steps(self) -> list[int]:
        """Give the committed steps in ascending order, without reading their data.

        Raises:
            CheckpointError: the storage failed.
        """
        return self._steps.committed()

    def delete(self, step: SupportsIndex) -> None:
        """Remove the checkpoint of `step`, its marker first, so that a crash leaves no half of it.

        Raises:
            CheckpointNotFoundError: the step is not committed.
            CheckpointError: the storage failed.
        """
        number = _step(step)
        if number not in self.steps():
            raise self._steps.not_found(number, "deleted")
        with reporting(f"step {number} in {self.root} could not be deleted"):
            self._cleaner.remove(number)


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
