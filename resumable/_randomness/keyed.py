"""Random numbers as functions of a key and a counter, using only integers.

Everything random in this package (order, augmentation seeds, weighted sampling) uses these functions. There is no RNG
with a state: a number is computed from *where* it is used, so any position of a stream can be computed without the
positions before it. Integer arithmetic produces the same bits on every platform and with every NumPy version.
"""

from __future__ import annotations

import hashlib
import operator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "BlockCache",
    "IntArray",
    "Words",
    "check_seed",
    "derive",
    "digest",
    "mix64",
    "mix_int",
    "random_int",
    "random_u64",
    "scale",
]

IntArray = NDArray[np.int64]
Words = NDArray[np.uint64]

_U64 = np.uint64
_GOLDEN = _U64(0x9E3779B97F4A7C15)
_HALF = _U64(32)
_LOW = _U64(0xFFFFFFFF)
_MASK = (1 << 64) - 1
_WORDS_PER_DIGEST = 8


def derive(*parts: int | str, words: int, purpose: bytes) -> Words:
    """Derive 64-bit words from any integers and strings with BLAKE2b in counter mode.

    Args:
        parts: what the words depend on, such as length, seed and epoch. The encoding is injective: different lists of
            parts always have different messages.
        words: how many words.
        purpose: at most 16 bytes that distinguish the uses.

    Returns:
        Array of shape `(words,)`.
    """
    message = b"".join(len(part).to_bytes(4, "little") + part for part in map(_encode, parts))
    blocks = [
        hashlib.blake2b(
            counter.to_bytes(4, "little") + message, digest_size=64, person=b"resumable1", salt=purpose
        ).digest()
        for counter in range(-(-words // _WORDS_PER_DIGEST))
    ]
    return np.frombuffer(b"".join(blocks)[: 8 * words], "<u8").astype(_U64)


def _encode(part: int | str) -> bytes:
    if isinstance(part, str):
        return b"s" + part.encode()
    part = operator.index(part)
    return b"i" + part.to_bytes(part.bit_length() // 8 + 1, "little", signed=True)


def mix64(x: Words) -> Words:
    """Mix the bits of every word (the finalizer of SplitMix64, Stafford's variant 13).

    Args:
        x: words of any shape; not modified.

    Returns:
        New words of the same shape.
    """
    x = x ^ (x >> _U64(30))
    x *= _U64(0xBF58476D1CE4E5B9)
    x ^= x >> _U64(27)
    x *= _U64(0x94D049BB133111EB)
    x ^= x >> _U64(31)
    return x


def random_u64(key: Words, counters: ArrayLike) -> Words:
    """Compute 64 random bits for every counter, in two keyed passes.

    Args:
        key: two words, as from `derive`.
        counters: non-negative integers of any shape, such as positions of an epoch.

    Returns:
        Words of the shape of `counters`.
    """
    array = np.asarray(counters)
    counted = np.atleast_1d(array).astype(_U64) * _GOLDEN + key[0]  # for scalars, NumPy warns about the overflow
    return mix64(mix64(counted) ^ key[1]).reshape(array.shape)


def scale(words: Words, total: int) -> Words:
    """Map 64 random bits evenly to `0..total-1`: the high word of the 128-bit product."""
    low, high = words & _LOW, words >> _HALF
    t_low, t_high = np.uint64(total) & _LOW, np.uint64(total) >> _HALF
    middle_1, middle_2 = high * t_low, low * t_high
    carry = ((low * t_low) >> _HALF) + (middle_1 & _LOW) + (middle_2 & _LOW)
    scaled: Words = high * t_high + (middle_1 >> _HALF) + (middle_2 >> _HALF) + (carry >> _HALF)
    return scaled


def random_int(key: tuple[int, int], counter: int) -> int:
    """Compute `random_u64` for one counter, ten times faster than NumPy."""
    return mix_int(mix_int((counter * int(_GOLDEN) + key[0]) & _MASK) ^ key[1])


def mix_int(x: int) -> int:
    """Compute `mix64` for one word."""
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & _MASK
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & _MASK
    return x ^ (x >> 31)


def digest(array: NDArray[np.generic]) -> str:
    """Fingerprint an array by content: 16 hexadecimal digits of BLAKE2b over dtype, shape and bytes."""
    state = hashlib.blake2b(f"{array.dtype.str}{array.shape}".encode(), digest_size=8, person=b"resumable1")
    state.update(np.ascontiguousarray(array).data)
    return state.hexdigest()


def check_seed(seed: object) -> int:
    """Return a seed as a Python integer.

    Raises:
        ConfigurationError: it is negative, or not an integer.
    """
    try:
        value = operator.index(seed)  # type: ignore[arg-type]  # raises if it is not an integer
    except TypeError:
        value = -1
    if value < 0 or isinstance(seed, bool):
        raise ConfigurationError(
            f"the seed must be an integer of 0 or more, but it is {seed!r}.\n"
            "The order of the samples is computed from it, so it must be exact. For example, use seed=0."
        )
    return value


class BlockCache:
    """Evaluate an array function of a range in aligned blocks, so a small range only costs a slice.

    A block is evaluated if most of it will be needed, because ranges follow each other closely. Isolated ranges, and
    the share of one among hundreds of ranks, are evaluated directly.

    The cache is never part of a state: without it, the results are the same, only slower. Several threads may use it.

    Args:
        function: maps `(start, stop)` to an array of `stop - start` elements.
        length: the function is defined for `0 <= start <= stop <= length`.
    """

    BLOCK = 4096
    CLOSE = 256  # gap between two ranges, in values, up to which a block pays off

    def __init__(self, function: Callable[[int, int], NDArray[np.generic]], length: int) -> None:
        self._function = function
        self._length = length
        self._kept: tuple[int, NDArray[np.generic]] = -1, np.empty(0)  # one value, so threads see both or neither
        self._last = -self.BLOCK  # where the last range started

    def take(self, start: int, stop: int) -> NDArray[np.generic]:
        """Return the values of `start..stop-1`; a view that must not be written to."""
        step, self._last = start - self._last, start
        return self._take(start, stop, follows=0 < step <= self.CLOSE + stop - start)

    def _take(self, start: int, stop: int, *, follows: bool) -> NDArray[np.generic]:
        first, last = start // self.BLOCK, (stop - 1) // self.BLOCK
        if first == last:
            number, block = self._kept
            if first != number:
                if not follows:
                    return self._function(start, stop)
                block = self._fill(first)
            offset = first * self.BLOCK
            return block[start - offset : stop - offset]
        if not (follows and 0 < stop - start <= self.BLOCK):
            return self._function(start, stop)
        border = last * self.BLOCK
        parts = self._take(start, border, follows=True), self._take(border, stop, follows=True)
        return np.concatenate(parts)

    def _fill(self, number: int) -> NDArray[np.generic]:
        start = number * self.BLOCK
        block = self._function(start, min(self._length, start + self.BLOCK))
        block.flags.writeable = False
        self._kept = number, block
        return block
