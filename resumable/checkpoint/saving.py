"""One save of one rank: alone, or with the parts of all ranks."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import pickle
import types
import warnings
from collections.abc import Mapping
from time import sleep
from typing import TYPE_CHECKING, Any, BinaryIO

from resumable._distribution import pip_install
from resumable._durable import HashingFile
from resumable.checkpoint.limits import in_one_line, reporting, waiting_for
from resumable.checkpoint.marker import ALGORITHM, ALONE, FORMAT, MARKER, Marker, Part
from resumable.checkpoint.steps import being_written
from resumable.errors import CheckpointError, MissingDependencyError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from resumable._storage import Storage
    from resumable.checkpoint.steps import Steps
    from resumable.checkpoint.together import Meeting


__all__ = ["Saving", "import_torch", "refuse_unloadable", "serialize", "unpickle"]

_APPEARS = 15.0  # seconds until a file of a different host must be visible; network filesystems cache names


class Saving:
    """The save of a step by this rank.

    Args:
        steps: of the store.
        step: the step to save.
        meeting: of the ranks that save parts; None for a checkpoint without parts.
    """

    def __init__(self, steps: Steps, step: int, meeting: Meeting | None) -> None:
        self._steps, self.step, self._meeting = steps, step, meeting

    @property
    def rank(self) -> int:
        """This process's rank. Rank 0 commits."""
        return 0 if self._meeting is None else self._meeting.rank

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """If this rank fails, tell the others, so they do not wait for it."""
        with self._meeting.leading() if self._meeting else contextlib.nullcontext():
            yield

    def add(self, part: Any) -> None:
        """Write this rank's part, tell rank 0, and wait until it has committed the step."""
        assert self._meeting is not None
        with being_written(self._steps.directory(self.step)) as name:
            self._meeting.bring(self.step, write_part(self._steps, self.step, self.rank, name, part))
            with reporting(
                f"step {self.step} may or may not be saved to {self._steps.root}", "Use `steps()` to check."
            ):
                self._meeting.hear(not_saved(self._steps, self.step))

    def commit(self, content: Any, part: Any, check: Callable[[], None]) -> set[str]:
        """Write the content and rank 0's part, wait for the other parts, and commit the step.

        Args:
            content: saved once for all ranks.
            part: of this rank, if the checkpoint has parts.
            check: called when everything is written, before the commit.

        Returns:
            The names of the data files of an earlier save of this step.
        """
        directory = self._steps.directory(self.step)
        with being_written(directory) as name, contextlib.ExitStack() as own:

            def before() -> Sequence[Part]:
                parts: list[Part] = []
                if self._meeting is not None:
                    token = own.enter_context(being_written(directory))
                    parts = self._meeting.collect(self.step, write_part(self._steps, self.step, 0, token, part))
                    self._wait_for_files(parts)
                check()
                return parts

            replaced = write_and_commit(self._steps, self.step, name, content, before=before)
        if self._meeting is not None:
            self._meeting.announce(self.step)
        return replaced

    def _wait_for_files(self, parts: Sequence[Part]) -> None:
        """Wait until rank 0 sees the parts that other hosts have written."""
        waited = 0.0
        while True:
            held = self._steps.files.sizes(self._steps.directory(self.step))
            hidden = [part for part in parts if held.get(part.file) != part.size]
            if not hidden:
                waiting_for("")
                return
            if waited >= _APPEARS:
                part = hidden[0]
                raise CheckpointError(
                    f"rank 0 cannot find the part that rank {part.rank} has written to {self._steps.root}.\n"
                    f"  written:  {part.file}, {part.size} bytes\n  found:    {held.get(part.file, 'no such file')}\n"
                    "The root of a shared store must be visible to all hosts. Use a network filesystem or a bucket."
                )
            waiting_for(f"the file of rank {hidden[0].rank} to appear")
            sleep(pause := 0.05 + waited / 5)
            waited += pause


# ---------------------------------------------------------------------- writing: data files first, the marker last

_TORN = "Fix the cause and save again. A store can have only one writing process."


class Serialized:
    """A copy of the content in memory, as `torch.save` wrote it. Later changes of the tensors do not affect it."""

    def __init__(self, data: bytes) -> None:
        self.data = data


def serialize(content: Any) -> Serialized:
    """Copy content to memory in the format of `torch.save`."""
    torch, buffer = import_torch(), io.BytesIO()
    torch.save(content, buffer)
    return Serialized(buffer.getvalue())  # a view in a cycle may outlive the buffer, and crash Python 3.12


def not_saved(steps: Steps, step: int) -> str:
    """Return the first line of an error that left everything unchanged."""
    return f"step {step} was not saved to {steps.root}; earlier checkpoints are unchanged"


def write_part(steps: Steps, step: int, rank: int, name: str, content: Any) -> Part:
    """Write the part of one rank. It is a leftover until rank 0 commits the step."""
    path = f"{steps.directory(step)}/{name}.pt"
    with reporting(not_saved(steps, step), _TORN):
        try:
            steps.files.make_dir(steps.directory(step))
            size, digest = _write(steps.files, path, content)
            steps.files.settle(steps.directory(step))
        except BaseException:
            _give_up(steps.files, [path])
            raise
    return Part(rank, f"{name}.pt", size, digest)


def write_and_commit(
    steps: Steps,
    step: int,
    name: str,
    content: Any,
    *,
    before: Callable[[], Sequence[Part]],
) -> set[str]:
    """Write the data and the marker.

    Args:
        steps: of the store.
        step: the step to commit.
        name: a new, unique name for the data file, without its extension.
        content: the content, or a `Serialized` copy of it.
        before: called between writing the data and the marker; returns the parts of the ranks, if any.

    Returns:
        The names of the data files in the step's earlier marker.
    """
    files, directory = steps.files, steps.directory(step)
    with reporting(not_saved(steps, step), _TORN):
        try:
            replaced = steps.data_files(step)
            files.make_dir(directory)
            size, digest = _write(files, f"{directory}/{name}.pt", content)
            parts = tuple(before())
            marker = Marker(FORMAT if parts else ALONE, step, f"{name}.pt", size, ALGORITHM, digest, parts)
            publish = files.stage(f"{directory}/{MARKER}", f"{directory}/{name}.tmp", marker.dump())
        except BaseException:
            _give_up(files, [f"{directory}/{name}.{suffix}" for suffix in ("pt", "tmp")])
            raise
    # From here on the marker may exist even if an error is raised, so the data file must not be removed.
    with reporting(f"step {step} may or may not be saved to {steps.root}", "Use `steps()` to check."):
        publish()
    return replaced


def _give_up(files: Storage, paths: Sequence[str]) -> None:
    """Remove files as far as the failing storage allows. A later save removes the rest."""
    for path in paths:
        with contextlib.suppress(Exception):
            files.remove(path)


def _write(files: Storage, path: str, content: Any) -> tuple[int, str]:
    """Write a data file, check its size on the filesystem, and return the size and the digest."""
    with files.create(path) as file:
        sink = HashingFile(file)
        sink.fill(functools.partial(_save, content))
    if (held := files.size(path)) != sink.count:
        raise OSError(f"{path} has {held} bytes after {sink.count} bytes were written")
    return sink.count, sink.hash.hexdigest()


def _save(content: Any, file: HashingFile) -> None:
    if isinstance(content, Serialized):
        half = len(content.data) // 2
        with memoryview(content.data) as view, view[:half] as first, view[half:] as second:
            file.write(first)
            file.write(second)
    else:
        import_torch().save(content, file)


# ---------------------------------------------------------------------- content that torch.load accepts


def import_torch() -> Any:
    """Import PyTorch, or say how to install it."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        message = f"CheckpointStore needs PyTorch, which is not installed.\nInstall it: {pip_install('torch')}"
        raise MissingDependencyError(message) from error


def unpickle(root: str, map_location: Any, step: int, file: BinaryIO) -> Any:
    """Return the content of a data file, if `torch.load` allows all of its classes."""
    try:
        return import_torch().load(file, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"step {step} in {root} is intact, but `torch.load(weights_only=True)` does not allow a class in it.\n"
            f"  {in_one_line(error)}\n"
            "Allow the class with `torch.serialization.add_safe_globals`, as in the run that saved it."
        ) from error


def refuse_unloadable(step: int, content: Any) -> None:
    """Check before a save that `torch.load(weights_only=True)` will accept the content.

    Raises:
        CheckpointError: it will not.
    """
    if (error := _trial(content)) is not None:
        if isinstance(error, UnsupportedError):  # a Loader: the error says what to save instead
            raise CheckpointError(
                f"step {step} was not saved: {_culprit(content, 'content')} cannot be saved.\n{error}"
            ) from error
        raise CheckpointError(
            f"step {step} was not saved: `torch.load(weights_only=True)` would not accept "
            f"{_culprit(content, 'content')}, so the checkpoint could never be loaded.\n"
            f"  {in_one_line(error)}\n"
            "Convert it to numbers, strings, bytes, lists, dicts or tensors, or allow its class with "
            "`torch.serialization.add_safe_globals` both in this run and in the run that loads it."
        ) from error


def _trial(content: Any) -> Exception | None:
    """Save and load `content` in memory with empty tensors, and return the error if there is one."""
    try:
        _round_trip(content, types.SimpleNamespace(__name__="pickle", Pickler=_TrialPickler))
    except MissingDependencyError:
        raise
    except Exception as error:  # noqa: BLE001 - pickling runs code of any class, which may raise anything
        return error
    return None


def _round_trip(content: Any, pickle_module: Any) -> None:
    torch, buffer = import_torch(), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions of PyTorch warn of sparse tensors, which may be an error here
        torch.save(content, buffer, pickle_module=pickle_module)
        buffer.seek(0)
        torch.load(buffer, map_location="cpu", weights_only=True)


class _TrialPickler(pickle.Pickler):
    """Writes empty tensors instead of ordinary ones, and tries each of the others separately with its data."""

    def reducer_override(self, value: Any) -> Any:
        torch = import_torch()
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        ordinary = (
            type(value) in (torch.Tensor, torch.nn.Parameter)
            and value.layout is torch.strided
            and value.device.type in ("cpu", "cuda")
            and not (value.is_quantized or value.is_nested or vars(value))
        )
        if not ordinary:
            _round_trip(value, pickle)
        return torch.empty(0, dtype=value.dtype if ordinary else None).__reduce_ex__(2)


def _culprit(content: Any, path: str) -> str:
    """Return the path and type of the smallest part of `content` that cannot be loaded again."""
    parts: Any = enumerate(content) if isinstance(content, list | tuple) else ()
    for key, part in content.items() if isinstance(content, Mapping) else parts:
        if _trial(part) is not None:
            return _culprit(part, f"{path}[{key!r}]")
    return f"{path} (a {type(content).__module__}.{type(content).__qualname__})"
