"""Reads the headers of a tar once: which members belong to which sample, and where their bytes are."""

from __future__ import annotations

import re
import tarfile
from collections import Counter
from dataclasses import dataclass, field
from logging import getLogger
from typing import TYPE_CHECKING, BinaryIO
from zlib import crc32

from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BLOCK", "Found", "scan"]

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
