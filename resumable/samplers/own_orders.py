"""How the samples of each source of a mixture are shuffled: as a whole, or in blocks."""

from __future__ import annotations

import copy
import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from resumable._randomness.keyed import derive
from resumable.errors import ConfigurationError
from resumable.samplers.permutation import Permutation
from resumable.samplers.phases import text_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from resumable._randomness.keyed import IntArray
    from resumable.samplers.blocks import Blocks

__all__ = ["OwnOrders", "Stretch"]

_MOST_PERMUTATIONS = 256


class Stretch(NamedTuple):
    """Samples of a source in blocks that follow one another in its own order.

    Args:
        first: number of the source's first sample in the mixture.
        order: of the samples of the source.
        begin: epoch of the source, and the position in it, of the first one.
        end: those after the last one.
    """

    first: int
    order: Blocks
    begin: tuple[int, int]
    end: tuple[int, int]


class OwnOrders:
    """The order of each source in the epochs of its own.

    Args:
        sizes: samples of each source, by its name.
        seed: of the mixture; each source has one of its own, made of that and its name.
        blocks: orders of those that are shuffled in blocks, by name; their own seeds do not count.

    Raises:
        ConfigurationError: an order is for no source, or for another number of samples.
    """

    def __init__(self, sizes: Mapping[str, int], seed: int, blocks: Mapping[str, Blocks]) -> None:
        self._sizes = list(sizes.values())
        self._seeds = [int(derive(seed, name, words=1, purpose=b"mixture-source")[0]) for name in sizes]
        for name, order in blocks.items():
            if sizes.get(name) != order.length:
                raise ConfigurationError(
                    f"an order of {order.length} samples in blocks was given for {name!r}, which has "
                    f"{sizes.get(name, 'no')} samples.\nOther samples would be read. Give each source Blocks(sizes)."
                )
        own = [(source, name) for source, name in enumerate(sizes) if name in blocks]
        self._blocks = {source: blocks[name].seeded(self._seeds[source]) for source, name in own}
        self._names = [name for _, name in own]
        self._begin_caches()

    def _begin_caches(self) -> None:
        self._order = lru_cache(maxsize=max(_MOST_PERMUTATIONS, 2 * len(self._sizes)))(self._shuffle)

    def _shuffle(self, source: int, epoch: int) -> Permutation:
        return Permutation(self._sizes[source], self._seeds[source], epoch)

    def samples(self, source: int, first: int, count: int) -> IntArray:
        """Return the samples of a source that are next after its first ones, over as many of its epochs as it takes."""
        size, parts = self._sizes[source], []
        while count:
            epoch, place = divmod(first, size)
            taken = min(count, size - place)
            parts.append(self._range(source, epoch, place, place + taken))
            first, count = first + taken, count - taken
        return np.concatenate(parts)

    def _range(self, source: int, epoch: int, start: int, stop: int) -> IntArray:
        blocks = self._blocks.get(source)
        return self._order(source, epoch).range(start, stop) if blocks is None else blocks.indices(epoch, start, stop)

    def stretches(self, before: Sequence[int], after: Sequence[int]) -> list[Stretch]:
        """Return what is read of each source in blocks.

        Args:
            before: how many samples of each source were read before.
            after: how many were after that.
        """
        firsts = [0, *np.cumsum(self._sizes).tolist()]
        found = []
        for source, order in self._blocks.items():
            size = self._sizes[source]
            if before[source] < after[source]:
                epoch, place = divmod(after[source] - 1, size)
                begin = divmod(before[source], size)
                found.append(Stretch(firsts[source], order, begin, (epoch, place + 1)))
        return found

    # ------------------------------------------------------------------ what is open, and what a state says

    def bound_to(self, global_batch: int) -> OwnOrders:
        """Return the orders with windows for a global batch, where none were given."""
        return self._with({source: order.bound_to(global_batch) for source, order in self._blocks.items()})

    def bound_as(self, spec: Mapping[str, Any]) -> OwnOrders:
        """Return the orders with the windows of a state, where none were given."""
        said = spec.get("blocks")
        try:
            windows = [int(window) for _, window in json.loads(str(said))]
        except (TypeError, ValueError):  # too many of them, so a digest; mostly they are those of the first batch
            first = spec.get("window")
            bound = self.bound_to(first) if type(first) is int else self
            return bound if bound.spec().get("blocks") == said else self
        if len(windows) != len(self._blocks):
            return self
        own = zip(self._blocks.items(), windows, strict=True)
        return self._with(
            {source: order.bound_as({**order.spec(), "window": window}) for (source, order), window in own}
        )

    def doubt(self, shares: Sequence[float], global_batch: int) -> str:
        """Return why windows are too small for what sources have of a global batch; empty where none is."""
        doubts = []
        for name, (source, order) in zip(self._names, self._blocks.items(), strict=True):
            doubt = order.doubt(max(round(shares[source] * global_batch), 1))
            doubts += [f"of the source {name!r} of the mixture, {doubt}"] if doubt else []
        return "\n".join(doubts)

    def spec(self) -> dict[str, int | str]:
        """Samples per block and window of each source in blocks, and how the sources are cut; nothing without one."""
        if not self._blocks:
            return {}
        specs = [order.spec() for order in self._blocks.values()]
        shards = {name: spec.get("sizes", "") for name, spec in zip(self._names, specs, strict=True)}
        return {"blocks": text_of([[spec["block"], spec["window"]] for spec in specs]), "shards": text_of(shards)}

    def _with(self, blocks: dict[int, Blocks]) -> OwnOrders:
        other = copy.copy(self)
        other._blocks = blocks  # noqa: SLF001  # of the same class
        return other

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_order"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin_caches()
