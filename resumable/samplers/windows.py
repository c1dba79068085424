"""The blocks of an epoch one after the other, in windows: arithmetic, and a table of those blocks that are shorter."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from resumable._randomness.keyed import IntArray
    from resumable.samplers.permutation import Permutation
    from resumable.samplers.shards import Shards

__all__ = ["Layout", "Window"]


class Window(NamedTuple):
    """Blocks whose samples are shuffled among each other.

    Attributes:
        epoch: in which they are.
        start: first position of the window.
        stop: position after its last.
        blocks: their numbers, shape `(blocks,)`.
    """

    epoch: int
    start: int
    stop: int
    blocks: IntArray


class Layout:
    """The blocks of an epoch in their order.

    A *slot* is the place of a block in that order; a *place* is where a sample would come if no window were shuffled.

    Args:
        shards: cut into blocks.
        order: maps slots to blocks.
        window: slots per window.
    """

    def __init__(self, shards: Shards, order: Permutation, window: int) -> None:
        slots = order.find(shards.short)
        rising = np.argsort(slots)
        slots, missing = slots[rising], shards.missing[rising]
        self.order, self._length = order, shards.length
        self._slots = _Cuts(slots, missing, shards.size)
        self._windows = _Cuts(slots // window, missing, shards.size * window)

    def blocks(self, places: IntArray) -> tuple[IntArray, IntArray]:
        """Return the block at each place, and which of its samples that is."""
        slots, within = self._slots.find(places)
        return self.order.at(slots), within

    def window(self, position: int) -> tuple[int, int, int]:
        """Return the number of the window at a position, its first position, and the one after its last."""
        number = int(self._windows.find(np.array([position]))[0][0])
        return number, self._windows.begin(number), min(self._windows.begin(number + 1), self._length)


class _Cuts:
    """Places that are cut into units of one size, of which some are shorter.

    Args:
        short: numbers of the units that are shorter, in ascending order; one may come several times.
        missing: places that each of them lacks.
        size: places of a whole unit.
    """

    def __init__(self, short: IntArray, missing: IntArray, size: int) -> None:
        first = np.flatnonzero(np.diff(short, prepend=-1))
        self._short, self._size = short[first], size
        sums = np.concatenate([[0], np.cumsum(missing)])
        self._missing = np.append(sums[first], sums[-1])  # before each short unit, and after the last
        self._stops = (self._short + 1) * size - self._missing[1:]

    def find(self, places: IntArray) -> tuple[IntArray, IntArray]:
        """Return the unit of each place, and the place in it."""
        missing = self._missing[np.searchsorted(self._stops, places, side="right")]
        return np.divmod(places + missing, self._size)

    def begin(self, unit: int) -> int:
        """Return the first place of a unit."""
        return unit * self._size - int(self._missing[np.searchsorted(self._short, unit)])
