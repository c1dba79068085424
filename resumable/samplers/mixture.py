"""A mixture of sources: exact proportions in every window, and every sample once per epoch of its source."""

from __future__ import annotations

import copy
import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from resumable._randomness.keyed import IntArray, check_seed, derive
from resumable.errors import ConfigurationError
from resumable.samplers.base import Continuation, check_length, check_range
from resumable.samplers.blocks import Blocks, parse_sizes
from resumable.samplers.permutation import Permutation
from resumable.samplers.timeline import Timeline, digest_of_text, mixed, text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from resumable.samplers.timeline import Weights


__all__ = ["Mixture", "mixture_of"]


_NAME = "mixture-v1"
_WINDOW = 256
_LARGEST_WINDOW = 1 << 20
_MOST_PERMUTATIONS = 256
_LONGEST_TEXT = 2048  # characters of sources and weights in a state, from which an error lists the changes
_ENDLESS_TEXT = 1 << 62
_APPENDED = 17  # phases; more than a run adds in one change


class Mixture:
    """Samples of several sources in proportion to weights, each source in its own order, which differs by epoch.

    The samples of all sources are numbered, one source after another. In each window, a source gets its share to within
    a sample or two, however many windows there are, at random positions. Each sample of a source appears once before
    any of them repeats, whatever the epochs of the mixture.

    Everything is a function of `epoch * length + position`, with a search for the phase. If all sources leave, or one
    stops the mixture, an epoch is the complete mixture. The next epoch repeats it, with the same sources at the same
    positions, but with the next samples of each source.

    Args:
        sizes: from the name of a source to its number of samples.
        weights: weights of the sources, by name; or phases `[(first sample, weights), ...]`, in which a source without
            a weight pauses. By default, the sizes.
        epochs: after how many of its epochs a source is used up; one number for all sources, or a dict from names. A
            source without a number repeats indefinitely.
        at_end: what happens then: with "leave", the others share its part in proportion to their weights; with "stop",
            the mixture stops.
        num_samples: positions per epoch of an endless mixture; by default, the number of samples of all sources,
            rounded down to full windows.
        window: samples per window. By default, the global batch with which a Loader first opens its stream. It is saved
            in the state, and does not change with the global batch.
        seed: determines the order.
        blocks: orders for sources that are read in blocks, by name; other sources are shuffled as a whole. The seed of
            the mixture applies to them as well. The first global batch determines a window that is not set.

    Raises:
        ConfigurationError: sources, weights, phases or epochs do not define a mixture, or the window or seed is
            invalid.

    Attributes:
        length: positions per epoch.
        window: samples per window.
        names: of the sources.
    """

    def __init__(  # noqa: PLR0913  # each parameter has a default
        self,
        sizes: Mapping[str, int],
        *,
        weights: Weights | None = None,
        epochs: int | Mapping[str, int] | None = None,
        at_end: str = "leave",
        num_samples: int | None = None,
        window: int | None = None,
        seed: int = 0,
        blocks: Mapping[str, Blocks] | None = None,
    ) -> None:
        self._mixed = mixed(sizes, weights, epochs, at_end)
        self.names = tuple(self._mixed.names)
        self._firsts = np.concatenate([[0], np.cumsum(self._mixed.sizes)])
        self.data_length = sum(self._mixed.sizes)
        self._seed, self._open = check_seed(seed), window is None
        self._given = None if num_samples is None else check_length(num_samples, "num_samples")
        self._own = OwnOrders(dict(zip(self.names, self._mixed.sizes, strict=True)), self._seed, blocks or {})
        self._laps: tuple[list[str], str] | None = None
        self._set_window(_WINDOW if window is None else _check_window(window))

    def _set_window(self, window: int) -> None:
        self.window = window
        self._timeline = Timeline(self._mixed, window, self._seed)
        end = self._timeline.end
        if end is not None and self._given is not None:
            raise ConfigurationError(
                f"num_samples={self._given} was passed, but the mixture ends after {end} samples because of epochs.\n"
                "Only one of them can determine the length. Remove num_samples, or leave a source out of epochs to "
                "repeat it indefinitely."
            )
        samples = sum(self._mixed.sizes)
        self.length = end or self._given or max(samples - samples % window, window)
        self._per_epoch = None if end is None else self._timeline.before(end)

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        """Compute the sample indices of the positions `start..stop-1`; shape `(stop - start,)`."""
        sources, before = self._dealt(epoch, start, stop)
        found = np.empty(len(sources), np.int64)
        places = np.argsort(sources, kind="stable")
        borders = np.searchsorted(sources[places], np.arange(len(self.names) + 1))
        for source in np.flatnonzero(np.diff(borders)).tolist():
            own = places[borders[source] : borders[source + 1]]
            found[own] = self._firsts[source] + self._own.samples(source, int(before[source]), len(own))
        return found

    def sources(self, epoch: int, start: int, stop: int) -> IntArray:
        """Compute the sources of the positions `start..stop-1`, as indices of `names`; shape `(stop - start,)`."""
        return self._dealt(epoch, start, stop)[0]

    def consumed(self, epoch: int, position: int) -> dict[str, int]:
        """Return how many samples of each source precede a position, over all epochs."""
        counts = self._dealt(epoch, position, position)[1].tolist()
        return dict(zip(self.names, counts, strict=True))

    def _dealt(self, epoch: int, start: int, stop: int) -> tuple[IntArray, IntArray]:
        check_range(start, stop, self.length)
        if self._per_epoch is None:
            past = epoch * self.length
            return self._timeline.sources(past + start, past + stop)
        sources, before = self._timeline.sources(start, stop)
        return sources, before + epoch * self._per_epoch

    def stretches(self, begin: tuple[int, int], end: tuple[int, int]) -> list[Stretch]:
        """Return what is read from each source in blocks between two places, `(epoch, position)`."""
        if not self._own:
            return []
        before, after = (self._dealt(epoch, place, place)[1].tolist() for epoch, place in (begin, end))
        return self._own.stretches(before, after)

    def with_laps(self, names: Sequence[str], what: str) -> Mixture:
        """Return the sampler with the index `e * samples + i` for sample `i` of a source's own epoch `e`.

        Args:
            names: of the sources whose samples differ in each of their epochs.
            what: the algorithms that make them, with their parameters.
        """
        other = copy.copy(self)
        other._laps = list(names), what  # noqa: SLF001  # of the same class
        other._own = self._own.with_stride({self.names.index(name) for name in names}, self.data_length)  # noqa: SLF001  # the same
        return other

    def continuation(self, spec: Mapping[str, Any], epoch: int, position: int) -> Continuation | None:
        """Return what differs from the mixture of a state; None if samples before the position would differ."""
        former, own = self._former(spec), self.spec()
        if former is None or any(spec.get(name) != own.get(name) for name in ("window", "stop", "leave")):
            return None
        another_length = former.length != self.length
        if another_length and not (former._given is None is self._given):  # noqa: SLF001  # of the same class
            return None
        if (another_length or self._per_epoch is not None) and (epoch or position > min(former.length, self.length)):
            return None  # epochs before this one would not be the same
        place = max(epoch * self.length + position, 1)
        read = former._timeline.stretches(place)  # noqa: SLF001  # the same
        kept = {name: former._kind(name) == self._kind(name) for name in former.names}  # noqa: SLF001  # the same
        if read != self._timeline.stretches(place) or not all(kept[name] for some in read.values() for name, _ in some):
            return None
        firsts = [int(self._firsts[self.names.index(name)]) if kept[name] else None for name in former.names]
        return Continuation(self._told(former), former._mixed.sizes, firsts)  # noqa: SLF001  # the same

    def _kind(self, name: str) -> tuple[Any, ...] | None:
        """Return what determines the order of a source; None if the mixture does not have it."""
        if name not in self.names:
            return None
        laps, own = self._laps, self._own.blocks.get(name)
        return (
            self._mixed.sizes[self.names.index(name)],
            None if own is None else tuple(own.spec().items()),
            None if laps is None or name not in laps[0] else laps,
        )

    def _former(self, spec: Mapping[str, Any]) -> Mixture | None:
        """Return the mixture of a state, with the orders of this one for its sources in blocks; None if unknown."""
        try:
            sizes, weights = json.loads(spec["sources"]), spec["weights"]
            if not weights.startswith("["):  # a digest: it is known if only phases were appended
                rows = [[start, *shares] for start, shares in self._mixed.phases]
                texts = [text_of(rows[:-appended], _ENDLESS_TEXT) for appended in range(1, min(len(rows), _APPENDED))]
                weights = next(text for text in texts if digest_of_text(text) == weights)
            phases = [(start, dict(zip(sizes, shares, strict=True))) for start, *shares in json.loads(weights)]
            end = "stop" if "stop" in spec else "leave"
            own = {name: order for name, order in self._own.blocks.items() if sizes.get(name) == order.length}
            given: dict[str, Any] = {"epochs": json.loads(spec.get(end, "null")), "at_end": end, "blocks": own}
            given |= {"weights": phases, "window": spec["window"], "seed": self._seed}
            found = Mixture(sizes, **given)
            if found.length != spec["length"]:
                found = Mixture(sizes, num_samples=spec["length"], **given)
            found = found.with_laps(json.loads(spec["laps"]), spec["packings"]) if "laps" in spec else found
        except (ConfigurationError, AttributeError, KeyError, StopIteration, TypeError, ValueError):
            return None
        return found if found.spec() == spec else None

    def _told(self, former: Mixture) -> str:
        """Say what differs from another mixture."""
        told = [f"the source {name!r} is new" for name in self.names if name not in former.names]
        for name in former.names:
            before, now = former._kind(name), self._kind(name)  # of the same class
            if before != now:
                told.append(f"the source {name!r} " + ("is missing" if now is None else "has different samples"))
        phases, own = (dict(one._mixed.phases) for one in (former, self))  # noqa: SLF001  # the same
        for start in sorted({*phases, *own}):
            then, shares = (
                {name: share for name, share in zip(one.names, some.get(start, ()), strict=False) if share}
                for one, some in ((former, phases), (self, own))
            )
            if then != shares:
                words = ", ".join(f"{name} {share:g}" for name, share in shares.items())
                told.append(f"from sample {start} on: {words or 'no change of the weights'}")
        if former.length != self.length:
            told.append(f"an epoch has {self.length} samples, not {former.length}")
        return "; ".join(told)

    def bound_to(self, global_batch: int) -> Mixture:
        """Return the sampler with the windows that were not set, its own and those in blocks, for a global batch."""
        return self._with(min(global_batch, _LARGEST_WINDOW), self._own.bound_to(global_batch))

    def bound_as(self, spec: Mapping[str, Any]) -> Mixture:
        """Return the sampler with the window of a state, if none was set."""
        window = spec.get("window")
        if spec.get("name") != _NAME or type(window) is not int or not 1 <= window <= _LARGEST_WINDOW:
            return self
        return self._with(window, self._own.bound_as(spec))

    def doubt(self, global_batch: int) -> str:
        """Return why batches and windows drift apart, or which blocks mix too little; empty if all is well."""
        shares = [max(some) for some in zip(*(shares for _, shares in self._mixed.phases), strict=True)]
        return "\n".join(filter(None, [self._drift(), self._own.doubt(shares, global_batch)]))

    def _drift(self) -> str:
        if self._per_epoch is not None or not self.length % self.window:
            return ""
        return (
            f"num_samples={self.length} is not a multiple of the mixture's window of {self.window} samples. From the "
            "second epoch on, a batch therefore contains parts of two windows, and its proportions are less exact.\n"
            f"Pass num_samples={-(-self.length // self.window) * self.window}, or remove it."
        )

    def spec(self) -> dict[str, int | str]:
        """Return the name of the algorithm, seed, length, window, sources, weights, and what happens at their end."""
        mixed = self._mixed
        spec: dict[str, int | str] = {"name": _NAME, "length": self.length, "seed": self._seed, "window": self.window}
        spec["sources"] = text_of(dict(zip(self.names, mixed.sizes, strict=True)), _LONGEST_TEXT)
        spec["weights"] = text_of([[start, *shares] for start, shares in mixed.phases], _LONGEST_TEXT)
        if mixed.limits:
            own = {self.names[source]: limit // mixed.sizes[source] for source, limit in mixed.limits.items()}
            spec["stop" if mixed.stops else "leave"] = text_of(dict(sorted(own.items())))
        if self._laps is not None:
            spec |= {"laps": text_of(self._laps[0]), "packings": self._laps[1]}
        return {**spec, **self._own.spec()}

    def _with(self, window: int, own: OwnOrders) -> Mixture:
        if not self._open and not own:
            return self
        other = copy.copy(self)
        other._own = own  # noqa: SLF001  # of the same class
        if self._open:
            other._open = False  # noqa: SLF001  # the same
            other._set_window(window)  # noqa: SLF001  # the same
        return other

    def __repr__(self) -> str:
        inside = ", ".join(self.names[:3]) + (", ..." if len(self.names) > 3 else "")  # noqa: PLR2004  # enough to know it
        return f"Mixture(<{len(self.names)} sources: {inside}>, window={self.window}, seed={self._seed})"


def mixture_of(spec: Mapping[str, Any]) -> Mixture | None:
    """Rebuild a mixture from a state's spec; None if that has a digest instead of the sources or weights."""
    end = "stop" if "stop" in spec else "leave"
    texts = [
        spec["sources"],
        spec["weights"],
        spec.get(end, "null"),
        spec.get("blocks", "[]"),
        spec.get("shards", "{}"),
        spec.get("laps", "[]"),
    ]
    if not all(text == "null" or text.startswith(("{", "[")) for text in texts):
        return None
    sizes, phases, epochs, blocks, shards, laps = map(json.loads, texts)
    cut: dict[str, Any] = {name: parse_sizes(text) if text else sizes[name] for name, text in shards.items()}
    if any(some is None for some in cut.values()):
        return None
    weights = [(start, dict(zip(sizes, shares, strict=True))) for start, *shares in phases]
    given: dict[str, Any] = {"epochs": epochs, "at_end": end, "window": spec["window"], "seed": spec["seed"]}
    own = zip(cut.items(), blocks, strict=True)
    given["blocks"] = {name: Blocks(some, block=block, window=window) for (name, some), (block, window) in own}
    found = Mixture(sizes, weights=weights, **given)
    if found.length != spec["length"]:
        found = Mixture(sizes, weights=weights, num_samples=spec["length"], **given)
    return found.with_laps(laps, spec["packings"]) if laps else found


def _check_window(window: object) -> int:
    value = check_length(window, "the window of a mixture")
    if value > _LARGEST_WINDOW:
        raise ConfigurationError(
            f"the window of a mixture must be at most 2**20 = {_LARGEST_WINDOW} samples, but it is {value}.\n"
            "Each batch distributes a full window. Remove window to use the global batch."
        )
    return value


class OwnOrders:
    """The order of each source in its own epochs.

    Args:
        sizes: from the name of a source to its number of samples.
        seed: of the mixture; each source has its own seed, derived from this one and its name.
        blocks: orders of the sources that are shuffled in blocks, by name; their own seeds are ignored.

    Raises:
        ConfigurationError: an order belongs to no source, or has a different number of samples.
    """

    def __init__(self, sizes: Mapping[str, int], seed: int, blocks: Mapping[str, Blocks]) -> None:
        self._sizes = list(sizes.values())
        self._seeds = [int(derive(seed, name, words=1, purpose=b"mixture-source")[0]) for name in sizes]
        for name, order in blocks.items():
            if sizes.get(name) != order.length:
                raise ConfigurationError(
                    f"an order of {order.length} samples in blocks was passed for {name!r}, which has "
                    f"{sizes.get(name, 'no')} samples.\nThe wrong samples would be read. Pass Blocks(sizes) for each "
                    "source, with its own sizes."
                )
        own = [(source, name) for source, name in enumerate(sizes) if name in blocks]
        self._blocks = {source: blocks[name].seeded(self._seeds[source]) for source, name in own}
        self._names = [name for _, name in own]
        self._stride: dict[int, int] = {}
        self._begin_caches()

    def _begin_caches(self) -> None:
        self._order = lru_cache(maxsize=max(_MOST_PERMUTATIONS, 2 * len(self._sizes)))(self._shuffle)

    def _shuffle(self, source: int, epoch: int) -> Permutation:
        return Permutation(self._sizes[source], self._seeds[source], epoch)

    @property
    def blocks(self) -> dict[str, Blocks]:
        """The orders in blocks, each under the name of its source."""
        return dict(zip(self._names, self._blocks.values(), strict=True))

    def samples(self, source: int, first: int, count: int) -> IntArray:
        """Return the next samples of a source after its first ones, across as many of its epochs as needed."""
        size, parts = self._sizes[source], []
        while count:
            epoch, place = divmod(first, size)
            taken = min(count, size - place)
            parts.append(self._range(source, epoch, place, place + taken) + epoch * self._stride.get(source, 0))
            first, count = first + taken, count - taken
        return np.concatenate(parts)

    def with_stride(self, sources: Iterable[int], stride: int) -> OwnOrders:
        """Return the orders with `stride` added to the samples of some sources in each of their epochs."""
        other = copy.copy(self)
        other._stride = dict.fromkeys(sources, stride)  # noqa: SLF001  # of the same class
        return other

    def _range(self, source: int, epoch: int, start: int, stop: int) -> IntArray:
        blocks = self._blocks.get(source)
        return self._order(source, epoch).range(start, stop) if blocks is None else blocks.indices(epoch, start, stop)

    def stretches(self, before: Sequence[int], after: Sequence[int]) -> list[Stretch]:
        """Return the stretches that are read from each source in blocks.

        Args:
            before: how many samples of each source were read before it.
            after: how many at the end.
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

    # ------------------------------------------------------------------ windows that are not set, and states

    def bound_to(self, global_batch: int) -> OwnOrders:
        """Return the orders with windows that fit a global batch, if none were set."""
        return self._with({source: order.bound_to(global_batch) for source, order in self._blocks.items()})

    def bound_as(self, spec: Mapping[str, Any]) -> OwnOrders:
        """Return the orders with the windows of a state, if none were set."""
        said = spec.get("blocks")
        try:
            windows = [int(window) for _, window in json.loads(str(said))]
        except (TypeError, ValueError):  # too many windows, so a digest; usually the first batch determined them
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
        """Return why windows are too small for the shares of sources in a global batch; empty if they are not."""
        doubts = []
        for name, (source, order) in zip(self._names, self._blocks.items(), strict=True):
            doubt = order.doubt(max(round(shares[source] * global_batch), 1))
            doubts += [f"in the source {name!r} of the mixture, {doubt}"] if doubt else []
        return "\n".join(doubts)

    def spec(self) -> dict[str, int | str]:
        """Return samples per block and window of each source in blocks, and the sizes of its shards; empty if none."""
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


class Stretch(NamedTuple):
    """Samples of a source in consecutive blocks of the source's order.

    Args:
        first: number of the source's first sample in the mixture.
        order: order of the source's samples.
        begin: epoch of the source, and position in it, of the first sample.
        end: epoch, and position after the last sample.
    """

    first: int
    order: Blocks
    begin: tuple[int, int]
    end: tuple[int, int]
