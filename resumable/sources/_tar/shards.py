"""The shards of a source: found by patterns, each with its index, which is read from a file or made and kept there."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache, partial
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable.errors import ConfigurationError, DataError
from resumable.sources._files import Stamp, is_remote, storage
from resumable.sources._patterns import base_of, find_files
from resumable.sources._tar.index import digest_of, packed, unpacked
from resumable.sources._tar.scan import scan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from resumable.sources._files import Files
    from resumable.sources._tar.index import Index

__all__ = ["Shard", "find_shards", "open_shards"]

_SUFFIX = ".resumable-index"
_AT_ONCE = 16  # remote shards
_INDICES = 1024
_log = getLogger("resumable")


def find_shards(patterns: Any, files: Files) -> list[str]:
    """Return the shards that patterns stand for; see `find_files`.

    Raises:
        ConfigurationError: a pattern stands for nothing, or for the output of a command; or a shard comes twice.
    """
    listed = [patterns] if isinstance(patterns, (str, os.PathLike)) else list(patterns)
    for pattern in listed:
        _refuse_pipe(str(pattern))
    return find_files(listed, files, what="shard", suffix=".tar", extra="tars", but=_SUFFIX)


def _refuse_pipe(text: str) -> None:
    if text.startswith("pipe:"):
        raise ConfigurationError(
            f"{text!r} is a command whose output is a tar, which cannot be read at a place.\n"
            "Every sample would cost running it from the beginning. Give the URL itself, such as s3://bucket/"
            "train-{000..099}.tar, with storage_options= for its file system."
        )


class Shard:
    """A shard with its index, which each process reads from the file where it is kept, when it is first needed.

    Args:
        name: path or URL.
        stamp: of it as it is now; that of the index is another one where both were copied.
        index: where its samples are.
        place: local file where the index is kept; None where it has to be taken along.
    """

    def __init__(self, name: str, stamp: Stamp, index: Index, place: str | None) -> None:
        self.name, self.count, self.stamp = name, index.count, stamp
        self.extensions, self.digest, self.content = index.extensions, index.digest, index.content
        self._place, self._check, self._index = place, index.check, index if place is None else None

    @property
    def index(self) -> Index:
        """Where the samples are.

        Raises:
            DataError: the file where it was kept is gone, or of another shard.
        """
        if self._index is not None:
            return self._index
        assert self._place is not None
        return _loaded(self.name, self._place, self._check)

    @property
    def label(self) -> str:
        """What tells the shard from others, wherever it is stored: its name, its size and some of its content."""
        return f"{base_of(self.name)} {self.stamp.size} {self.count} {self.digest} {self.content}"


@lru_cache(maxsize=_INDICES)
def _loaded(name: str, place: str, check: int) -> Index:
    """Return the index in a file; a process has that of so many shards at most, and no file open for it."""
    try:
        found = unpacked(Path(place).read_bytes())
    except OSError:
        found = None
    if found is None or found.check != check:
        raise DataError(
            f"the index of {name}, {place}, was removed or written again since it was opened.\n"
            "Other samples would be read from here on. Start again, so that it is made for the shard as it is."
        )
    return found


def open_shards(names: Iterable[str], files: Files, kept: str | bool) -> list[Shard]:
    """Open the index of each shard, or make it.

    Args:
        names: of the shards.
        files: reads them.
        kept: the folder of the indices; True for that of each shard, False to keep none.

    Raises:
        ConfigurationError: a shard is not there, compressed, cut, damaged or no tar.
    """
    names = list(names)
    if isinstance(kept, str) and not is_remote(kept):
        with suppress(OSError):  # one that cannot be made is as one that cannot be written to
            Path(kept).mkdir(parents=True, exist_ok=True)
    opened = partial(_open, files=files, kept=kept)
    if not any(map(is_remote, names)):
        return list(map(opened, names))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(opened, names))


def _open(name: str, files: Files, kept: str | bool) -> Shard:
    stamp = _stamp(name, files)
    place = _place(name, kept)
    local = place is not None and not is_remote(place)
    if place is not None and (shard := _kept(name, place, stamp, files)) is not None:
        return shard
    data = _make(name, stamp, files)
    index = unpacked(data)
    assert index is not None
    written = place is not None and files.save(place, data)
    if place is not None and not written:
        _log.info("the index of %s cannot be kept as %s, so it is made again at each start", name, place)
    return Shard(name, stamp, index, place if local and written else None)


def _kept(name: str, place: str, stamp: Stamp, files: Files) -> Shard | None:
    """Return a shard with the index that is kept; None where that is not there, damaged, or of another file."""
    data = files.load(place)
    index = None if data is None else unpacked(data)
    if index is None:
        return None
    if not _belongs(index, name, stamp, files):
        _log.warning("%s was written again since its index %s was made, which is made again", name, place)
        return None
    return Shard(name, stamp, index, None if is_remote(place) else place)


def _belongs(index: Index, name: str, stamp: Stamp, files: Files) -> bool:
    """Return whether an index is that of a file: by its size, what else its stamp says, and some of the content.

    A remote file that has a tag may have the index of a local one, as both were copied from there.
    """
    tagged = is_remote(name) and bool(stamp.changed)
    if index.stamp == stamp and tagged:
        return True
    copied = tagged and index.stamp.size == stamp.size and index.stamp.changed.isdecimal()
    if index.stamp != stamp and not copied:
        return False
    some = index.looked_into(name)
    return index.content == digest_of(files.read(some, {name: stamp}) if some else [])


def _make(name: str, stamp: Stamp, files: Files) -> bytes:
    try:
        with storage(), files.open(name) as file:
            found = scan(file, name, stamp.size)
    except OSError as error:
        raise ConfigurationError(f"{name} cannot be read: {error}.\nLook after the storage and its rights.") from error
    if len(found.extensions) > np.iinfo(np.uint16).max:
        raise ConfigurationError(
            f"{name} has {len(found.extensions)} different extensions: what follows the first dot of a member's name.\n"
            "No sample would be like another one. Name the members key.extension, without another dot in the key."
        )
    data = packed(found, name, stamp, lambda parts: files.read(parts, {name: stamp}))
    now = _stamp(name, files)
    if now != stamp:
        raise ConfigurationError(
            f"{name} was written while its index was made: it had {stamp.size} bytes, and has {now.size}.\n"
            "The index would be of neither. Begin when the shard is complete."
        )
    return data


def _stamp(name: str, files: Files) -> Stamp:
    try:
        stamp = files.stamp(name)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigurationError(
            f"there is no shard {name}.\nIts samples would be left out. Name the shards that there are, as in "
            "train-{000..099}.tar."
        ) from error
    except OSError as error:
        raise ConfigurationError(f"{name} cannot be read: {error}.\nLook after the storage and its rights.") from error
    if not stamp.size or Path(name).is_dir():
        raise ConfigurationError(
            f"{name}, byte 0: the shard is empty, or a folder, and no tar.\nIts samples would be left out. Copy or "
            "write it again."
        )
    return stamp


def _place(name: str, kept: str | bool) -> str | None:
    if kept is False:
        return None
    if kept is True:
        return name + _SUFFIX
    where = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
    return f"{kept.rstrip('/')}/{base_of(name)}.{where}{_SUFFIX}"
