"""Writing one checkpoint: the data files first, the marker last, and nothing in between that a reader could see."""

from __future__ import annotations

import contextlib
import functools
import io
from typing import TYPE_CHECKING, Any

from resumable._durable import HashingFile
from resumable.checkpoint.content import import_torch
from resumable.checkpoint.marker import ALGORITHM, ALONE, FORMAT, MARKER, Marker, Part
from resumable.checkpoint.reports import reporting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from resumable._storage import Storage
    from resumable.checkpoint.steps import Steps

__all__ = ["Serialized", "not_saved", "serialize", "write_and_commit", "write_part"]

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
