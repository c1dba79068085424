"""Encoded samples: named files, or a dataset with an index, and the inputs read from them for each request.

Worker processes import this without DALI.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from resumable.errors import ConfigurationError, SampleError
from resumable.failpoints import point

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    from numpy.typing import NDArray

    from resumable._fetch.reader import Reader
    from resumable.protocols import Request


__all__ = ["Dataset", "Fed", "Files", "Labelled", "are_paths", "read_here", "read_paths"]


Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]
Labelled = tuple[Bytes, "NDArray[Any]"]  # an encoded sample, and its label
_PAIR = 2
_MOST = 2**31 - 1  # labels are int32, as in DALI's readers
# The file types that fn.readers.file accepts without file_filters, except audio.
_ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".pnm", ".ppm", ".pgm", ".pbm", ".jp2", ".webp")


def are_paths(data: Any) -> bool:
    """Return whether the data is a path, or a list of paths or of pairs of a path and a label."""
    if isinstance(data, (str, os.PathLike)):
        return True
    if not isinstance(data, (list, tuple)):
        return False
    return not data or isinstance(data[0], (str, os.PathLike)) or _is_path_and_label(data[0])


@dataclass(frozen=True, slots=True)
class Files:
    """Files, one sample each.

    Args:
        root: folder that the names are relative to, with a trailing slash.
        names: names in the file system's encoding, shape `(files,)`, of dtype "S".
        labels: shape `(files,)`, int32.
    """

    root: bytes
    names: NDArray[np.bytes_]
    labels: NDArray[np.int32]

    @classmethod
    def find(cls, data: Any, file_root: Any) -> Files:
        """Find the files of a folder, of a text file with names, or of a list.

        Raises:
            ConfigurationError: there are none, or a line or entry is invalid.
        """
        if isinstance(data, (str, os.PathLike)):
            path = Path(data)
            if path.is_dir():
                _refuse_root(file_root, path)
                return cls._of(path, _images_by_class(path), path)
            if not path.is_file():
                raise ConfigurationError(
                    f"no such file or directory: {str(path)!r}.\nThere is nothing to read. Check the path."
                )
            return cls._of(Path(file_root or path.parent), _listed_in(path), path)
        return cls._of(Path(file_root or ""), [_entry(number, entry) for number, entry in enumerate(data)], None)

    @classmethod
    def _of(cls, root: Path, entries: Sequence[tuple[str, int | None]], where: Path | None) -> Files:
        if not entries:
            found = f"{str(where)!r}" if where else "the list"
            raise ConfigurationError(
                f"{found} contains no files.\nThere would be nothing to read. "
                "A folder must contain one folder per class, with images in it."
            )
        labels = [number if label is None else label for number, (_, label) in enumerate(entries)]
        if max(map(abs, labels)) > _MOST:
            raise ConfigurationError(
                f"the label {max(labels, key=abs)} does not fit into int32, the type of DALI's labels.\n"
                "No batch could be made with it. Use smaller labels."
            )
        base, names = _common(root, [name for name, _ in entries])
        return cls(base, np.array(names), np.array(labels, np.int32))

    @property
    def length(self) -> int:
        """Number of files."""
        return len(self.names)

    @property
    def identity(self) -> dict[str, Any]:
        """A fingerprint of their names and labels; the folder that contains them may be moved."""
        state = hashlib.blake2b(digest_size=8, person=b"resumable1")
        for name in self.names.tolist():
            state.update(name + b"\0")
        state.update(self.labels.astype("<i4").tobytes())
        return {"source": "files", "files": state.hexdigest()}

    def paths(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the paths of some files, for DALI: uint8 of shape `(len(indices), bytes)`, padded with zeros."""
        names = self.names[indices]
        width = names.dtype.itemsize
        paths = np.zeros((len(names), len(self.root) + width + 1), np.uint8)
        paths[:, : len(self.root)] = np.frombuffer(self.root, np.uint8)
        paths[:, len(self.root) : -1] = names.view(np.uint8).reshape(len(names), width)
        return paths

    def name(self, index: int) -> str:
        """Return the path of a file, for messages."""
        return os.fsdecode(self.root + bytes(self.names[index]))

    def __getitem__(self, index: int) -> Labelled:
        return np.fromfile(self.name(index), np.uint8), self.labels[index : index + 1]


def _images_by_class(folder: Path) -> list[tuple[str, int | None]]:
    """Return the images below each folder of a folder, sorted, with the number of that folder."""
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    return [(path, label) for label, name in enumerate(classes) for path in _images(folder, name)]


def _images(folder: Path, name: str) -> list[str]:
    found, cut = list[str](), len(os.path.join(folder, ""))  # noqa: PTH118  # Path is too slow for a million files
    for where, _, names in sorted(os.walk(folder / name, followlinks=True)):
        below = where[cut:]
        found += [f"{below}/{file}" for file in sorted(names) if file.lower().endswith(_ENDINGS)]
    return found


def _listed_in(file: Path) -> list[tuple[str, int | None]]:
    """Return the paths and labels of a text file: one pair per line, with the line's last space in between.

    Raises:
        ConfigurationError: a line is not such a pair.
    """
    entries: list[tuple[str, int | None]] = []
    with file.open(encoding="utf-8", errors="surrogateescape") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                entries.append(_parse(line.strip(), file, number))
    return entries


def _parse(line: str, file: Path, number: int) -> tuple[str, int]:
    name, _, label = line.replace("\t", " ").rpartition(" ")
    try:
        return name.rstrip(), int(label)
    except ValueError as error:
        raise ConfigurationError(
            f"line {number} of {str(file)!r} is not a path and a label: {line!r}.\n"
            "The label would be unknown. Write a path, a space and an integer."
        ) from error


def _entry(number: int, entry: Any) -> tuple[str, int | None]:
    if isinstance(entry, (str, os.PathLike)):
        return os.fspath(entry), None
    if not _is_path_and_label(entry) or not isinstance(entry[1], (int, np.integer)):
        raise ConfigurationError(
            f"entry {number} of the list of files is neither a path nor a pair of a path and an integer: {entry!r}.\n"
            "Pass paths, or (path, label) pairs."
        )
    return os.fspath(entry[0]), int(entry[1])


def _is_path_and_label(entry: Any) -> bool:
    return isinstance(entry, (list, tuple)) and len(entry) == _PAIR and isinstance(entry[0], (str, os.PathLike))


def _common(root: Path, names: list[str]) -> tuple[bytes, list[bytes]]:
    """Split paths into the folder that they share and the rest, so moving the folder does not change the names."""
    above = os.fsencode(os.path.abspath(root))  # noqa: PTH100  # Path is too slow for a million files
    paths = [os.path.join(above, os.fsencode(name)) for name in names]  # noqa: PTH118  # the same
    shared = os.path.commonpath({os.path.dirname(path) for path in paths})  # noqa: PTH120  # the same
    base = os.path.join(shared, b"")  # noqa: PTH118  # the same
    return base, [path[len(base) :] for path in paths]


def _refuse_root(file_root: Any, folder: Path) -> None:
    if file_root is not None:
        raise ConfigurationError(
            f"file_root={file_root!r} was passed, but the data is itself a folder: {str(folder)!r}.\nRemove file_root."
        )


class Dataset:
    """A map-style dataset of encoded samples.

    Args:
        source: returns bytes, or pairs of bytes and a label, by index.
    """

    def __init__(self, source: Any) -> None:
        self.source = source

    @property
    def length(self) -> int:
        """Number of samples."""
        return len(self.source)

    @property
    def identity(self) -> dict[str, Any]:
        """The name of its type."""
        return {"source": type(self.source).__qualname__}

    def name(self, index: int) -> str:
        """Return the name of a sample, for messages."""
        return f"sample {index} of {type(self.source).__qualname__}"

    def __getitem__(self, index: int) -> Labelled:
        sample = self.source[index]
        raw, label = sample if isinstance(sample, (tuple, list)) and len(sample) == _PAIR else (sample, index)
        return _encoded(raw, index), _label(label, index)


def _encoded(raw: Any, index: int) -> Bytes:
    if isinstance(raw, (bytes, bytearray, memoryview)):
        return np.frombuffer(raw, np.uint8)
    array = np.asarray(raw)
    if array.dtype != np.uint8 or array.ndim != 1:
        raise SampleError(
            f"sample {index} is not an encoded sample: {type(raw).__qualname__}, {array.dtype} of shape {array.shape}."
            "\nThe graph needs bytes. Return bytes or a one-dimensional uint8 array, alone or in a pair with a label."
        )
    return array


def _label(label: Any, index: int) -> NDArray[Any]:
    array = np.asarray(label)
    if array.dtype.kind not in "iubf":
        raise SampleError(
            f"the label of sample {index} is not a number: {label!r}, a {type(label).__qualname__}.\n"
            "DALI only accepts arrays of numbers, so no batch could be made. Return the number of the class. If you "
            "need names, keep a list of them and return indices into it."
        )
    return array if array.ndim else array.reshape(1).astype(np.int32 if array.dtype.kind in "iub" else np.float32)


class Fed(NamedTuple):
    """The inputs of one batch.

    Args:
        request: the request for the batch.
        raw: paths or encoded samples, one array per sample.
        labels: one array per sample.
    """

    request: Request
    raw: Any
    labels: Any


def read_paths(files: Files, requests: Iterable[Request]) -> Generator[Fed]:
    """Leave the reading to DALI's threads."""
    for request in requests:
        point("worker.read", request)
        indices = np.asarray(request.indices)
        yield Fed(request, files.paths(indices), files.labels[indices][:, None])


def read_here(reader: Reader, requests: Iterable[Request]) -> Generator[Fed]:
    """Read the samples in this process."""
    for request in requests:
        samples = reader.read_isolated(request)
        yield Fed(request, [raw for raw, _ in samples], [label for _, label in samples])
