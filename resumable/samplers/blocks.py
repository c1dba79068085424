"""A shuffle in two levels, for data that is read in blocks: those in random order, and their samples within windows."""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from resumable._introspection import ask, qualname_of
from resumable._randomness.keyed import IntArray, check_seed, digest
from resumable.errors import ConfigurationError
from resumable.samplers.base import check_length, check_range
from resumable.samplers.permutation import Permutation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike


__all__ = ["Blocks", "Layout", "PagedShuffle", "Shards", "Window", "blocks_of_source", "parse_sizes"]


# Shards cut into blocks: samples that lie together, whose order is computed from the sizes of the shards alone.

_LARGEST = 1 << 62
_LONGEST_TEXT = 80  # characters of a state; the sizes are in it as a digest where they would take more
_MOST_SHARDS = 10**6  # that are listed from a text


class Shards:
    """Samples in shards, each cut into blocks of `size` samples; the last block of a shard may be shorter.

    The samples are numbered through, shard after shard, and so are the blocks. Where every shard but the last one is a
    multiple of `size`, the blocks are those of one shard, and no table is kept. Else about 50 bytes are, for a shard.

    Args:
        sizes: samples per shard, shape `(shards,)`; or the number of all samples.
        size: samples per block; None: every shard is a block, whatever its size.

    Attributes:
        length: number of samples.
        blocks: number of blocks.
        size: samples of a whole block.
        short: numbers of the blocks that are shorter, in ascending order.
        missing: samples that each of them lacks.
        text: the sizes as a state has them, short or as a digest; empty where there is one shard.

    Raises:
        ConfigurationError: sizes that are no integers of 0 or more, or a bad block size.
    """

    def __init__(self, sizes: ArrayLike | int, size: int | None) -> None:
        array = _check_sizes(sizes)
        self.length = int(array.sum())
        self.size = int(array.max()) if size is None else check_length(size, "the block of a block shuffle")
        if not (array[:-1] % self.size).any():
            array = np.array([self.length])
        counts = -(-array // self.size)
        self.blocks = int(counts.sum())
        _check_product(self.blocks, self.size)
        self._stops = np.cumsum(array)
        self._first_blocks = np.cumsum(counts) - counts
        lacking = counts * self.size - array
        self.short: IntArray = (self._first_blocks + counts - 1)[lacking > 0]
        self.missing: IntArray = lacking[lacking > 0]
        self.text = "" if len(array) == 1 else _text_of(array)

    def firsts(self, blocks: IntArray) -> IntArray:
        """Return the first sample of each block; an array of the same shape."""
        if len(self._stops) == 1:
            return blocks * self.size
        shard = self._shard(blocks)
        begin = np.where(shard > 0, self._stops[shard - 1], 0)
        firsts: IntArray = begin + (blocks - self._first_blocks[shard]) * self.size
        return firsts

    def spans(self, blocks: IntArray) -> IntArray:
        """Return the first sample of each block, and the one after its last; shape `(blocks, 2)`."""
        firsts = self.firsts(blocks)
        return np.stack([firsts, np.minimum(firsts + self.size, self._stops[self._shard(blocks)])], axis=1)

    def _shard(self, blocks: IntArray) -> IntArray:
        return np.searchsorted(self._first_blocks, blocks, side="right") - 1


def parse_sizes(text: str) -> IntArray | None:
    """Return the sizes of shards from the `text` of `Shards`; None where it is a digest.

    Raises:
        ValueError: it is neither.
    """
    if not {"x", ","} & set(text):
        return None
    runs = [tuple(map(int, run.split("x"))) for run in text.split(",")]
    sizes, counts = zip(*(run if len(run) == 2 else (*run, 1) for run in runs), strict=True)  # noqa: PLR2004  # a size and its count
    if min(counts) < 1 or sum(counts) > _MOST_SHARDS or max(sizes) > _LARGEST:
        raise ValueError(f"no state lists {sum(counts)} shards of up to {max(sizes)} samples")
    return np.repeat(np.array(sizes, np.int64), counts)


def _text_of(sizes: IntArray) -> str:
    """Write sizes as runs, "1000x99,417": 99 shards of 1000 samples and one of 417; else as a digest."""
    begins = np.flatnonzero(np.diff(sizes, prepend=-1))
    if len(begins) < _LONGEST_TEXT // 2 and len(sizes) <= _MOST_SHARDS:
        counts = np.diff(begins, append=len(sizes))
        runs = zip(sizes[begins].tolist(), counts.tolist(), strict=True)
        text = ",".join(f"{size}x{count}" if count > 1 else f"{size}" for size, count in runs)
        if len(text) <= _LONGEST_TEXT:
            return text
    return digest(sizes)


def _check_sizes(sizes: ArrayLike | int) -> IntArray:
    """Return the sizes of the shards that have samples."""
    try:
        array = np.asarray(sizes)
    except ValueError:  # lists of several lengths
        array = np.array([sizes], dtype=object)
    if array.ndim == 0:
        return np.array([check_length(sizes, "the number of samples of a block shuffle")])
    if array.ndim != 1 or array.dtype.kind not in "iu" or (array.size and (array.min() < 0 or array.max() > _LARGEST)):
        numbers = array.size and array.dtype.kind in "iuf"
        values = f", minimum {array.min()} and maximum {array.max()}" if numbers else ""
        raise ConfigurationError(
            "the sizes of the shards must be integers of 0 or more in one dimension, but they have dtype "
            f"{array.dtype}, shape {array.shape}{values}.\n"
            "Which samples lie together could not be known. Give the number of samples of each shard, in their order; "
            "or one number, that of all samples."
        )
    check_length(_sum(array), "the number of samples in all shards")
    return array[array > 0].astype(np.int64)


def _sum(array: IntArray) -> int:
    """Add up integers without an overflow."""
    high, low = np.divmod(array.astype(np.int64), 1 << 32)
    return (int(high.sum()) << 32) + int(low.sum())


def _check_product(blocks: int, size: int) -> None:
    if blocks * size > _LARGEST:
        raise ConfigurationError(
            f"there are {blocks} blocks, and the largest has {size} samples: together they must not be above 2**62.\n"
            "Positions are 64-bit integers and would overflow. Cut the large shards: give a block of fewer samples."
        )


# The blocks of an epoch one after the other, in windows: arithmetic, and a table of those blocks that are shorter.


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


_NAME = "blocks-v1"
_BLOCK = 64
_LEAST_WINDOW = 512
_ADVICE = "Give Blocks(..., window={window}) or more, or leave it out; with a smaller block, that takes no more memory."
_PER_SAMPLE = 4  # blocks of a window for each sample of a global batch


class Blocks:
    """Every sample once per epoch, so that a run of positions touches few blocks of neighbouring samples.

    The shards are cut into blocks. These are shuffled, and cut into windows of `window` blocks; the samples of a window
    are shuffled among each other, and the windows come one after the other. A reader holds the blocks of one window, at
    a border those of two. With a window of all blocks it is a uniform shuffle.

    Memory and time do not depend on the number of samples or blocks; shards that are no multiple of `block` take some
    50 bytes each and a search among them.

    Args:
        sizes: samples per shard, shape `(shards,)`, in the order in which the samples are numbered; or the number of
            all samples.
        block: samples per block; the last block of a shard may be shorter. None: each shard is a block, for those that
            can be read as a whole only.
        window: blocks per window. None: 512, or four times the global batch with which a Loader over it first opens its
            stream, if that is more. It is in the state and stays, whatever the global batch becomes.
        seed: selects the order, together with the epoch.

    Raises:
        ConfigurationError: sizes that are no integers of 0 or more, a block or a window below 1, or a bad seed.

    Attributes:
        length: number of samples.
        blocks: number of blocks.
        window: blocks per window.
    """

    def __init__(
        self, sizes: ArrayLike | int, *, block: int | None = _BLOCK, window: int | None = None, seed: int = 0
    ) -> None:
        self._shards = Shards(sizes, block)
        self.length, self.blocks = self._shards.length, self._shards.blocks
        self._seed, self._open, self._adopts = check_seed(seed), window is None, window is None
        given = _LEAST_WINDOW if window is None else check_length(window, "the window of a block shuffle")
        self.window = min(given, self.blocks)
        self._advice = _ADVICE
        self._begin_caches()

    def _begin_caches(self) -> None:
        self._layout = lru_cache(maxsize=2)(self._lay_out)
        self._shuffle = lru_cache(maxsize=4)(self._shuffle_window)

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        """Compute the sample indices of the positions `start..stop-1`; shape `(stop - start,)`."""
        check_range(start, stop, self.length)
        layout, parts = self._layout(epoch), [np.empty(0, np.int64)]
        while start < stop:
            number, begin, end = layout.window(start)
            last = min(stop, end)
            parts.append(begin + self._shuffle(epoch, number, end - begin).range(start - begin, last - begin))
            start = last
        blocks, within = layout.blocks(np.concatenate(parts))
        return self._shards.firsts(blocks) + within

    def blocks_of(self, epoch: int, position: int, ahead: int = 1) -> list[Window]:
        """Return the window at a position and those after it: the blocks to fetch, and to keep; others can go.

        After the last window of an epoch come those of the next one.

        Args:
            epoch: of the position.
            position: `0..length`; at `length`, the windows begin with the next epoch.
            ahead: how many windows after the one at the position.

        Raises:
            ConfigurationError: there is no such position.
        """
        check_range(position, position, self.length)
        found: list[Window] = []
        while len(found) <= ahead:
            if position == self.length:
                epoch, position = epoch + 1, 0
            layout = self._layout(epoch)
            number, begin, position = layout.window(position)
            first = number * self.window
            blocks = layout.order.range(first, min(first + self.window, self.blocks))
            found.append(Window(epoch, begin, position, blocks))
        return found

    def spans(self, blocks: IntArray) -> IntArray:
        """Return the first sample of each block, and the one after its last; shape `(blocks, 2)`."""
        return self._shards.spans(np.asarray(blocks))

    def unevenness(self, batch: int) -> float:
        """Return how uneven a batch is where a block lies in one stratum of the data: 1 for a uniform shuffle.

        The strata's chi-square per degree of freedom, `1 + (B - 1) / g * (1 - g / m)` for `B` samples per batch, `g`
        blocks per window and `m` blocks. Where strata are finer than blocks, it is less.
        """
        return 1 + (batch - 1) / self.window * (1 - self.window / self.blocks)

    def bound_to(self, global_batch: int) -> Blocks:
        """Return the sampler with a window for a global batch, where none was given."""
        return self._with_window(max(_LEAST_WINDOW, _PER_SAMPLE * global_batch)) if self._open else self

    def bound_as(self, spec: Mapping[str, Any]) -> Blocks:
        """Return the sampler with the window of a state, where none was given."""
        window = spec.get("window")
        if spec.get("name") != _NAME or type(window) is not int or not 1 <= window <= self.blocks:
            return self
        return self._with_window(window) if self._adopts else self

    def seeded(self, seed: int) -> Blocks:
        """Return the sampler with another seed."""
        other = copy.copy(self)
        other._seed = check_seed(seed)  # noqa: SLF001  # of the same class
        return other

    def adopting(self, advice: str = _ADVICE) -> Blocks:
        """Return the sampler with a window that gives way to that of a state.

        Args:
            advice: how a wider one is had: `{window}` in it is how many blocks that has to have.
        """
        other = copy.copy(self)
        other._adopts, other._advice = True, advice  # noqa: SLF001  # of the same class
        return other

    def doubt(self, global_batch: int) -> str:
        """Return why the window is too small for a global batch, and which one would do; empty where it is not."""
        left = _PER_SAMPLE * (global_batch - 1)
        enough = -(-left * self.blocks // (self.blocks + left))  # where unevenness() is 1 + 1 / _PER_SAMPLE
        if self.window >= enough:
            return ""
        return (
            f"a window of {self.window} blocks is small for a global batch of {global_batch} samples: where neighbours "
            f"in the data are alike, the shares of what is in a batch vary {self.unevenness(global_batch):.3g} times "
            "as much as in a uniform shuffle (chi-square per degree of freedom).\n" + self._advice.format(window=enough)
        )

    def spec(self) -> dict[str, int | str]:
        """Name of the algorithm, seed, number of positions, samples per block, window, and the sizes of the shards."""
        spec: dict[str, int | str] = {"name": _NAME, "length": self.length, "seed": self._seed}
        spec |= {"block": self._shards.size, "window": self.window}
        return {**spec, "sizes": self._shards.text} if self._shards.text else spec

    def _with_window(self, window: int) -> Blocks:
        other = copy.copy(self)
        other.window = min(window, self.blocks)
        other._open, other._adopts = False, False  # noqa: SLF001  # of the same class
        return other

    def _lay_out(self, epoch: int) -> Layout:
        return Layout(self._shards, Permutation(self.blocks, self._seed, epoch), self.window)

    def _shuffle_window(self, epoch: int, number: int, length: int) -> Permutation:
        return Permutation(length, self._seed, epoch, number + 1)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in {"_layout", "_shuffle"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin_caches()

    def __repr__(self) -> str:
        shards = self._shards
        inside = f"{self.length} samples in {self.blocks} blocks of {shards.size}"
        return f"Blocks(<{inside}>, window={self.window}, seed={self._seed})"


def blocks_of_source(source: Any, length: int, seed: int) -> Blocks:
    """Return the shuffle in blocks of a source that says the `sizes` of its shards.

    Raises:
        ConfigurationError: it does not, or they are those of another number of samples.
    """
    sizes = getattr(source, "sizes", None)  # what it raises is the user's to know: it was asked for
    if sizes is None:
        raise ConfigurationError(
            f'shuffle="blocks" was given, but {qualname_of(type(source))} has no attribute sizes.\n'
            "Which samples lie together could not be known. Give it one, the number of samples of each shard; or say "
            f"it yourself: wrap(..., sampler=resumable.samplers.Blocks({length}))."
        )
    own = ask(source, "resumable_blocks")
    blocks = Blocks(sizes, seed=seed) if own is None else Blocks(sizes, seed=seed, **own).adopting(source.wider_blocks)
    if blocks.length != length:
        raise ConfigurationError(
            f"the sizes of {qualname_of(type(source))} add up to {blocks.length} samples, but it has {length}.\n"
            "Samples would be left out, or asked for that are not there. Make sizes the number of samples of each "
            "shard, in the order of the samples."
        )
    return blocks


# A shuffle that reads the pages of a file in groups, for data that does not fit into memory.


class PagedShuffle:
    """Every sample once per epoch, so that a run of positions touches few pages.

    It is `Blocks` where each page is a block, for samples that are not numbered page by page. It serves the purpose of
    FFCV's `QUASI_RANDOM`, as a function of the position.

    Args:
        pages: number of the page that each sample is on, shape `(n,)`; about 8 bytes are kept for each sample.
        window: pages per group.
        seed: selects the order, together with the epoch.

    Raises:
        ConfigurationError: pages that are no integers in one dimension, a window below 1, or a bad seed.
    """

    def __init__(self, pages: ArrayLike, *, window: int, seed: int = 0) -> None:
        array = _check_pages(pages)
        self.length = len(array)
        self._samples = np.argsort(array, kind="stable").astype(np.int64)
        self._sizes = np.unique(array, return_counts=True)[1].astype(np.int64)
        given = check_length(window, "the window of a paged shuffle")
        self._blocks = Blocks(self._sizes, block=None, window=given, seed=seed)

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        """Compute the sample indices of the positions `start..stop-1`; shape `(stop - start,)`."""
        samples: IntArray = self._samples[self._blocks.indices(epoch, start, stop)]
        return samples

    def spec(self) -> dict[str, int | str]:
        """Name of the algorithm, seed, number of positions, window, and a digest of what is on which page."""
        pages, inner = digest(np.concatenate([self._sizes, self._samples])), self._blocks.spec()
        spec: dict[str, int | str] = {"name": "paged-v1", "length": self.length, "seed": inner["seed"]}
        return {**spec, "window": inner["window"], "pages": pages}

    def __repr__(self) -> str:
        spec = self._blocks.spec()
        return f"PagedShuffle(<{len(self._sizes)} pages>, window={spec['window']}, seed={spec['seed']})"


def _check_pages(pages: ArrayLike) -> IntArray:
    array = np.asarray(pages)
    check_length(array.size, "the number of samples of a paged shuffle")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ConfigurationError(
            f"the pages of a paged shuffle must be integers in one dimension, but they have dtype {array.dtype} and "
            f"shape {array.shape}.\nWhich samples lie together could not be known. Give each sample's page number."
        )
    return array.astype(np.int64)
