"""Files of `torch.save`, of both its formats, without torch: what they hold, and the numbers of tensors on demand."""

from __future__ import annotations

import io
import struct
import zipfile
from functools import partial
from typing import TYPE_CHECKING, Any

from resumable._inspect.builders import BUILDERS, Storage, storage_of
from resumable._inspect.pickles import read_pickle
from resumable._inspect.values import DTYPES, Opaque
from resumable.errors import CheckpointError, CorruptCheckpointError

if TYPE_CHECKING:
    from typing import BinaryIO

    from resumable._inspect.pickles import Builders

__all__ = ["read_bare_pickle", "read_torch_zip"]

_MAGIC = 0x1950A86A20F9469CFC6C  # the first pickle of a file of the older format
_PROTOCOL = 1001
_FEW = 3  # names that are shown


def read_torch_zip(file: BinaryIO) -> Any:
    """Return what a file of `torch.save` holds.

    Args:
        file: stays open as long as tensors are to be read.

    Raises:
        CorruptCheckpointError: it is cut or damaged.
        CheckpointError: it is another kind of zip file.
    """
    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, ValueError, struct.error, EOFError, NotImplementedError) as error:
        raise CorruptCheckpointError(f"it begins as a zip file, and is cut or damaged: {error}") from error
    names = {info.filename: info for info in archive.infolist()}
    pickles = [name for name in names if name == "data.pkl" or name.endswith("/data.pkl")]
    if not pickles:
        more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
        held = ", ".join(list(names)[:_FEW]) or "nothing"
        raise CheckpointError(f"it is a zip file, but none of torch.save or NumPy: it holds {held}{more}")
    folder = pickles[0].removesuffix("data.pkl")
    order = ">" if f"{folder}byteorder" in names and _record(archive, f"{folder}byteorder") == b"big" else "<"
    read = partial(_data, archive, folder)
    return read_pickle(_record(archive, pickles[0]), BUILDERS, lambda pid: storage_of(pid, read, order))


def _data(archive: zipfile.ZipFile, folder: str, key: str) -> bytes:
    return _record(archive, f"{folder}data/{key}")


def _record(archive: zipfile.ZipFile, name: str) -> bytes:
    """Read a record, whose checksum the zip file has; torch compresses none."""
    try:
        if (info := archive.getinfo(name)).compress_type != zipfile.ZIP_STORED:
            raise CorruptCheckpointError(f"its record {name} is compressed, which torch.save never does")
        return archive.read(info)
    except (
        KeyError,
        zipfile.BadZipFile,
        EOFError,
        ValueError,
        struct.error,
        RuntimeError,
        NotImplementedError,
    ) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CorruptCheckpointError(f"its record {name} is cut or damaged: {error}") from error


def read_bare_pickle(file: BinaryIO) -> tuple[bool, Any]:
    """Return what a pickle holds, and whether it is of the format that torch.save had before the zip files.

    In a pickle that `pickle.dump` wrote of tensors, each storage is such a file by itself, in bytes.

    Raises:
        CorruptCheckpointError: it is cut or damaged.
    """
    return _read_older(io.BytesIO(file.read()), {**BUILDERS, "torch.storage._load_from_bytes": _of_bytes})


def _of_bytes(content: bytes) -> Any:
    is_file, value = _read_older(io.BytesIO(content), BUILDERS)
    if not is_file or not isinstance(value, Storage):
        raise ValueError("no storage of torch")
    return value


def _read_older(content: io.BytesIO, builders: Builders) -> tuple[bool, Any]:
    first = read_pickle(content, builders)
    if first != _MAGIC:
        return False, first
    if read_pickle(content, builders) != _PROTOCOL:
        raise CorruptCheckpointError("it is a file of torch.save of an unknown format")
    read_pickle(content, builders)  # about the machine that wrote it, which all that count are alike
    kinds: dict[str, str] = {}
    where: dict[str, bytes] = {}
    value = read_pickle(content, builders, partial(_older_storage, kinds, where))
    for key in read_pickle(content, builders):
        (count,) = struct.unpack("<q", content.read(8).ljust(8, b"\xff"))
        size = max(count, 0) * DTYPES[kinds.get(key, "uint8")][0]
        where[key] = content.read(size)
        if count < 0 or len(where[key]) != size:
            raise CorruptCheckpointError(f"its file ends in the numbers of the tensor {key}")
    return True, value


def _older_storage(kinds: dict[str, str], where: dict[str, bytes], pid: Any) -> Storage | Opaque:
    found = storage_of(pid, lambda key: where.get(key, b""), "<")
    if isinstance(found, Storage):
        kinds[str(pid[2])] = found.dtype
    return found
