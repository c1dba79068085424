"""Layout of a record's file: 512 words of 8 bytes in the machine's byte order, mapped into memory.

      0..13   header: who writes, and what was known of the crashes before; written once, with a checksum
     16..19   how the process ended, the global batch, the state taken last, whether the readers are none of what ended
              it; each changes by itself
     32..39   one of two slots: count, epoch, step, position, global step, time, phase, checksum
     40..47   the other one
     64..191  readers: the sample that is read by this process, and by each of its workers; as `Reading` writes it
    192..449  samples that were read at the crashes before: their number, each with its crashes in a row, checksum

A batch is written to the slots in turn, the checksum last. The whole one with the higher count is true, so that a write
that was cut leaves what stood before. A word is stored at once, so that the phase of a slot can change by itself; it is
spelled out, so that a damaged one is none.
"""

from __future__ import annotations

import struct
import sys
from time import time_ns
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Mapping
    from mmap import mmap

__all__ = [
    "END",
    "FIRST",
    "GLOBAL_BATCH",
    "KIND",
    "MAGIC",
    "MOST_READERS",
    "NO_READER",
    "READERS",
    "SAVED",
    "SIZE",
    "Header",
    "Slot",
    "pack_header",
    "pack_tallies",
    "parse_header",
    "parse_slots",
    "parse_tallies",
    "place_at",
    "word",
    "word_at",
    "write_slot",
]

SIZE = 4096
KIND = b"RSMFLT"
MAGIC = KIND + b"2\n"
END, GLOBAL_BATCH, SAVED, NO_READER = 16, 17, 18, 19  # numbers of words
READERS, MOST_READERS = 64, 128
_SLOT, _SLOT_SIZE = 32 * 8, 64
_HEADER = struct.Struct("=8s12Q")
_NUMBERS = struct.Struct("=5Q")
_WHOLE = struct.Struct("=8Q")
_PHASE = 6 * 8  # bytes before it in a slot
_OTHER = 8  # words from one slot to the other, which are apart in one bit
FIRST = 32 + 6
_TALLIES = (READERS + MOST_READERS) * 8
_PAIRS = struct.Struct(f"={1 + 2 * MOST_READERS}Q")
_pack_numbers, _pack_into = _NUMBERS.pack, _WHOLE.pack_into


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
    return packed + crc32(packed).to_bytes(8, sys.byteorder)


def parse_header(content: bytes) -> Header:
    """Read the header of a file.

    Raises:
        ValueError: it is damaged.
    """
    check = crc32(content[: _HEADER.size]).to_bytes(8, sys.byteorder)
    if len(content) < SIZE or content[_HEADER.size : _HEADER.size + 8] != check:
        raise ValueError("its header does not match its checksum")
    return Header(*_HEADER.unpack_from(content)[1:])


def pack_tallies(tallies: Mapping[int, int]) -> tuple[int, bytes]:
    """Return where the samples that were read at the crashes before stand, and their words.

    Args:
        tallies: crashes in a row, by sample.
    """
    pairs = [number for pair in list(tallies.items())[:MOST_READERS] for number in pair]
    packed = _PAIRS.pack(len(pairs) // 2, *pairs, *[0] * (2 * MOST_READERS - len(pairs)))
    return _TALLIES, packed + crc32(packed).to_bytes(8, sys.byteorder)


def parse_tallies(content: bytes) -> dict[int, int]:
    """Return what `pack_tallies` was given; nothing where it is damaged."""
    end = _TALLIES + _PAIRS.size
    packed = content[_TALLIES:end]
    if content[end : end + 8] != crc32(packed).to_bytes(8, sys.byteorder):
        return {}
    count, *pairs = _PAIRS.unpack(packed)
    return dict(zip(pairs[0 : 2 * count : 2], pairs[1 : 2 * count : 2], strict=True))


def word_at(content: bytes, number: int) -> int:
    """Return a word of a file."""
    return int.from_bytes(content[number * 8 : number * 8 + 8], sys.byteorder)


def write_slot(  # noqa: PLR0913, PLR0917  # one call per batch: what it costs is what the recorder costs
    memory: mmap | bytearray, at: int, number: int, epoch: int, step: int, position: int, global_step: int, phase: int
) -> int:
    """Write the slot whole that was not written last, and return the number of the word that has its phase.

    Args:
        memory: of the file.
        at: what was returned before; `FIRST` at first.
        number: one more than at the write before.
        epoch: of the batch, as the three that follow.
        step: in the epoch.
        position: in the epoch.
        global_step: over all epochs.
        phase: a word.
    """
    at ^= _OTHER
    check = crc32(_pack_numbers(number, epoch, step, position, global_step))
    _pack_into(memory, at * 8 - _PHASE, number, epoch, step, position, global_step, time_ns(), phase, check)
    return at


def place_at(memory: mmap | bytearray, at: int) -> tuple[int, int, int, int]:
    """Return epoch, step, position and global step of the slot whose phase is in a word."""
    slot = Slot(*_WHOLE.unpack_from(memory, at * 8 - _PHASE))
    return slot.epoch, slot.step, slot.position, slot.global_step


def parse_slots(content: bytes) -> list[Slot]:
    """Return the slots that are whole, the latest one first."""
    slots = [Slot(*_WHOLE.unpack_from(content, _SLOT + number * _SLOT_SIZE)) for number in (0, 1)]
    whole = [slot for slot in slots if slot.number and slot.check == crc32(_NUMBERS.pack(*slot[:5]))]
    return sorted(whole, reverse=True)
