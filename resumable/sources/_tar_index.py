"""Reads samples of tar shards by index. The index of a shard is saved in a file, so headers are read only once."""

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

_log = getLogger("resumable")
_GAP, _GAP_REMOTE = 1 << 12, 1 << 16  # bytes between two samples that are still read as one range
_MOST = 1 << 26  # maximum bytes of one range


class Reading:
    """Reads samples of shards by number: several at a time, or from a cache of blocks.

    Args:
        shards: in order.
        files: reads them.
        cache: folder for pieces, and its maximum size in bytes; None for no cache.

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
        """Return the shard of a sample, and the sample's number in the shard.

        Raises:
            IndexError: the sample does not exist.
        """
        number = operator.index(index)
        if not 0 <= number < self.count:
            raise IndexError(f"sample {number} does not exist: the samples are 0..{self.count - 1}")
        at = self._at(number)
        return self._shards[at], number - (self._ends[at - 1] if at else 0)

    def _at(self, number: int) -> int:
        return bisect_right(self._ends, number)

    def part(self, number: int) -> Part:
        """Return the byte range of a sample, from the header of its first member."""
        shard, row = self.find(number)
        return Part(shard.name, *shard.index.span(row))

    def get(self, number: int) -> bytes | memoryview:
        """Return the bytes of a sample, which are read now if they were not fetched before."""
        data = self._fetched.get(number)
        return self._files.read([self.part(number)], self._stamps)[0] if data is None else data

    def prefetch(self, indices: Iterable[int], upcoming: Callable[[], Upcoming | None]) -> None:
        """Fetch the next samples together. With a cache, fetch the blocks that they are in."""
        blocks = None if self._pieces is None else upcoming()
        if self._pieces is not None and blocks is not None:
            self._fetched = self._from_pieces(self._pieces, indices, blocks)
        elif self._remote:
            self._fetched = self.fetch(indices)

    def _from_pieces(self, pieces: Pieces, indices: Iterable[int], blocks: Upcoming) -> dict[int, bytes | memoryview]:
        """Fetch pieces, and return the bytes of the samples in them. Other samples are read later."""
        here, soon = self._pieces_of(blocks.here), self._pieces_of(blocks.soon)
        wanted: dict[Part, dict[int, Part]] = {}
        for number in dict.fromkeys(map(operator.index, indices)):
            part = self.part(number)
            some = here.get(part.name, [])
            at = bisect_right(some, part.start, key=_start) - 1
            if at >= 0 and _inside(part, some[at]):  # else it is padding of the batch
                wanted.setdefault(some[at], {})[number] = part
        ahead = [piece for some in soon.values() for piece in some]
        pieces.fetch(wanted, ahead, [*ahead, *(piece for some in here.values() for piece in some)])
        found: dict[int, bytes | memoryview] = {}
        for piece, parts in wanted.items():
            found.update(zip(parts, pieces.take(piece, list(parts.values())) or (), strict=False))
        return {number: data for number, data in found.items() if self._fits(number, data)}

    def _pieces_of(self, blocks: IntArray) -> dict[str, list[Part]]:
        """Return the pieces of blocks by shard. A block that crosses the end of a shard has several pieces."""
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
        """Return the bytes of samples, each from the header of its first member."""
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
    """Merge neighbouring parts of a shard into ranges. The parts must be in ascending order."""
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


# ---------------------------------------------------------------------- finding and opening shards

_SUFFIX = ".resumable-index"
_AT_ONCE = 16  # remote shards
_INDICES = 1024


def find_shards(patterns: Any, files: Files) -> list[str]:
    """Return the shards that match patterns; see `find_files`.

    Raises:
        ConfigurationError: a pattern matches no file or is a command, or a shard is listed twice.
    """
    listed = [patterns] if isinstance(patterns, (str, os.PathLike)) else list(patterns)
    for pattern in listed:
        _refuse_pipe(str(pattern))
    return find_files(listed, files, what="shard", suffix=".tar", extra="tars", but=_SUFFIX)


def _refuse_pipe(text: str) -> None:
    if text.startswith("pipe:"):
        raise ConfigurationError(
            f"{text!r} is a command, and its output can only be read sequentially.\n"
            "Each sample would need running the command again. Pass the URL itself, such as s3://bucket/"
            "train-{000..099}.tar, with storage_options= for its filesystem."
        )


class Shard:
    """A shard with its index. Each process loads the index from its file when it is first needed.

    Args:
        name: path or URL.
        stamp: current stamp of the shard. The stamp in the index differs if both were copied.
        index: locations of its samples.
        place: local file of the index; None to keep the index in memory and pickle it.
    """

    def __init__(self, name: str, stamp: Stamp, index: Index, place: str | None) -> None:
        self.name, self.count, self.stamp = name, index.count, stamp
        self.extensions, self.digest, self.content = index.extensions, index.digest, index.content
        self._place, self._check, self._index = place, index.check, index if place is None else None

    @property
    def index(self) -> Index:
        """The locations of the samples.

        Raises:
            DataError: the index's file was removed or rewritten.
        """
        if self._index is not None:
            return self._index
        assert self._place is not None
        return _loaded(self.name, self._place, self._check)

    @property
    def label(self) -> str:
        """Identifies the shard in any storage: its name, size, number of samples, and digests."""
        return f"{base_of(self.name)} {self.stamp.size} {self.count} {self.digest} {self.content}"


@lru_cache(maxsize=_INDICES)
def _loaded(name: str, place: str, check: int) -> Index:
    """Return the index in a file. A process caches a limited number of them, without open files."""
    try:
        found = unpacked(Path(place).read_bytes())
    except OSError:
        found = None
    if found is None or found.check != check:
        raise DataError(
            f"the index {place} of {name} was removed or rewritten since it was opened.\n"
            "Wrong samples would be read from here on. Restart the run: it creates the index again."
        )
    return found


def open_shards(names: Iterable[str], files: Files, kept: str | bool) -> list[Shard]:
    """Open the index of each shard, or create it.

    Args:
        names: of the shards.
        files: reads the shards.
        kept: folder of the indexes; True for the folder of each shard, False to save none.

    Raises:
        ConfigurationError: a shard does not exist, is compressed, truncated or damaged, or is not a tar.
    """
    names = list(names)
    if isinstance(kept, str) and not is_remote(kept):
        with suppress(OSError):  # treated like a folder that is not writable
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
        _log.info("the index of %s cannot be saved as %s, so every run creates it again", name, place)
    return Shard(name, stamp, index, place if local and written else None)


def _kept(name: str, place: str, stamp: Stamp, files: Files) -> Shard | None:
    """Return a shard with its saved index; None if that is missing, damaged, or of a different file."""
    data = files.load(place)
    index = None if data is None else unpacked(data)
    if index is None:
        return None
    if not _belongs(index, name, stamp, files):
        _log.warning("%s was rewritten since its index %s was created; creating it again", name, place)
        return None
    return Shard(name, stamp, index, None if is_remote(place) else place)


def _belongs(index: Index, name: str, stamp: Stamp, files: Files) -> bool:
    """Return whether an index belongs to a file. Compares the stamps and some of the content.

    The index of a remote file with a tag may have a local file's stamp, if both were uploaded together.
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
        raise ConfigurationError(f"{name} cannot be read: {error}.\nCheck the storage and its permissions.") from error
    if len(found.extensions) > np.iinfo(np.uint16).max:
        raise ConfigurationError(
            f"{name} has {len(found.extensions)} different extensions (the part after the first dot of a name).\n"
            "The samples would have different entries. Use names of the form key.extension, without dots in the key."
        )
    data = packed(found, name, stamp, lambda parts: files.read(parts, {name: stamp}))
    now = _stamp(name, files)
    if now != stamp:
        raise ConfigurationError(
            f"{name} changed while its index was being created: it had {stamp.size} bytes, and now has {now.size}.\n"
            "The index would be wrong. Start the run when the shard is complete."
        )
    return data


def _stamp(name: str, files: Files) -> Stamp:
    try:
        stamp = files.stamp(name)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigurationError(
            f"the shard {name} does not exist.\nIts samples would be missing. Pass existing shards, for example with a "
            "pattern such as train-{000..099}.tar."
        ) from error
    except OSError as error:
        raise ConfigurationError(f"{name} cannot be read: {error}.\nCheck the storage and its permissions.") from error
    if not stamp.size or Path(name).is_dir():
        raise ConfigurationError(
            f"{name}, byte 0: the shard is empty or a folder, not a tar.\nIts samples would be missing. Copy or write "
            "it again."
        )
    return stamp


def _place(name: str, kept: str | bool) -> str | None:
    if kept is False:
        return None
    if kept is True:
        return name + _SUFFIX
    where = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
    return f"{kept.rstrip('/')}/{base_of(name)}.{where}{_SUFFIX}"


# ---------------------------------------------------------------------- the index of a shard

_MAGIC = b"resumable tar index 1\n"
_PLACES, _PLACE = 8, 1024  # number of members that the content digest covers, and bytes of each
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
    """The locations of a shard's samples.

    Args:
        head: properties of the shard as plain values.
        arrays: of its members and samples; see `Found`. `rows` has one more entry, the number of members. `keys` has
            all keys as bytes, and `key_ends` the end of each.
    """

    def __init__(self, head: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        self.stamp, self.digest, self.content = Stamp(*head["stamp"]), str(head["digest"]), str(head["content"])
        self.extensions = [str(one) for one in head["extensions"]]
        self._arrays, self.check = arrays, int(head["crc"])
        self.count = len(arrays["marks"])

    def span(self, row: int) -> tuple[int, int]:
        """Return the byte range of a sample, from the header of its first member, as start and stop."""
        rows, starts, sizes = self._arrays["rows"], self._arrays["starts"], self._arrays["sizes"]
        first, last = rows[row], rows[row + 1] - 1
        return int(starts[first]) - BLOCK, int(starts[last] + sizes[last])

    def key(self, row: int) -> str:
        """Return the key of a sample."""
        ends = self._arrays["key_ends"]
        begin = int(ends[row - 1]) if row else 0
        return self._arrays["keys"][begin : int(ends[row])].tobytes().decode("utf-8", "surrogateescape")

    def members(self, row: int) -> list[tuple[str, int, int]]:
        """Return the members of a sample: extension, start and stop."""
        rows, some = self._arrays["rows"], self._arrays
        own = slice(int(rows[row]), int(rows[row + 1]))
        starts, sizes, kinds = (some[name][own].tolist() for name in ("starts", "sizes", "kinds"))
        return [
            (self.extensions[kind], start, start + size) for kind, start, size in zip(kinds, starts, sizes, strict=True)
        ]

    def fits(self, row: int, data: bytes | memoryview) -> bool:
        """Return whether the bytes of a sample have the same headers as when the index was created."""
        mark, begin = 0, self.span(row)[0]
        for _, start, _ in self.members(row):
            mark = crc32(data[start - BLOCK - begin : start - begin], mark)
        return mark == int(self._arrays["marks"][row])

    def looked_into(self, name: str) -> list[Part]:
        """Return the parts of a shard that its content digest covers."""
        return places(name, self._arrays["starts"], self._arrays["sizes"])


def places(name: str, starts: NDArray[Any], sizes: NDArray[Any]) -> list[Part]:
    """Return the first bytes of some members of a shard, as parts."""
    chosen = sorted({number * (len(starts) - 1) // (_PLACES - 1) for number in range(_PLACES)}) if len(starts) else []
    whole = [Part(name, int(starts[one]), int(starts[one]) + min(int(sizes[one]), _PLACE)) for one in chosen]
    return [part for part in whole if part.stop > part.start]


def packed(found: Found, name: str, stamp: Stamp, read: Callable[[list[Part]], list[bytes]]) -> bytes:
    """Return an index as bytes.

    Args:
        found: result of the scan.
        name: of the shard.
        stamp: of the shard.
        read: reads parts of the shard.
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
    described = [arrays[one].tobytes() for one in ("sizes", "rows", "key_ends", "kinds", "keys")]
    head = {
        "stamp": list(stamp),
        "digest": digest_of([*described, json.dumps(list(found.extensions)).encode()]),
        "content": digest_of(read(some) if some else []),
        "extensions": list(found.extensions),
        "lengths": [len(arrays[one]) for one in _ARRAYS],
        "crc": crc32(body),
    }
    line = _MAGIC + json.dumps(head).encode() + b"\n"
    return line[:-1] + b" " * (-len(line) % 8) + b"\n" + body


def unpacked(data: bytes) -> Index | None:
    """Return the index in some bytes, without copying them; None if they are damaged or not an index."""
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
    """Return a digest of several byte strings."""
    state = hashlib.blake2b(digest_size=8, person=b"resumable1")
    for part in parts:
        state.update(len(part).to_bytes(8, "little") + part)
    return state.hexdigest()


# ---------------------------------------------------------------------- scanning a tar

BLOCK = 512  # bytes of a header
_CONTINUED = b"M"  # GNU's type of a member that is continued from a previous volume
_TAIL = 1 << 16  # bytes after the end that are checked
_NAME = re.compile(r"((?:.*/)?[^.]+)\.([^/]*)")  # key and extension, split at the first dot of the file name
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
    """The members and samples of a shard.

    Attributes:
        starts: first byte of each member.
        sizes: size of each member in bytes.
        kinds: number of each member's extension.
        extensions: extensions with their numbers.
        rows: first member of each sample.
        keys: key of each sample.
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
    """Read the headers of a tar, and group its members into samples as webdataset does.

    Consecutive members with the same key are a sample. The key is the path up to the first dot of the file name. The
    extension is the rest, in lower case. Folders, links, members without an extension, and names `__like_this__` are
    skipped.

    Args:
        file: the tar, at position 0.
        name: of the tar, for messages.
        size: of the tar, in bytes.

    Raises:
        ConfigurationError: the tar is compressed, truncated, damaged or invalid, or a sample has an extension twice.
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
    """Warn about keys whose members are not consecutive: they become several samples."""
    counts = Counter(found.keys)
    if again := len(found.keys) - len(counts):
        _log.warning(
            "%s: some keys have members that are not consecutive, such as %r. As in webdataset, this creates %d "
            "additional, incomplete samples. Write the members of a key one after the other (tar --sort=name)",
            name,
            next(key for key, count in counts.items() if count > 1),
            again,
        )


def _members(file: BinaryIO, name: str, size: int) -> Iterator[tarfile.TarInfo]:
    """Yield the members that are files, and check the end, because tarfile takes damage in the middle for the end."""
    at = 0
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            while (member := tar.next()) is not None:
                vars(tar)["members"].clear()  # do not collect all members in memory
                at = tar.offset
                _refuse_continued(member, name)
                if member.isreg():
                    _check_member(member, name, size)
                    yield member
            at = tar.offset
    except ConfigurationError:  # it is also a ValueError
        raise
    except (tarfile.TarError, ValueError, OverflowError, EOFError) as error:
        raise _damaged(name, at, str(error)) from error
    _check_end(file, name, at, size)


def _check_member(member: tarfile.TarInfo, name: str, size: int) -> None:
    if member.issparse():
        raise ConfigurationError(
            f"{name}, byte {member.offset}: member {member.name} is a sparse file, which is not stored in full.\n"
            "Wrong bytes would be read. Write the tar without --sparse."
        )
    if member.size < 0 or member.offset_data + member.size > size:
        raise _damaged(name, member.offset, f"member {member.name} ends at byte {member.offset_data + member.size}")


def _refuse_continued(member: tarfile.TarInfo, name: str) -> None:
    if member.type == _CONTINUED:
        raise ConfigurationError(
            f"{name}, byte {member.offset}: the tar is one of several volumes, and continues {member.name} of the "
            "previous one.\nThat member would be missing. Write each shard as a separate tar, without --multi-volume."
        )


def _check_end(file: BinaryIO, name: str, at: int, size: int) -> None:
    file.seek(at)
    block = file.read(BLOCK)
    if len(block) < BLOCK:
        raise _damaged(name, at, "the block at the end is missing")
    if any(block):
        raise _damaged(name, at, "a member's header is invalid")
    if any(file.read(min(_TAIL, size - at - BLOCK))):
        raise ConfigurationError(
            f"{name}, byte {at}: the tar ends here, but the file has {size} bytes.\nThe rest would not be read. If "
            "tars were joined with `cat`, use `tar --concatenate` instead, or use them as separate shards."
        )


def _damaged(name: str, at: int, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{name}, byte {at}: the tar is truncated or damaged: {what}.\n"
        "Samples would be missing or wrong. Copy or write the shard again."
    )


def _refuse_compressed(file: BinaryIO, name: str) -> None:
    head = file.read(8)
    file.seek(0)
    for magic, kind in _COMPRESSED.items():
        if head.startswith(magic):
            raise ConfigurationError(
                f"{name}, byte 0: the tar is compressed ({kind}), so it can only be read sequentially.\n"
                f"Each sample would need reading everything before it. Decompress the shard once ({kind} -d)."
            )


def _refuse_twice(extension: str, seen: set[str], name: str, member: tarfile.TarInfo) -> None:
    if extension in seen:
        raise ConfigurationError(
            f"{name}, byte {member.offset}: the sample of member {member.name} already has the extension {extension!r}."
            "\nOne of the two members would be lost. Use a different extension for each member of a sample."
        )
