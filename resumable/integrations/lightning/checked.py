"""CheckedCheckpointIO: the Trainer's checkpoint files, written whole or not at all, and compared when they are read.

Lightning's own files have no checksum: `torch.load` takes most flipped bits of a weight for the weight. It calls no
fsync, either, so that a power cut may leave files that are empty.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from resumable._durable import CHUNK, HashingFile, write_whole
from resumable.errors import CorruptCheckpointError, CorruptCheckpointWarning, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    _CheckpointIO = Any  # that of whichever package, to type checkers
else:
    _CheckpointIO = object

__all__ = ["CheckedCheckpointIO", "register_with_imported"]

_PACKAGES = {"lightning.pytorch": "lightning.fabric", "pytorch_lightning": "lightning_fabric"}
_MAGIC = b"\nresumable-sha256:"  # after the end of torch's file, which torch does not mind
_TRAILER = len(_MAGIC) + 2 * hashlib.sha256().digest_size
_PART = ".checkpoint.part"  # one per directory, so that killed saves leave one file at most
_derived: dict[tuple[type[Any], ...], type[Any]] = {}


class CheckedCheckpointIO(_CheckpointIO):  # type: ignore[misc]  # its base is found when one is made
    """Writes local checkpoint files atomically and durably, with a checksum; for `Trainer(plugins=[...])`.

        trainer = Trainer(plugins=[CheckedCheckpointIO()], callbacks=[ResumableCallback(), ModelCheckpoint(...)])

    A file that was damaged is refused. Where it is the last one (`last.ckpt` and the like, which `ckpt_path="last"`
    finds), the newest whole one beside it is used instead, with a CorruptCheckpointWarning. The files can be read
    without this plugin, and files that were written without it are read, but not compared. URLs go to Lightning's own.
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Make it a CheckpointIO of the Lightning package that is in use."""
        missing = tuple(base for base in _bases() or _bases(["lightning_fabric"]) if base not in cls.__mro__)
        if (cls, *missing) not in _derived:
            _derived[cls, *missing] = type(cls.__name__, (cls, *missing), {"__module__": cls.__module__})
        made: Self = object.__new__(_derived[cls, *missing])
        return made

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint; it is durable when this returns, and until then an older file of that name stays.

        Raises:
            UnsupportedError: there are storage options, and nothing here to give them to.
            OSError: the storage failed.
        """
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        if storage_options is not None:
            raise UnsupportedError(
                "CheckedCheckpointIO writes local files, and knows no storage_options.\nLeave them out."
            )
        final = Path(path)
        final.parent.mkdir(parents=True, exist_ok=True)
        write_whole(final, partial(_write, checkpoint), temporary=final.with_name(_PART), points=True)

    def load_checkpoint(self, path: Any, *args: Any, **options: Any) -> Any:
        """Read a checkpoint.

        Raises:
            CorruptCheckpointError: its bytes are not those which were written, or are no checkpoint.
            FileNotFoundError: there is none.
        """

        def load(file: Any) -> Any:
            return super(CheckedCheckpointIO, self).load_checkpoint(file, *args, **options)

        if "://" in str(path):
            return load(path)
        try:
            return _load_whole(Path(path), load)
        except CorruptCheckpointError as error:
            for other in _older(Path(path)):
                message = f"{error}\nIt was skipped, and {other.name} is used: the work since then is done again."
                warnings.warn(message, CorruptCheckpointWarning, stacklevel=2)
                return load(other)
            raise


def register_with_imported() -> None:
    """Let LightningCLI know that the class is a CheckpointIO, before there is one."""
    for base in _bases():
        base.register(CheckedCheckpointIO)


def _bases(fabrics: Sequence[str] | None = None) -> list[Any]:
    if fabrics is None:
        fabrics = [fabric for package, fabric in _PACKAGES.items() if sys.modules.get(package)]
    return [importlib.import_module(f"{fabric}.plugins.io").TorchCheckpointIO for fabric in fabrics]


def _write(checkpoint: dict[str, Any], file: BinaryIO) -> None:
    sink = HashingFile(file, file.name)
    sink.fill(lambda sink: importlib.import_module("torch").save(checkpoint, sink))
    file.write(_MAGIC + sink.hash.hexdigest().encode())


def _load_whole(path: Path, load: Any) -> Any:
    if path.is_file() and (told := _compare(path)) not in {None, ""}:
        raise CorruptCheckpointError(told)
    try:
        return load(path)
    except FileNotFoundError:
        raise
    except Exception as error:
        if path.is_file() and _compare(path) is None:
            raise CorruptCheckpointError(
                f"The checkpoint {path} is corrupt: it has lost its end, or is no checkpoint. "
                f"{type(error).__name__}: {error}\nResume from another one."
            ) from error
        raise


def _compare(path: Path) -> str | None:
    """Compare a file with its checksum: what is wrong with it, in words; None where it has no checksum."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END) - _TRAILER
        if size < 0:
            return None
        file.seek(size)
        trailer = file.read()
        if not trailer.startswith(_MAGIC):
            return None
        file.seek(0)
        found = hashlib.sha256()
        while chunk := file.read(min(CHUNK, size - file.tell())):
            found.update(chunk)
    written = trailer[len(_MAGIC) :].decode(errors="replace")
    if written == found.hexdigest():
        return ""
    return (
        f"The checkpoint {path} is corrupt: its bytes are not those which were written.\n"
        f"  sha256 when written: {written}\n  sha256 now:          {found.hexdigest()}\n"
        "Training would go on from other weights. Resume from another checkpoint."
    )


def _older(path: Path) -> Iterator[Path]:
    """Yield the newest whole checkpoint beside the last one; none beside any other, which was asked for by name."""
    if path.name.startswith("last"):
        others = [other for other in path.parent.glob("*.ckpt") if other != path and _compare(other) == ""]
        yield from sorted(others, key=lambda other: other.stat().st_mtime_ns)[-1:]
