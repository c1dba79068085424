"""The index of a shard: where each sample is. It is kept in a file, so that later starts read no headers."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from resumable.sources._files import Part, Stamp
from resumable.sources._tar.scan import BLOCK

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from resumable.sources._tar.scan import Found

__all__ = ["Index", "digest_of", "packed", "places", "unpacked"]

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
