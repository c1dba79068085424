"""One save of one rank: alone, or with the parts of all ranks."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import pickle
import types
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


# The content of a checkpoint: loading it with torch, and refusing before a save what could not be loaded.


def import_torch() -> Any:
    """Import torch, or say how to install it."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        message = (
            f"CheckpointStore writes torch's format, and torch is not installed.\nInstall it: {pip_install('torch')}"
        )
        raise MissingDependencyError(message) from error


def unpickle(root: str, map_location: Any, step: int, file: BinaryIO) -> Any:
    """Give the content of a data file, unless it has a class that is not allowed here."""
    try:
        return import_torch().load(file, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"step {step} in {root} is whole, but `torch.load(weights_only=True)` refuses it here.\n"
            f"  {in_one_line(error)}\n"
            "Allow the class with `torch.serialization.add_safe_globals` as in the run that saved it."
        ) from error


def refuse_unloadable(step: int, content: Any) -> None:
    """Refuse content that `torch.load(weights_only=True)` would refuse, before anything is written."""
    if (error := _trial(content)) is not None:
        if isinstance(error, UnsupportedError):  # a Loader, which says itself what to save instead
            raise CheckpointError(
                f"step {step} was not saved: {_culprit(content, 'content')} is refused: {error}"
            ) from error
        raise CheckpointError(
            f"step {step} was not saved: {_culprit(content, 'content')} cannot be saved so that "
            f"`torch.load(weights_only=True)` accepts it, and the checkpoint could never be loaded.\n"
            f"  {in_one_line(error)}\n"
            "Convert it to numbers, strings, bytes, lists, dicts or tensors, or allow its class with "
            "`torch.serialization.add_safe_globals` in this run and in the one that loads it."
        ) from error


def _trial(content: Any) -> Exception | None:
    """Save and load `content` in memory with empty tensors, and give the error if there is one."""
    try:
        _round_trip(content, types.SimpleNamespace(__name__="pickle", Pickler=_TrialPickler))
    except MissingDependencyError:
        raise
    except Exception as error:  # noqa: BLE001 - pickling runs code of any class; whatever it raises is the finding
        return error
    return None


def _round_trip(content: Any, pickle_module: Any) -> None:
    torch, buffer = import_torch(), io.BytesIO()
    torch.save(content, buffer, pickle_module=pickle_module)
    buffer.seek(0)
    torch.load(buffer, map_location="cpu", weights_only=True)


class _TrialPickler(pickle.Pickler):
    """Writes empty tensors in place of the ordinary ones, and tries the others whole, by themselves."""

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
    """Find the smallest part of `content` that cannot be loaded back, and give its place and type."""
    parts: Any = enumerate(content) if isinstance(content, list | tuple) else ()
    for key, part in content.items() if isinstance(content, Mapping) else parts:
        if _trial(part) is not None:
            return _culprit(part, f"{path}[{key!r}]")
    return f"{path}, a {type(content).__module__}.{type(content).__qualname__},"


# Writing one checkpoint: the data files first, the marker last, and nothing in between that a reader could see.

_TORN = "Mend what it names and save again. A store has one writing process."


class Serialized:
    """Content as torch has written it, in memory, so that later changes of the tensors are not in it."""

    def __init__(self, data: memoryview) -> None:
        self.data = data


def serialize(content: Any) -> Serialized:
    """Copy content to memory, in torch's format."""
    torch, buffer = import_torch(), io.BytesIO()
    torch.save(content, buffer)
    return Serialized(buffer.getbuffer())


def not_saved(steps: Steps, step: int) -> str:
    """Give the first line of an error that left everything as it was."""
    return f"step {step} was not saved to {steps.root}, and the checkpoints before it are untouched"


def write_part(steps: Steps, step: int, rank: int, name: str, content: Any) -> Part:
    """Write what one rank has to save. Nothing names it yet, so it is a leftover until rank 0 commits the step."""
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
    """Write data and marker.

    Args:
        steps: those of the store.
        step: to be committed.
        name: of the data file, without its ending; never used before.
        content: what is saved, or `Serialized`.
        before: called when the data is written, before the marker is; gives the parts of the ranks, if any.

    Returns:
        The names of the data files that the step's earlier marker named.
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
    # From here on the marker may be in place even if an error says otherwise, so the data file has to stay.
    with reporting(f"step {step} may or may not be saved to {steps.root}", "`steps()` says whether it is."):
        publish()
    return replaced


def _give_up(files: Storage, paths: Sequence[str]) -> None:
    """Remove files as far as the failing storage lets us; a later save removes the rest."""
    for path in paths:
        with contextlib.suppress(Exception):
            files.remove(path)


def _write(files: Storage, path: str, content: Any) -> tuple[int, str]:
    """Write a data file, see that the filesystem holds as many bytes as went in, and give their number and digest."""
    with files.create(path) as file:
        sink = HashingFile(file)
        sink.fill(functools.partial(_save, content))
    if (held := files.size(path)) != sink.count:
        raise OSError(f"{path} holds {held} bytes after {sink.count} were written")
    return sink.count, sink.hash.hexdigest()


def _save(content: Any, file: HashingFile) -> None:
    if isinstance(content, Serialized):
        half = len(content.data) // 2
        file.write(content.data[:half])
        file.write(content.data[half:])
    else:
        import_torch().save(content, file)


_APPEARS = 15.0  # seconds after which a file of another host is there; network file systems cache names for a while


class Saving:
    """A save of a step.

    Args:
        steps: those of the store.
        step: to be saved.
        meeting: of the ranks that save parts; None for a checkpoint without parts.
    """

    def __init__(self, steps: Steps, step: int, meeting: Meeting | None) -> None:
        self._steps, self.step, self._meeting = steps, step, meeting

    @property
    def rank(self) -> int:
        """This process's rank; 0 for the one that commits."""
        return 0 if self._meeting is None else self._meeting.rank

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Tell the other ranks if this one fails, so that none of them waits for it."""
        with self._meeting.leading() if self._meeting else contextlib.nullcontext():
            yield

    def add(self, part: Any) -> None:
        """Write this rank's part, tell rank 0, and wait until it has committed the step."""
        assert self._meeting is not None
        with being_written(self._steps.directory(self.step)) as name:
            self._meeting.bring(self.step, write_part(self._steps, self.step, self.rank, name, part))
            with reporting(
                f"step {self.step} may or may not be saved to {self._steps.root}", "`steps()` says whether."
            ):
                self._meeting.hear(not_saved(self._steps, self.step))

    def commit(self, content: Any, part: Any, check: Callable[[], None]) -> set[str]:
        """Write the content and rank 0's part, wait for the parts of the others, and commit the step.

        Args:
            content: what is saved once for all ranks.
            part: of this rank, if the checkpoint has parts.
            check: called when all is written, and nothing is committed.

        Returns:
            The names of the data files that an earlier save of this step has left.
        """
        directory = self._steps.directory(self.step)
        with being_written(directory) as name, contextlib.ExitStack() as own:

            def before() -> Sequence[Part]:
                parts: list[Part] = []
                if self._meeting is not None:
                    token = own.enter_context(being_written(directory))
                    parts = self._meeting.collect(self.step, write_part(self._steps, self.step, 0, token, part))
                    self._see(parts)
                check()
                return parts

            replaced = write_and_commit(self._steps, self.step, name, content, before=before)
        if self._meeting is not None:
            self._meeting.announce(self.step)
        return replaced

    def _see(self, parts: Sequence[Part]) -> None:
        """See that rank 0 finds the parts that other hosts have written."""
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
                    f"the part of rank {part.rank} is not in {self._steps.root} as rank 0 sees it.\n"
                    f"  written:  {part.file}, {part.size} bytes\n  found:    {held.get(part.file, 'no such file')}\n"
                    "A shared store needs a root that all hosts share: a network file system or a bucket."
                )
            waiting_for(f"the file of rank {hidden[0].rank} to appear")
            sleep(pause := 0.05 + waited / 5)
            waited += pause
