"""Writing one checkpoint: the data file first, the marker last, and nothing in between that a reader could see."""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING, Any, BinaryIO

from resumable.checkpoint.content import import_torch
from resumable.checkpoint.files import CHUNK
from resumable.checkpoint.marker import ALGORITHM, FORMAT, MARKER, Marker
from resumable.checkpoint.reports import reporting
from resumable.failpoints import point

if TYPE_CHECKING:
    from resumable.checkpoint.files import Files
    from resumable.checkpoint.steps import Steps

__all__ = ["commit"]


def commit(steps: Steps, step: int, token: str, content: Any) -> str | None:
    """Write data and marker, and give the name of the data file that the step's earlier marker named, if any."""
    files, directory = steps.files, steps.directory(step)
    failed = f"step {step} was not saved to {steps.root}, and the checkpoints before it are untouched"
    with reporting(failed, "Mend what it names and save again. A store has one writing process."):
        try:
            replaced = steps.data_file(step)
            files.make_dir(directory)
            marker = _write(files, directory, step, f"{token}.pt", content)
            publish = files.stage(f"{directory}/{MARKER}", f"{directory}/{token}.tmp", marker.dump())
        except BaseException:
            for suffix in ("pt", "tmp"):  # as far as the failing storage lets us; a later save removes the rest
                with contextlib.suppress(Exception):
                    files.remove(f"{directory}/{token}.{suffix}")
            raise
    # From here on the marker may be in place even if an error says otherwise, so the data file has to stay.
    with reporting(f"step {step} may or may not be saved to {steps.root}", "`steps()` says whether it is."):
        publish()
    return replaced


def _write(files: Files, directory: str, step: int, name: str, content: Any) -> Marker:
    """Write a data file, and see that the filesystem holds as many bytes as went in."""
    path = f"{directory}/{name}"
    with files.create(path) as file:
        sink = _Sink(file)
        sink.save(content)
    if (held := files.size(path)) != sink.count:
        raise OSError(f"{path} holds {held} bytes after {sink.count} were written")
    return Marker(FORMAT, step, name, sink.count, ALGORITHM, sink.hash.hexdigest())


_HALF = 2  # the first write is the file's head, so that a part of the file is there at the second


class _Sink:
    """The file that `torch.save` writes to: counts and hashes on the way, and remembers the storage's own error."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.hash = hashlib.new(ALGORITHM)
        self.count = self.writes = 0
        self.error: Exception | None = None

    def save(self, content: Any) -> None:
        """Write `content` in torch's format, and raise the storage's error, which torch covers by its own."""
        torch = import_torch()
        try:
            torch.save(content, self)
        except Exception:
            if self.error is not None:
                raise self.error from None
            raise

    def write(self, data: Any) -> int:
        """Write all of `data` in pieces; each is copied, as torch's memory is valid during this call only."""
        if self.error is not None:
            raise self.error
        self.writes += 1
        if self.writes == _HALF:
            point("store.half")
        view = memoryview(data).cast("B")
        try:
            for start in range(0, len(view), CHUNK):
                piece = bytes(view[start : start + CHUNK])
                self.file.write(piece)
                self.hash.update(piece)
                self.count += len(piece)
        except Exception as error:
            self.error = error
            raise
        return len(view)

    def flush(self) -> None:
        """Do nothing: closing the file flushes it."""
