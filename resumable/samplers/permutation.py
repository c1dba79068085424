"""A seekable pseudo-random permutation of `0..n-1` in O(1) memory.

It uses an alternating Feistel network on the domain `2**w * b`, the smallest such domain that holds `n` (it exceeds `n`
by less than `2**w <= sqrt(n)`), and cycle walking for the few values outside `0..n-1`. Keys are BLAKE2b of (n, key). It
has eight rounds, because with fewer rounds the statistical tests of this project fail at some lengths. Up to 4096
elements, a sorted table of keyed random words is used instead, because such networks are weak on small domains.

Sources: Black and Rogaway, "Ciphers with Arbitrary Finite Domains" (2002), for cycle walking and generalised Feistel
networks; Mitchell et al., "Bandwidth-Optimal Random Shuffling for GPUs" (2022), for their use as a shuffle.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from resumable._randomness.keyed import IntArray, Words, derive, random_u64
from resumable.samplers.base import check_length, check_range

__all__ = ["Permutation"]

_U64 = np.uint64
_MULTIPLY_1 = _U64(0x9E3779B97F4A7C15)
_MULTIPLY_2 = _U64(0xD6E8FEB86659FD93)
_HALF = _U64(32)
_ROUNDS = 8
_TABLE_LENGTH = 4096


_Step = Callable[[Words], Words]


class Permutation:
    """The permutation of `0..length-1` for this length and key; the algorithm is `feistel8-v1`.

    The algorithm never changes under this name: its values are pinned by test vectors.

    Args:
        length: number of elements, `1..2**62`.
        key: integers that select the permutation, such as seed and epoch.
    """

    def __init__(self, length: int, *key: int) -> None:
        self.length = check_length(length, "the length of a permutation")
        self._table: IntArray | None = None
        if self.length <= _TABLE_LENGTH:
            words = random_u64(derive(self.length, *key, words=2, purpose=b"small"), np.arange(self.length))
            self._table = np.argsort(words, kind="stable")
            return
        self._width = (self.length.bit_length() - 1) // 2
        self._radix = -(-self.length >> self._width)
        self._keys = derive(self.length, *key, words=_ROUNDS, purpose=b"order")

    def range(self, start: int, stop: int) -> IntArray:
        """Map the positions `start..stop-1`; shape `(stop - start,)`.

        Raises:
            ConfigurationError: they are not in `0..length`.
        """
        check_range(start, stop, self.length)
        if self._table is not None:
            return self._table[start:stop].copy()
        return self._walk(np.arange(start, stop, dtype=_U64), self._encipher)

    def inverse(self, index: int) -> int:
        """Find the position that maps to `index`: its position in the order.

        Raises:
            ConfigurationError: `index` is not in `0..length-1`.
        """
        check_range(index, index + 1, self.length)
        return int(self.find(np.array([index]))[0])

    def at(self, positions: IntArray) -> IntArray:
        """Map any positions in `0..length-1`; returns an array of the same shape."""
        if self._table is not None:
            return self._table[positions]
        return self._walk(positions.astype(_U64), self._encipher)

    def find(self, indices: IntArray) -> IntArray:
        """Find the positions that map to indices in `0..length-1`; returns an array of the same shape."""
        if self._table is not None:
            return np.argsort(self._table)[indices]
        return self._walk(indices.astype(_U64), self._decipher)

    def _walk(self, values: Words, step: _Step) -> IntArray:
        values = step(values)
        outside = np.flatnonzero(values >= _U64(self.length))
        while outside.size:
            again = step(values[outside])
            values[outside] = again
            outside = outside[again >= _U64(self.length)]
        return values.view(np.int64)

    def _encipher(self, values: Words) -> Words:
        low, high = values & _U64((1 << self._width) - 1), values >> _U64(self._width)
        for number in range(_ROUNDS):
            if number % 2 == 0:
                high += self._scaled(low, number)
                high = np.minimum(high, high - _U64(self._radix))  # wraps to a huge number if already below the radix
            else:
                low ^= self._mixed(high, number) >> _U64(64 - self._width)
        return (high << _U64(self._width)) | low

    def _decipher(self, values: Words) -> Words:
        low, high = values & _U64((1 << self._width) - 1), values >> _U64(self._width)
        for number in reversed(range(_ROUNDS)):
            if number % 2 == 0:
                high -= self._scaled(low, number)
                high = np.minimum(high, high + _U64(self._radix))
            else:
                low ^= self._mixed(high, number) >> _U64(64 - self._width)
        return (high << _U64(self._width)) | low

    def _mixed(self, half: Words, number: int) -> Words:
        mixed: Words = (half + self._keys[number]) * _MULTIPLY_1
        mixed ^= mixed >> _HALF
        mixed *= _MULTIPLY_2
        return mixed

    def _scaled(self, low: Words, number: int) -> Words:
        """Spread the mixed low half evenly over `0..radix-1`, with a multiplication instead of a division."""
        return ((self._mixed(low, number) >> _HALF) * _U64(self._radix)) >> _HALF
