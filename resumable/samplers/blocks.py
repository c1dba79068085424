"""A shuffle in two levels, for data that is read in blocks: those in random order, and their samples within windows."""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable._introspection import ask, qualname_of
from resumable._randomness.keyed import IntArray, check_seed
from resumable.errors import ConfigurationError
from resumable.samplers.base import check_length, check_range
from resumable.samplers.permutation import Permutation
from resumable.samplers.shards import Shards
from resumable.samplers.windows import Layout, Window

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike

__all__ = ["Blocks", "blocks_of_source"]

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
