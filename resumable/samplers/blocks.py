"""A two-level shuffle for data that is read in blocks: the blocks in random order, and their samples within windows."""

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


_NAME = "blocks-v1"
_BLOCK = 64
_LEAST_WINDOW = 512
_ADVICE = (
    "Use Blocks(..., window={window}) or more, or remove window. With a smaller block, that needs no extra memory."
)
_PER_SAMPLE = 4  # blocks per window for each sample of a global batch
_LARGEST = 1 << 62
_LONGEST_TEXT = 80  # characters in a state; longer sizes are stored as a digest
_MOST_SHARDS = 10**6  # in the text of a state


class Blocks:
    """Every sample once per epoch, in an order that visits few blocks of neighbouring samples at a time.

    The shards are split into blocks. The blocks are shuffled, and grouped into windows of `window` blocks. Within a
    window, the samples are shuffled; the windows follow one another. A reader holds the blocks of one window, or of two
    at a boundary. If one window has all blocks, this is a uniform shuffle.

    Memory and time do not depend on the number of samples or blocks. Shards that are not a multiple of `block` take
    about 50 bytes each, and a binary search.

    Args:
        sizes: samples per shard, shape `(shards,)`, in the order in which the samples are numbered; or the total number
            of samples.
        block: samples per block; the last block of a shard may be shorter. None makes each shard a block, for shards
            that can only be read as a whole.
        window: blocks per window. By default 512, or four times the global batch with which a Loader first opens its
            stream, if that is more. It is saved in the state, and does not change with the global batch.
        seed: determines the order, together with the epoch.

    Raises:
        ConfigurationError: the sizes are not integers of 0 or more, a block or window is below 1, or the seed is
            invalid.

    Attributes:
        length: number of samples.
        blocks: number of blocks.
        window: blocks per window.
    """

    def __init__(
        self, sizes: ArrayLike | int, *, block: int | None = _BLOCK, window: int | None = None, seed: int = 0
    ) -> None:
        self._shards = Shards(sizes, block)
        self.length = self.data_length = self._shards.length
        self.blocks = self._shards.blocks
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
        """Return the window at a position and the windows after it: the blocks to fetch and to keep, and no others.

        The windows of the next epoch follow the last window of an epoch.

        Args:
            epoch: of the position.
            position: `0..length`; at `length`, the windows start with the next epoch.
            ahead: number of windows after the one at the position.

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
        """Return how uneven a batch is if each block lies in one stratum of the data: 1 for a uniform shuffle.

        This is the chi-square of the strata per degree of freedom, `1 + (B - 1) / g * (1 - g / m)` for `B` samples per
        batch, `g` blocks per window and `m` blocks. It is lower if the strata are finer than blocks.
        """
        return 1 + (batch - 1) / self.window * (1 - self.window / self.blocks)

    def bound_to(self, global_batch: int) -> Blocks:
        """Return the sampler with a window for a global batch, if none was set."""
        return self._with_window(max(_LEAST_WINDOW, _PER_SAMPLE * global_batch)) if self._open else self

    def bound_as(self, spec: Mapping[str, Any]) -> Blocks:
        """Return the sampler with the window of a state, if none was set."""
        window = spec.get("window")
        if spec.get("name") != _NAME or type(window) is not int or not 1 <= window <= self.blocks:
            return self
        return self._with_window(window) if self._adopts else self

    def seeded(self, seed: int) -> Blocks:
        """Return the sampler with a different seed."""
        other = copy.copy(self)
        other._seed = check_seed(seed)  # noqa: SLF001  # of the same class
        return other

    def adopting(self, advice: str = _ADVICE) -> Blocks:
        """Return the sampler with a window that the window of a state replaces.

        Args:
            advice: how to get a wider window; `{window}` in it becomes the number of blocks that it needs.
        """
        other = copy.copy(self)
        other._adopts, other._advice = True, advice  # noqa: SLF001  # of the same class
        return other

    def doubt(self, global_batch: int) -> str:
        """Return why the window is too small for a global batch, and which size is enough; empty if it is not."""
        left = _PER_SAMPLE * (global_batch - 1)
        enough = -(-left * self.blocks // (self.blocks + left))  # for an unevenness() of 1 + 1 / _PER_SAMPLE
        if self.window >= enough:
            return ""
        return (
            f"a window of {self.window} blocks is small for a global batch of {global_batch} samples. If neighbouring "
            f"samples are similar, the composition of a batch varies {self.unevenness(global_batch):.3g} times as much "
            "as in a uniform shuffle (chi-square per degree of freedom).\n" + self._advice.format(window=enough)
        )

    def spec(self) -> dict[str, int | str]:
        """Return the name of the algorithm, seed, length, samples per block, window, and the sizes of the shards."""
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


class Window(NamedTuple):
    """Blocks with samples that are shuffled together.

    Attributes:
        epoch: of the blocks.
        start: first position of the window.
        stop: position after its last.
        blocks: their numbers, shape `(blocks,)`.
    """

    epoch: int
    start: int
    stop: int
    blocks: IntArray


def blocks_of_source(source: Any, length: int, seed: int) -> Blocks:
    """Return the block shuffle of a source that has the `sizes` of its shards.

    Raises:
        ConfigurationError: it has no sizes, or they do not add up to its number of samples.
    """
    sizes = getattr(source, "sizes", None)  # an error in it is raised, as the user asked for the sizes
    if sizes is None:
        raise ConfigurationError(
            f'shuffle="blocks" was passed, but {qualname_of(type(source))} has no attribute sizes.\n'
            "It is unknown which samples are stored together. Add sizes, the number of samples of each shard; or pass "
            f"them directly: wrap(..., sampler=resumable.samplers.Blocks({length}))."
        )
    own = ask(source, "resumable_blocks")
    blocks = Blocks(sizes, seed=seed) if own is None else Blocks(sizes, seed=seed, **own).adopting(source.wider_blocks)
    if blocks.length != length:
        raise ConfigurationError(
            f"the sizes of {qualname_of(type(source))} add up to {blocks.length} samples, but it has {length}.\n"
            "Samples would be skipped, or requested although they do not exist. Set sizes to the number of samples of "
            "each shard, in the order of the samples."
        )
    return blocks


class PagedShuffle:
    """Every sample once per epoch, in an order that visits few pages of a file at a time.

    It works like `Blocks` with each page as a block, but for samples that are not numbered page by page. It has the
    same purpose as FFCV's `QUASI_RANDOM`, but is a function of the position.

    Args:
        pages: page number of each sample, shape `(n,)`; about 8 bytes are kept for each sample.
        window: number of pages that are shuffled together.
        seed: determines the order, together with the epoch.

    Raises:
        ConfigurationError: the pages are not integers in one dimension, the window is below 1, or the seed is invalid.
    """

    def __init__(self, pages: ArrayLike, *, window: int, seed: int = 0) -> None:
        array = _check_pages(pages)
        self.length = self.data_length = len(array)
        self._samples = np.argsort(array, kind="stable").astype(np.int64)
        self._sizes = np.unique(array, return_counts=True)[1].astype(np.int64)
        given = check_length(window, "the window of a paged shuffle")
        self._blocks = Blocks(self._sizes, block=None, window=given, seed=seed)

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        """Compute the sample indices of the positions `start..stop-1`; shape `(stop - start,)`."""
        samples: IntArray = self._samples[self._blocks.indices(epoch, start, stop)]
        return samples

    def spec(self) -> dict[str, int | str]:
        """Return the name of the algorithm, seed, length, window, and a digest of the samples on each page."""
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
            f"shape {array.shape}.\nIt would be unknown which samples are stored together. Pass the page number of "
            "each sample."
        )
    return array.astype(np.int64)


class Layout:
    """The blocks of an epoch in order, in windows, computed with a table of only the shorter blocks.

    A *slot* is the position of a block in that order; a *place* is the position of a sample if no window were shuffled.

    Args:
        shards: split into blocks.
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
        """Return the block at each place, and which of its samples is there."""
        slots, within = self._slots.find(places)
        return self.order.at(slots), within

    def window(self, position: int) -> tuple[int, int, int]:
        """Return the number of the window at a position, its first position, and the one after its last."""
        number = int(self._windows.find(np.array([position]))[0][0])
        return number, self._windows.begin(number), min(self._windows.begin(number + 1), self._length)


class _Cuts:
    """Places that are divided into units of one size, some of them shorter.

    Args:
        short: numbers of the shorter units, ascending; a number may appear several times.
        missing: how many places each of them lacks.
        size: places in a full unit.
    """

    def __init__(self, short: IntArray, missing: IntArray, size: int) -> None:
        first = np.flatnonzero(np.diff(short, prepend=-1))
        self._short, self._size = short[first], size
        sums = np.concatenate([[0], np.cumsum(missing)])
        self._missing = np.append(sums[first], sums[-1])  # before each short unit, and after the last
        self._stops = (self._short + 1) * size - self._missing[1:]

    def find(self, places: IntArray) -> tuple[IntArray, IntArray]:
        """Return the unit of each place, and the place within it."""
        missing = self._missing[np.searchsorted(self._stops, places, side="right")]
        return np.divmod(places + missing, self._size)

    def begin(self, unit: int) -> int:
        """Return the first place of a unit."""
        return unit * self._size - int(self._missing[np.searchsorted(self._short, unit)])


class Shards:
    """Samples in shards, each split into blocks of `size` samples; the last block of a shard may be shorter.

    Samples and blocks are numbered across all shards. If every shard except the last is a multiple of `size`, the
    blocks are the same as for a single shard, and no table is kept. Otherwise, it takes about 50 bytes per shard.

    Args:
        sizes: samples per shard, shape `(shards,)`; or the total number of samples.
        size: samples per block; None makes every shard a block, whatever its size.

    Attributes:
        length: number of samples.
        blocks: number of blocks.
        size: samples in a full block.
        short: numbers of the shorter blocks, ascending.
        missing: how many samples each of them lacks.
        text: the sizes as stored in a state, as short text or a digest; empty for a single shard.

    Raises:
        ConfigurationError: the sizes are not integers of 0 or more, or the block size is invalid.
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
    """Return the sizes of shards from the `text` of `Shards`; None if it is a digest.

    Raises:
        ValueError: it is neither.
    """
    if not {"x", ","} & set(text):
        return None
    runs = [tuple(map(int, run.split("x"))) for run in text.split(",")]
    sizes, counts = zip(*(run if len(run) == 2 else (*run, 1) for run in runs), strict=True)  # noqa: PLR2004  # a size and its count
    if min(counts) < 1 or sum(counts) > _MOST_SHARDS or max(sizes) > _LARGEST:
        raise ValueError(f"a state cannot list {sum(counts)} shards of up to {max(sizes)} samples")
    return np.repeat(np.array(sizes, np.int64), counts)


def _text_of(sizes: IntArray) -> str:
    """Return sizes as runs, "1000x99,417" for 99 shards of 1000 samples and one of 417; otherwise as a digest."""
    begins = np.flatnonzero(np.diff(sizes, prepend=-1))
    if len(begins) < _LONGEST_TEXT // 2 and len(sizes) <= _MOST_SHARDS:
        counts = np.diff(begins, append=len(sizes))
        runs = zip(sizes[begins].tolist(), counts.tolist(), strict=True)
        text = ",".join(f"{size}x{count}" if count > 1 else f"{size}" for size, count in runs)
        if len(text) <= _LONGEST_TEXT:
            return text
    return digest(sizes)


def _check_sizes(sizes: ArrayLike | int) -> IntArray:
    """Return the sizes of the shards that are not empty."""
    try:
        array = np.asarray(sizes)
    except ValueError:  # lists of different lengths
        array = np.array([sizes], dtype=object)
    if array.ndim == 0:
        return np.array([check_length(sizes, "the number of samples of a block shuffle")])
    outside = array.dtype.kind in "iu" and array.size and (array.min() < 0 or int(array.max()) > _LARGEST)
    if array.ndim != 1 or array.dtype.kind not in "iu" or outside:  # NumPy 1 compares uint64 with int64 as floats
        numbers = array.size and array.dtype.kind in "iuf"
        values = f", minimum {array.min()} and maximum {array.max()}" if numbers else ""
        raise ConfigurationError(
            "the sizes of the shards must be integers of 0 or more in one dimension, but they have dtype "
            f"{array.dtype}, shape {array.shape}{values}.\n"
            "It would be unknown which samples are stored together. Pass the number of samples of each shard, in "
            "order, or the total number of samples."
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
            f"there are {blocks} blocks, and the largest has {size} samples, but their product must not exceed 2**62.\n"
            "Positions are 64-bit integers and would overflow. Split the large shards: use a smaller block."
        )
