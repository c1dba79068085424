"""CheckedCheckpointIO writes the Trainer's checkpoint files atomically, and verifies their checksums on load.

Lightning's own files have no checksum, so `torch.load` does not notice most flipped bits. Lightning also calls no
fsync, so a power failure may leave empty files.
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

    _CheckpointIO = Any  # type checkers see the class of either package
else:
    _CheckpointIO = object

__all__ = ["CheckedCheckpointIO", "register_with_imported"]

_PACKAGES = {"lightning.pytorch": "lightning.fabric", "pytorch_lightning": "lightning_fabric"}
_MAGIC = b"\nresumable-sha256:"  # after the end of PyTorch's file, which torch.load ignores
_TRAILER = len(_MAGIC) + 2 * hashlib.sha256().digest_size
_PART = ".checkpoint.part"  # one per directory, so killed saves leave at most one file
_derived: dict[tuple[type[Any], ...], type[Any]] = {}


class CheckedCheckpointIO(_CheckpointIO):  # type: ignore[misc]  # its base is found when one is created
    """Writes local checkpoint files atomically and durably, with a checksum. Use it in `Trainer(plugins=[...])`.

        trainer = Trainer(plugins=[CheckedCheckpointIO()], callbacks=[ResumableCallback(), ModelCheckpoint(...)])

    Loading a damaged file raises `CorruptCheckpointError`. If the damaged file is the last one (`last.ckpt` and
    similar, found by `ckpt_path="last"`), the newest intact file in its folder is loaded instead, with a
    `CorruptCheckpointWarning`. The files can also be read without this plugin. Files from other writers are read
    without verification. URLs are passed to Lightning's own class.
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Create a CheckpointIO of the Lightning package in use."""
        missing = tuple(base for base in _bases() or _bases(["lightning_fabric"]) if base not in cls.__mro__)
        if (cls, *missing) not in _derived:
            _derived[cls, *missing] = type(cls.__name__, (cls, *missing), {"__module__": cls.__module__})
        made: Self = object.__new__(_derived[cls, *missing])
        return made

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint. It is durable when this returns; until then, an older file of that name is kept.

        Raises:
            UnsupportedError: there are storage options for a local file.
            OSError: the storage failed.
        """
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        if storage_options is not None:
            raise UnsupportedError(
                f"storage_options={storage_options!r} was passed for the local file {path}.\n"
                "CheckedCheckpointIO uses them only for URLs. Remove storage_options."
            )
        final = Path(path)
        final.parent.mkdir(parents=True, exist_ok=True)
        write_whole(final, partial(_write, checkpoint), temporary=final.with_name(_PART), points=True)

    def load_checkpoint(self, path: Any, *args: Any, **options: Any) -> Any:
        """Read a checkpoint.

        Raises:
            CorruptCheckpointError: its bytes have changed, or it is not a checkpoint.
            FileNotFoundError: the file does not exist.
        """

        def load(file: Any) -> Any:
            return super(CheckedCheckpointIO, self).load_checkpoint(file, *args, **options)

        if "://" in str(path):
            return load(path)
        try:
            return _load_checked(Path(path), load)
        except CorruptCheckpointError as error:
            for other in _older(Path(path)):
                message = f"{error}\nUsing {other.name} instead: training repeats the steps since then."
                warnings.warn(message, CorruptCheckpointWarning, stacklevel=2)
                return load(other)
            raise


def register_with_imported() -> None:
    """Make the class a CheckpointIO for LightningCLI before an instance exists."""
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


def _load_checked(path: Path, load: Any) -> Any:
    if path.is_file() and (problem := _verify(path)) not in {None, ""}:
        raise CorruptCheckpointError(problem)
    try:
        return load(path)
    except FileNotFoundError:
        raise
    except Exception as error:
        if path.is_file() and _verify(path) is None:
            raise CorruptCheckpointError(
                f"the checkpoint {path} is corrupt: it is truncated or not a checkpoint "
                f"({type(error).__name__}: {error}).\nResume from a different checkpoint."
            ) from error
        raise


def _verify(path: Path) -> str | None:
    """Return an error message if a file does not match its checksum, else ""; None if it has no checksum."""
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
        f"the checkpoint {path} is corrupt: its content has changed since it was written.\n"
        f"  sha256 when written: {written}\n  sha256 now:          {found.hexdigest()}\n"
        "Training would continue from different weights. Resume from a different checkpoint."
    )


def _older(path: Path) -> Iterator[Path]:
    """Yield the newest intact checkpoint in the folder of a "last" file; nothing if the user chose the file."""
    if path.name.startswith("last"):
        others = [other for other in path.parent.glob("*.ckpt") if other != path and _verify(other) == ""]
        yield from sorted(others, key=lambda other: other.stat().st_mtime_ns)[-1:]
