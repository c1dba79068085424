"""Seeds the global generators before every sample, and leaves out those that the source never draws from.

Seeding all three costs about 7 microseconds, of which torch's takes one: the states of the other two are large, and
most sources draw from neither. So which ones a source draws from is learnt from the first batch that is read, where
all of them are seeded before each sample. One that stayed idle is from then on seeded once per batch, and looked at
after it: if it was drawn from after all, the batch is read once more with it seeded per sample, as are all later
ones. What is delivered is always what seeding all of them gives.

Looking costs a draw, and tells by the number that comes whether it is the first one after the seed. Code that reads a
generator's state, draws, and puts the state back without seeding it, is not seen.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from resumable._randomness.keys import reseed, torch_seeder

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Seeding"]


_LOOKS = 8  # samples of the first batch that are looked at; it takes 25 microseconds each


class _Generator(Protocol):
    """A global generator that is slow to seed."""

    def seed(self, key: int) -> None: ...

    def draw(self) -> object: ...

    def first_draw(self, key: int) -> object: ...


class _Python:
    _twin = random.Random(0)

    def seed(self, key: int) -> None:
        random.seed(key)

    def draw(self) -> object:
        return random.getrandbits(64)

    def first_draw(self, key: int) -> object:
        self._twin.seed(key)
        return self._twin.getrandbits(64)


class _Numpy:
    _twin = np.random.RandomState(0)

    def seed(self, key: int) -> None:
        np.random.seed(key >> 32)  # noqa: NPY002  # the global one is meant

    def draw(self) -> object:
        return np.random.bytes(8)  # noqa: NPY002  # the global one is meant

    def first_draw(self, key: int) -> object:
        self._twin.seed(key >> 32)
        return self._twin.bytes(8)


class Seeding:
    """What is known about the generators that one source draws from."""

    def __init__(self) -> None:
        self._learnt = False
        self._busy: list[_Generator] = []
        self._idle: list[_Generator] = [_Python(), _Numpy()]

    def read(self, read_all: Callable[[Callable[[int], object]], list[Any]], batch_key: int) -> list[Any]:
        """Read the samples of a batch.

        Args:
            read_all: reads them, and calls what it is given with each sample's key before it reads the sample.
            batch_key: key of the batch.
        """
        if not self._learnt:
            return self._learn(read_all)
        while True:
            expected = [generator.first_draw(batch_key) for generator in self._idle]
            for generator in self._idle:
                generator.seed(batch_key)
            try:
                samples = read_all(self._seed_busy if self._busy else torch_seeder())
            except Exception:
                if not self._woken(expected):  # else, seeded as it should be, the sample might not have failed
                    raise
                continue
            if not self._woken(expected):
                return samples

    def _woken(self, expected: list[object]) -> bool:
        """Return whether an idle generator was drawn from, and count it as a busy one."""
        pairs = zip(self._idle, expected, strict=True)
        drawn = [generator for generator, first in pairs if generator.draw() != first]
        self._wake(drawn)
        return bool(drawn)

    def _learn(self, read_all: Callable[[Callable[[int], object]], list[Any]]) -> list[Any]:
        last: list[int] = []
        looks = _LOOKS

        def seed(key: int) -> None:
            nonlocal looks
            self._look(last)
            reseed(key)
            last[:] = [key] if looks > 0 else []
            looks -= 1

        samples = read_all(seed)
        self._look(last)
        self._learnt = True
        return samples

    def _look(self, last: list[int]) -> None:
        for key in last:
            self._wake([generator for generator in self._idle if generator.draw() != generator.first_draw(key)])

    def _wake(self, drawn: list[_Generator]) -> None:
        self._busy += drawn
        self._idle = [generator for generator in self._idle if generator not in drawn]

    def _seed_busy(self, key: int) -> None:
        for generator in self._busy:
            generator.seed(key)
        torch_seeder()(key)
