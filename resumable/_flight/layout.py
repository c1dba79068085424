"""Layout of a record's file: 64 words of 8 bytes in the machine's byte order, mapped into memory.

     0..13    header: who writes, and what was known of the crashes before; written once, with a checksum
    16..18    how the process ended, the global batch, the state taken last; each changes by itself
    32..39    one of two slots: count, epoch, step, position, global step, time, phase, checksum
    40..47    the other one

A batch is written to the slots in turn, the checksum last. The whole one with the higher count is true, so that a write
that was cut leaves what stood before. A word is stored at once, so that the phase of a slot can change by itself; it is
spelled out, so that a damaged one is none.
"""

from __future__ import annotations

import struct
import sys
import zlib
from typing import NamedTuple

__all__ = [
    "END",
    "GLOBAL_BATCH",
    "MAGIC",
    "SAVED",
    "SIZE",
    "Header",
    "Slot",
    "pack_header",
    "parse_header",
    "parse_slots",
    "word",
    "word_at",
    "write_slot",
]

SIZE = 512
MAGIC = b"RSMFLT1\n"
END, GLOBAL_BATCH, SAVED = 16, 17, 18  # numbers of words
_SLOT, _SLOT_SIZE = 32 * 8, 64
_HEADER = struct.Struct("=8s12Q")
_NUMBERS = struct.Struct("=5Q")
_WHOLE = struct.Struct("=8Q")
_MASK = (1 << 64) - 1


class Header(NamedTuple):
    """What is written when a process opens its file.

    `crashes` counts those in a row at one batch, before this process; `epoch` to `phase` say which one that is.
    """

    rank: int
    world_size: int
    pid: int
    started: int
    host: int
    fingerprint: int
    begun: int
    crashes: int = 0
    epoch: int = 0
    step: int = 0
    position: int = 0
    phase: int = 0


class Slot(NamedTuple):
    """What is written for each batch; times in nanoseconds since 1970."""

    number: int
    epoch: int
    step: int
    position: int
    global_step: int
    time: int
    phase: int
    check: int


def word(text: str) -> int:
    """Return up to 8 letters as the number that stands for them."""
    return int.from_bytes(text.encode().ljust(8, b"\0"), sys.byteorder)


def pack_header(header: Header) -> bytes:
    """Return the words of a header."""
    packed = _HEADER.pack(MAGIC, *header)
    return packed + zlib.crc32(packed).to_bytes(8, sys.byteorder)


def parse_header(content: bytes) -> Header:
    """Read the header of a file.

    Raises:
        ValueError: it is damaged.
    """
    check = zlib.crc32(content[: _HEADER.size]).to_bytes(8, sys.byteorder)
    if len(content) < SIZE or content[_HEADER.size : _HEADER.size + 8] != check:
        raise ValueError("its header does not match its checksum")
    return Header(*_HEADER.unpack_from(content)[1:])


def word_at(content: bytes, number: int) -> int:
    """Return a word of a file."""
    return int.from_bytes(content[number * 8 : number * 8 + 8], sys.byteorder)


def write_slot(memory: object, count: int, place: tuple[int, int, int, int], time: int, phase: int) -> int:
    """Write a slot whole, and return the number of the word that has its phase.

    Args:
        memory: of the file.
        count: one more than at the write before.
        place: epoch, step, position and global step.
        time: in nanoseconds.
        phase: a word.
    """
    at = _SLOT + (count & 1) * _SLOT_SIZE
    check = zlib.crc32(_NUMBERS.pack(count, *place))
    _WHOLE.pack_into(memory, at, count, *place, time, phase, check)  # type: ignore[arg-type]  # a buffer
    return (at >> 3) + 6


def parse_slots(content: bytes) -> list[Slot]:
    """Return the slots that are whole, the latest one first."""
    slots = [Slot(*_WHOLE.unpack_from(content, _SLOT + number * _SLOT_SIZE)) for number in (0, 1)]
    whole = [slot for slot in slots if slot.number and slot.check == zlib.crc32(_NUMBERS.pack(*slot[:5]))]
    return sorted(whole, reverse=True)
