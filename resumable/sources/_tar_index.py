"""The index of a shard: where each sample is. It is kept in a file, so that later starts read no headers."""

from __future__ import annotations

import hashlib
import json
import operator
import os
import re
import tarfile
from bisect import bisect_right
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import accumulate
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from zlib import crc32

import numpy as np

from resumable.errors import ConfigurationError, DataError
from resumable.sources._files import Part, Stamp, base_of, find_files, is_remote, storage
from resumable.sources._pieces import Pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from resumable._randomness.keyed import IntArray
    from resumable.protocols import Upcoming
    from resumable.sources._files import Files


__all__ = [
    "BLOCK",
    "Found",
    "Index",
    "Reading",
    "Shard",
    "digest_of",
    "find_shards",
    "open_shards",
    "packed",
    "places",
    "scan",
]


# Reads the headers of a tar once: which members belong to which sample, and where their bytes are.

BLOCK = 512  # bytes of a header
_CONTINUED = b"M"  # GNU's type of a member that began in another volume
_TAIL = 1 << 16  # bytes after the end that are looked at
_log = getLogger("resumable")
_NAME = re.compile(r"((?:.*/)?[^.]+)\.([^/]*)")  # the key, and what follows the first dot of the file's name
_META = re.compile(r"__[^/]*__(?:$|/)")
_RESERVED = {"__key__", "__url__"}
_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
}


@dataclass
class Found:
    """What is in a shard: of each member, where its bytes begin, how many they are, and its extension by number.

    Attributes:
        starts: first byte of each member.
        sizes: bytes of each member.
        kinds: number of each member's extension.
        extensions: by their numbers.
        rows: first member of each sample.
        keys: of each sample.
        marks: checksum of the headers of each sample's members.
    """

    starts: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    extensions: dict[str, int] = field(default_factory=dict)
    rows: list[int] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)


def scan(file: BinaryIO, name: str, size: int) -> Found:
    """Read the headers of a tar, and group its members as webdataset does.

    Members that follow one another with the same key are a sample; the key is the name up to the first dot of its last
    part, and what follows is the extension, in lower case. Folders, links, and members that are named `__like_this__`
    or have no extension are left out.

    Args:
        file: it, at its beginning.
        name: it, for messages.
        size: its bytes.

    Raises:
        ConfigurationError: it is compressed, cut, damaged or no tar; or a sample has the same extension twice.
    """
    _refuse_compressed(file, name)
    found, seen = Found(), set[str]()
    for member in _members(file, name, size):
        named = _NAME.fullmatch(member.name)
        if named is None or _META.match(member.name):
            continue
        key, extension = named[1], named[2].lower()
        if not found.keys or key != found.keys[-1]:
            found.marks.append(0)
            found.rows.append(len(found.starts))
            found.keys.append(key)
            seen = set(_RESERVED)
        _refuse_twice(extension, seen, name, member)
        seen.add(extension)
        file.seek(member.offset_data - BLOCK)
        found.marks[-1] = crc32(file.read(BLOCK), found.marks[-1])
        found.starts.append(member.offset_data)
        found.sizes.append(member.size)
        found.kinds.append(found.extensions.setdefault(extension, len(found.extensions)))
    _warn_of_parted(found, name)
    return found


def _warn_of_parted(found: Found, name: str) -> None:
    """Say that members of one key do not follow one another, so that they are several samples."""
    counts = Counter(found.keys)
    if again := len(found.keys) - len(counts):
        _log.warning(
            "%s: members of one key do not follow one another, such as those of %r, so they are %d samples more, each "
            "without the entries of the others, as in webdataset. Write them one after the other (tar --sort=name)",
            name,
            next(key for key, count in counts.items() if count > 1),
            again,
        )


def _members(file: BinaryIO, name: str, size: int) -> Iterator[tarfile.TarInfo]:
    """Yield the members that are files, and look at the end: tarfile takes damage in the middle for it."""
    at = 0
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            while (member := tar.next()) is not None:
                vars(tar)["members"].clear()  # which would be all of them, at last
                at = tar.offset
                _refuse_continued(member, name)
                if member.isreg():
                    _check_member(member, name, size)
                    yield member
            at = tar.offset
    except ConfigurationError:  # a ValueError, too
        raise
    except (tarfile.TarError, ValueError, OverflowError, EOFError) as error:
        raise _damaged(name, at, str(error)) from error
    _check_end(file, name, at, size)


def _check_member(member: tarfile.TarInfo, name: str, size: int) -> None:
    if member.issparse():
        raise ConfigurationError(
            f"{name}, byte {member.offset}: the member {member.name} is sparse, so its bytes are not those of the file "
            "that it stands for.\nOther bytes would be read. Write the tar without --sparse."
        )
    if member.size < 0 or member.offset_data + member.size > size:
        raise _damaged(name, member.offset, f"the member {member.name} ends at byte {member.offset_data + member.size}")


def _refuse_continued(member: tarfile.TarInfo, name: str) -> None:
    if member.type == _CONTINUED:
        raise ConfigurationError(
            f"{name}, byte {member.offset}: the tar begins with the rest of {member.name}, so it is one of several "
            "volumes.\nThat member would be left out. Write each shard as a tar of its own, without --multi-volume."
        )


def _check_end(file: BinaryIO, name: str, at: int, size: int) -> None:
    file.seek(at)
    block = file.read(BLOCK)
    if len(block) < BLOCK:
        raise _damaged(name, at, "the block that ends a tar is missing")
    if any(block):
        raise _damaged(name, at, "there is no header of a member")
    if any(file.read(min(_TAIL, size - at - BLOCK))):
        raise ConfigurationError(
            f"{name}, byte {at}: the tar ends here, but the file of {size} bytes goes on.\nWhat follows would not be "
            "read, as of tars that were put together by `cat`. Put their members into one tar (tar --concatenate), or "
            "give them as shards of their own."
        )


def _damaged(name: str, at: int, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{name}, byte {at}: the tar was cut or damaged: {what}.\n"
        "Samples would be left out, or have other bytes. Copy or write the shard again."
    )


def _refuse_compressed(file: BinaryIO, name: str) -> None:
    head = file.read(8)
    file.seek(0)
    for magic, kind in _COMPRESSED.items():
        if head.startswith(magic):
            raise ConfigurationError(
                f"{name}, byte 0: the tar is compressed ({kind}), so nothing in it can be read without what is before "
                f"it.\nEvery sample would cost reading the shard from its beginning. Unpack it once ({kind} -d)."
            )


def _refuse_twice(extension: str, seen: set[str], name: str, member: tarfile.TarInfo) -> None:
    if extension in seen:
        raise ConfigurationError(
            f"{name}, byte {member.offset}: the sample of the member {member.name} has an entry {extension!r} "
            "already.\nOne of the two would be lost. Give each member of a sample an extension of its own."
        )


_MAGIC = b"resumable tar index 1\n"
_PLACES, _PLACE = 8, 1024  # members that are looked into, and how far
_ARRAYS = {
    "starts": "<i8",
    "sizes": "<i8",
    "rows": "<i8",
    "key_ends": "<i8",
    "marks": "<u4",
    "kinds": "<u2",
    "keys": "u1",
}


class Index:
    """Where the samples of a shard are.

    Args:
        head: what is said of it in plain values.
        arrays: of its members and samples; see `Found`. `rows` has one more entry, the number of members; `keys` are
            all keys as bytes, and `key_ends` says where each of them ends.
    """

    def __init__(self, head: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        self.stamp, self.digest, self.content = Stamp(*head["stamp"]), str(head["digest"]), str(head["content"])
        self.extensions = [str(one) for one in head["extensions"]]
        self._arrays, self.check = arrays, int(head["crc"])
        self.count = len(arrays["marks"])

    def span(self, row: int) -> tuple[int, int]:
        """Return the first byte of a sample, that of the header of its first member, and the one after its last."""
        rows, starts, sizes = self._arrays["rows"], self._arrays["starts"], self._arrays["sizes"]
        first, last = rows[row], rows[row + 1] - 1
        return int(starts[first]) - BLOCK, int(starts[last] + sizes[last])

    def key(self, row: int) -> str:
        """Return the key of a sample."""
        ends = self._arrays["key_ends"]
        begin = int(ends[row - 1]) if row else 0
        return self._arrays["keys"][begin : int(ends[row])].tobytes().decode("utf-8", "surrogateescape")

    def members(self, row: int) -> list[tuple[str, int, int]]:
        """Return the members of a sample: extension, first byte and the one after the last."""
        rows, some = self._arrays["rows"], self._arrays
        own = slice(int(rows[row]), int(rows[row + 1]))
        starts, sizes, kinds = (some[name][own].tolist() for name in ("starts", "sizes", "kinds"))
        return [
            (self.extensions[kind], start, start + size) for kind, start, size in zip(kinds, starts, sizes, strict=True)
        ]

    def fits(self, row: int, data: bytes | memoryview) -> bool:
        """Return whether the bytes of a sample have the headers that were there when the index was made."""
        mark, begin = 0, self.span(row)[0]
        for _, start, _ in self.members(row):
            mark = crc32(data[start - BLOCK - begin : start - begin], mark)
        return mark == int(self._arrays["marks"][row])

    def looked_into(self, name: str) -> list[Part]:
        """Return some parts of a shard that tell its content from another one of the same size."""
        return places(name, self._arrays["starts"], self._arrays["sizes"])


def places(name: str, starts: NDArray[Any], sizes: NDArray[Any]) -> list[Part]:
    """Return the beginnings of some members of a shard."""
    chosen = sorted({number * (len(starts) - 1) // (_PLACES - 1) for number in range(_PLACES)}) if len(starts) else []
    whole = [Part(name, int(starts[one]), int(starts[one]) + min(int(sizes[one]), _PLACE)) for one in chosen]
    return [part for part in whole if part.stop > part.start]


def packed(found: Found, name: str, stamp: Stamp, read: Callable[[list[Part]], list[bytes]]) -> bytes:
    """Return the index of what a scan found, as bytes.

    Args:
        found: by the scan.
        name: of the shard.
        stamp: of the shard.
        read: reads parts of it.
    """
    keys = [key.encode("utf-8", "surrogateescape") for key in found.keys]
    arrays = {
        "starts": np.array(found.starts, "<i8"),
        "sizes": np.array(found.sizes, "<i8"),
        "rows": np.array([*found.rows, len(found.starts)], "<i8"),
        "key_ends": np.cumsum([len(key) for key in keys], dtype="<i8"),
        "marks": np.array(found.marks, "<u4"),
        "kinds": np.array(found.kinds, "<u2"),
        "keys": np.frombuffer(b"".join(keys), "u1"),
    }
    some = places(name, arrays["starts"], arrays["sizes"])
    body = b"".join(arrays[one].tobytes() for one in _ARRAYS)
    told = [arrays[one].tobytes() for one in ("sizes", "rows", "key_ends", "kinds", "keys")]
    head = {
        "stamp": list(stamp),
        "digest": digest_of([*told, json.dumps(list(found.extensions)).encode()]),
        "content": digest_of(read(some) if some else []),
        "extensions": list(found.extensions),
        "lengths": [len(arrays[one]) for one in _ARRAYS],
        "crc": crc32(body),
    }
    line = _MAGIC + json.dumps(head).encode() + b"\n"
    return line[:-1] + b" " * (-len(line) % 8) + b"\n" + body


def unpacked(data: bytes) -> Index | None:
    """Return the index that bytes are, which it keeps; None where they are none, or damaged."""
    view = memoryview(data)
    try:
        if bytes(view[: len(_MAGIC)]) != _MAGIC:
            return None
        end = len(_MAGIC) + bytes(view[len(_MAGIC) : 1 << 20]).index(b"\n") + 1
        head = json.loads(bytes(view[len(_MAGIC) : end]))
        body, arrays, at = view[end:], {}, 0
        for (name, dtype), length in zip(_ARRAYS.items(), head["lengths"], strict=True):
            stop = at + length * np.dtype(dtype).itemsize
            arrays[name] = np.frombuffer(body[at:stop], dtype)
            at = stop
        whole = at == len(body) and crc32(body) == head["crc"]
        return Index(head, arrays) if whole and [len(one) for one in arrays.values()] == head["lengths"] else None
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


def digest_of(parts: list[bytes]) -> str:
    """Return a digest of bytes in parts."""
    state = hashlib.blake2b(digest_size=8, person=b"resumable1")
    for part in parts:
        state.update(len(part).to_bytes(8, "little") + part)
    return state.hexdigest()


# The shards of a source: found by patterns, each with its index, which is read from a file or made and kept there.

_SUFFIX = ".resumable-index"
_AT_ONCE = 16  # remote shards
_INDICES = 1024


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


# The bytes of samples: read at their places, several at once, or by blocks that are fetched ahead.

_GAP, _GAP_REMOTE = 1 << 12, 1 << 16  # bytes between two samples that are read along with them
_MOST = 1 << 26  # bytes that are read as one range


class Reading:
    """Reads samples of shards by their numbers.

    Args:
        shards: in their order.
        files: reads them.
        cache: folder for pieces, and how many bytes it may have; None without.

    Attributes:
        count: number of samples.
    """

    def __init__(self, shards: Sequence[Shard], files: Files, cache: tuple[str, int] | None) -> None:
        self._shards, self._files = shards, files
        self._ends = list(accumulate(shard.count for shard in shards))
        self.count = self._ends[-1]
        self._stamps = {shard.name: shard.stamp for shard in shards}
        self._remote = any(is_remote(shard.name) for shard in shards)
        self._fetched: dict[int, bytes | memoryview] = {}
        self._pieces = None if cache is None else Pieces(*cache, self._stamps, files.read)

    def find(self, index: int) -> tuple[Shard, int]:
        """Return the shard of a sample, and the number of the sample in it.

        Raises:
            IndexError: there is no such sample.
        """
        number = operator.index(index)
        if not 0 <= number < self.count:
            raise IndexError(f"there are the samples 0..{self.count - 1}, so there is no sample {number}")
        at = self._at(number)
        return self._shards[at], number - (self._ends[at - 1] if at else 0)

    def _at(self, number: int) -> int:
        return bisect_right(self._ends, number)

    def part(self, number: int) -> Part:
        """Return where the bytes of a sample are, from the header of its first member on."""
        shard, row = self.find(number)
        return Part(shard.name, *shard.index.span(row))

    def get(self, number: int) -> bytes | memoryview:
        """Return the bytes of a sample: those that were fetched, or read now."""
        data = self._fetched.get(number)
        return self._files.read([self.part(number)], self._stamps)[0] if data is None else data

    def prefetch(self, indices: Iterable[int], upcoming: Callable[[], Upcoming | None]) -> None:
        """Fetch samples that will be asked for one by one; where there is a cache, by the blocks that they are in."""
        blocks = None if self._pieces is None else upcoming()
        if self._pieces is not None and blocks is not None:
            self._fetched = self._from_pieces(self._pieces, indices, blocks)
        elif self._remote:
            self._fetched = self.fetch(indices)

    def _from_pieces(self, pieces: Pieces, indices: Iterable[int], blocks: Upcoming) -> dict[int, bytes | memoryview]:
        """Return the bytes of samples that are in pieces, after those are fetched; others are read when asked for."""
        here, soon = self._pieces_of(blocks.here), self._pieces_of(blocks.soon)
        wanted: dict[Part, dict[int, Part]] = {}
        for number in dict.fromkeys(map(operator.index, indices)):
            part = self.part(number)
            some = here.get(part.name, [])
            at = bisect_right(some, part.start, key=_start) - 1
            if at >= 0 and _inside(part, some[at]):  # else it only fills up the batch
                wanted.setdefault(some[at], {})[number] = part
        ahead = [piece for some in soon.values() for piece in some]
        pieces.fetch(wanted, ahead, [*ahead, *(piece for some in here.values() for piece in some)])
        found: dict[int, bytes | memoryview] = {}
        for piece, parts in wanted.items():
            found.update(zip(parts, pieces.take(piece, list(parts.values())) or (), strict=False))
        return {number: data for number, data in found.items() if self._fits(number, data)}

    def _pieces_of(self, blocks: IntArray) -> dict[str, list[Part]]:
        """Return the pieces in which blocks are, by shards; one that goes over the end of a shard is several."""
        found: dict[str, list[Part]] = {}
        for begin, stop in blocks.tolist():
            first = begin
            while first < stop:
                last = min(stop, self._ends[self._at(first)])
                name, start, _ = self.part(first)
                found.setdefault(name, []).append(Part(name, start, self.part(last - 1).stop))
                first = last
        return {name: sorted(parts) for name, parts in found.items()}

    def _fits(self, number: int, data: bytes | memoryview) -> bool:
        shard, row = self.find(number)
        return shard.index.fits(row, data)

    def fetch(self, indices: Iterable[int]) -> dict[int, bytes | memoryview]:
        """Return the bytes of samples, each from the header of its first member on."""
        parts = {number: self.part(number) for number in sorted({operator.index(index) for index in indices})}
        ranges = _joined(list(parts.values()), _GAP_REMOTE if self._remote else _GAP)
        read = zip(ranges, self._files.read(ranges, self._stamps), strict=True)
        found: dict[int, bytes | memoryview] = {}
        data = next(read, (Part("", 0, 0), b""))
        for number, part in parts.items():
            while not _inside(part, data[0]):
                data = next(read)
            begin = part.start - data[0].start
            found[number] = memoryview(data[1])[begin : begin + part.stop - part.start]
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_fetched": {}}


def _start(part: Part) -> int:
    return part.start


def _joined(parts: list[Part], gap: int) -> list[Part]:
    """Return ranges that hold parts, which are in ascending order: neighbours of a shard are in one of them."""
    found: list[Part] = []
    for part in parts:
        last = found[-1] if found else None
        near = last is not None and last.name == part.name and part.start - last.stop <= gap
        if last is not None and near and part.stop - last.start <= _MOST:
            found[-1] = Part(part.name, last.start, part.stop)
        else:
            found.append(part)
    return found


def _inside(part: Part, other: Part) -> bool:
    return part.name == other.name and other.start <= part.start and part.stop <= other.stop
