"""CRC-32C, the checksum in TFRecord files, computed by NumPy: of many short messages at once, and of a long one.

Castagnoli's polynomial, as in RFC 3720, appendix B.4. TFRecord stores it rotated and with a constant added
(tensorflow/core/lib/hash/crc32c.h).
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["masked_crc", "masked_crcs"]

_Words = NDArray[np.uint32]
_POLYNOMIAL = 0x82F63B78
_ONES = np.uint32(0xFFFFFFFF)
_ROW = 64  # bytes of a long message that one row of the computation takes
_BYTE, _LOW = np.uint32(8), np.uint32(0xFF)


def masked_crcs(messages: NDArray[np.uint8]) -> _Words:
    """Compute the masked checksums of messages of one length; `(messages, bytes)` gives `(messages,)`."""
    registers = np.full(len(messages), _ONES)
    return _mask(_absorb(registers, messages) ^ _ONES)


def masked_crc(message: bytes) -> int:
    """Compute the masked checksum of one message.

    The message is cut into rows whose registers are computed side by side, and then joined in pairs: a register is
    moved past the bytes that follow it by a linear function, of which there is a table for each number of bytes.
    Zeros in front of a message change nothing where the register begins with zero.
    """
    if len(message) < 4:  # noqa: PLR2004  # the bytes of a register
        return int(masked_crcs(np.frombuffer(message, np.uint8)[None])[0])
    rows = 1
    while rows * _ROW < len(message):
        rows *= 2
    padded = np.zeros(rows * _ROW, np.uint8)
    padded[-len(message) :] = np.frombuffer(message, np.uint8)
    padded[-len(message) :][:4] ^= np.uint8(0xFF)  # the same as a register that begins with ones
    registers, level = _absorb(np.zeros(rows, np.uint32), padded.reshape(rows, _ROW)), 0
    while len(registers) > 1:
        registers, level = _shift(registers[::2], level) ^ registers[1::2], level + 1
    return int(_mask(registers ^ _ONES)[0])


def _absorb(registers: _Words, messages: NDArray[np.uint8]) -> _Words:
    table = _table()
    for column in np.ascontiguousarray(messages.T):
        registers = table[(registers ^ column) & _LOW] ^ (registers >> _BYTE)
    return registers


def _mask(crcs: _Words) -> _Words:
    return ((crcs >> np.uint32(15)) | (crcs << np.uint32(17))) + np.uint32(0xA282EAD8)


@cache
def _table() -> _Words:
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = np.where(values & np.uint32(1), (values >> np.uint32(1)) ^ np.uint32(_POLYNOMIAL), values >> 1)
    return values.astype(np.uint32)


def _shift(registers: _Words, level: int) -> _Words:
    """Move registers past `_ROW * 2**level` zero bytes."""
    tables: _Words = _shift_tables(level)
    parts: list[_Words] = [tables[place][(registers >> np.uint32(8 * place)) & _LOW] for place in range(4)]
    return parts[0] ^ parts[1] ^ parts[2] ^ parts[3]


@cache
def _shift_tables(level: int) -> _Words:
    """Return what each byte of a register becomes after those zero bytes; shape `(4, 256)`."""
    values = np.arange(256, dtype=np.uint32)
    bytes_of = np.stack([values << np.uint32(8 * place) for place in range(4)])
    if level:
        return _shift(_shift(bytes_of, level - 1), level - 1)
    return _absorb(bytes_of.ravel(), np.zeros((1024, _ROW), np.uint8)).reshape(4, 256)
