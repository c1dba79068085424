"""mix(): combines several sources in fixed proportions."""

from __future__ import annotations

import bisect
import operator
from collections.abc import Mapping
from functools import cache, partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

from resumable._fetch.own_state import state_methods
from resumable._fetch.reader import prefetch
from resumable._introspection import ask, has, is_a, mro_of, qualname_of
from resumable._order.plan import Padding
from resumable._randomness.passed import passing_on_all
from resumable._warn import warn
from resumable.errors import ConfigurationError, PromiseWarning, UnsupportedError
from resumable.loader.registry import refuse_hidden_epochs, refuse_hidden_order
from resumable.protocols import Upcoming
from resumable.samplers import Mixture, Sequential
from resumable.samplers.base import length_of
from resumable.samplers.blocks import blocks_of_source
from resumable.samplers.timeline import text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from resumable._randomness.passed import SampleRNG
    from resumable.samplers import Sampler
    from resumable.samplers.timeline import Weights

__all__ = ["Mix", "mix"]


def mix(  # noqa: PLR0913  # keyword-only options with defaults
    sources: Mapping[str, Any],
    *,
    weights: Weights | None = None,
    epochs: int | Mapping[str, int] | None = None,
    at_end: Literal["leave", "stop"] = "leave",
    num_samples: int | None = None,
    window: int | None = None,
    named: bool = False,
    shuffle: Literal[True, "blocks"] = True,
) -> Mix:
    """Mix sources that are read by index, in exact proportions; for `wrap`, or as the dataset of a `DataLoader`.

    Each global batch has the sources in proportion to their weights, to within a sample or two, in random order. Each
    source is shuffled separately. None of its samples is repeated before all of them were used.

    Args:
        sources: a dict from names to objects with `source[index]` and `len(source)`. Keep the names from run to run.
        weights: weights of the sources by name; or phases `[(first sample, weights), ...]`, in which a source without a
            weight joins in a later phase. None means the numbers of their samples.
        epochs: number of passes over a source until it is exhausted: one number for all sources, or a mapping from
            names. A source without a number is repeated indefinitely.
        at_end: the effect of an exhausted source: "leave" distributes its part over the others, in proportion to their
            weights; "stop" ends the mixture.
        num_samples: samples per epoch of a mixture without an end. The default is the sum over all sources, in complete
            windows.
        window: samples per window, in which the proportions are exact. None means the first global batch.
        named: return each sample as `(name of its source, sample)`.
        shuffle: True shuffles each source as a whole. "blocks" shuffles sources with `sizes` in blocks, as
            `wrap(..., shuffle="blocks")` does, and the others as a whole.

    Raises:
        ConfigurationError: the sources, weights, phases or epochs are invalid, or no source has `sizes` for "blocks".
        UnsupportedError: a source cannot be read by index alone.
    """
    if shuffle not in (True, "blocks"):
        raise ConfigurationError(
            f'shuffle must be True or "blocks", but it is {shuffle!r}.\n'
            "Each source of a mixture is shuffled separately, as a whole or in blocks. A mixture cannot keep the "
            "original order of a source, or use a custom one."
        )
    plan = {"weights": weights, "epochs": epochs, "at_end": at_end, "num_samples": num_samples, "window": window}
    return Mix(sources, named=named, plan=plan, in_blocks=shuffle == "blocks")


_UNWRAPPED = (
    "a DataLoader reads a mixture without wrap: {}.\n"
    "The weights, phases and epochs of the mixture have no effect. Wrap the DataLoader: "
    "resumable.wrap(DataLoader(mixture, batch_size=...), seed=...), without shuffle and sampler."
)


class Mix:
    """A concatenation of sources, with the order in which `wrap` reads it. `mix` creates it.

    Args:
        sources: from name to source.
        named: return each sample as `(name of its source, sample)`.
        plan: options of the mixture.
        in_blocks: shuffle sources with `sizes` in blocks.

    Attributes:
        lengths: from the name of a source to its number of samples.
        is_ordered: the order is used outside of `wrap`, so an unwrapped `DataLoader` may read the mixture.
    """

    def __init__(
        self, sources: Mapping[str, Any], *, named: bool, plan: Mapping[str, Any], in_blocks: bool = False
    ) -> None:
        if not isinstance(sources, Mapping):
            raise ConfigurationError(
                f"mix() expects a mapping from names to sources, but got a value of type {type(sources).__qualname__}."
                "\nA saved state needs a name for each source. Pass a dict, such as {'web': web, 'code': code}."
            )
        self.lengths = {name: _length(name, source) for name, source in sources.items()}
        cut = {name: source for name, source in sources.items() if in_blocks and hasattr(source, "sizes")}
        if in_blocks and not cut:
            raise ConfigurationError(
                'shuffle="blocks" needs a source with the attribute sizes, but none of these has it: '
                f"{', '.join(map(repr, sources))}.\nThe boundaries of the blocks are unknown. Add sizes (the number of "
                "samples per shard) to a source, or remove shuffle."
            )
        blocks = {name: blocks_of_source(source, self.lengths[name], 0) for name, source in cut.items()}
        self._plan, self._named = {**plan, "blocks": blocks}, named
        self.resumable_order(0)  # raises an error if the plan is invalid
        self.is_ordered = False
        self._names, self._sources = list(sources), list(sources.values())
        self._ends = list(accumulate(self.lengths.values()))
        self._by_epoch = {name for name, one in sources.items() if ask(type(one), "resumable_epochs") is not None}

    def resumable_order(self, seed: int) -> Mixture:
        """Return the order in which `wrap` reads the mixture."""
        self.is_ordered = True
        return Mixture(self.lengths, seed=seed, **self._plan)

    def resumable_epochs(self, sampler: Sampler) -> Sampler:
        """Return the order with the epoch of a source in its indices, if its samples differ in each epoch."""
        if not self._by_epoch or not isinstance(sampler, Mixture):
            return sampler
        told = {}
        for name in sorted(self._by_epoch):
            plain = Sequential(self.lengths[name])
            spec = self.sources[name].resumable_epochs(plain).spec()
            told[name] = {key: value for key, value in spec.items() if key not in plain.spec()}
        return sampler.with_laps(sorted(told), text_of(told))

    def locate(self, indices: Iterable[int]) -> list[tuple[str, int]]:
        """Return the source of each index, for example of `Loader.sample_indices`, and the index in that source."""
        found = [self._find(index) for index in indices]
        return [(self._names[source], index) for source, index in found]

    @property
    def sources(self) -> dict[str, Any]:
        """A dict from name to source."""
        return dict(zip(self._names, self._sources, strict=True))

    def resumable_parts(self) -> list[tuple[int, Any]]:
        """Return the sources in order, each with its number of samples."""
        return list(zip(self.lengths.values(), self._sources, strict=True))

    def resumable_prefetch(self, indices: Sequence[int], upcoming: Callable[[], Upcoming | None]) -> None:
        """Pass the indices of the next samples to their sources; see `resumable.protocols.Prefetching`."""
        own: dict[int, list[int]] = {}
        for source, index in map(self._find, indices):
            own.setdefault(source, []).append(index)
        once = cache(upcoming)  # all sources may ask
        for source, some in own.items():
            prefetch(self._sources[source], some, partial(self._upcoming, source, once))

    def _upcoming(self, source: int, upcoming: Callable[[], Upcoming | None]) -> Upcoming | None:
        """Return the blocks that belong to one source; None if it is not shuffled in blocks."""
        blocks, end = upcoming(), self._ends[source]
        if blocks is None:
            return None
        begin = end - self.lengths[self._names[source]]
        here, soon = (spans[(begin <= spans[:, 0]) & (spans[:, 0] < end)] - begin for spans in blocks)
        return Upcoming(here, soon) if len(here) else None

    def _find(self, index: int) -> tuple[int, int]:
        index = _whole(index)
        epoch, number = divmod(int(index), len(self))
        source = bisect.bisect_right(self._ends, number)
        if epoch < 0 or (epoch and self._names[source] not in self._by_epoch):
            raise IndexError(f"sample {index} does not exist: the samples of the mixture are 0..{len(self) - 1}")
        own = number - (self._ends[source - 1] if source else 0)
        own += epoch and epoch * self.lengths[self._names[source]]
        return source, Padding(own) if isinstance(index, Padding) else own

    def __len__(self) -> int:
        return self._ends[-1]

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: int) -> Any:
        source, own = self._find(index)
        sample = self._sources[source][own]
        return (self._names[source], sample) if self._named else sample

    def resumable_passing(self) -> Callable[[int, SampleRNG], Any] | None:
        """Return a function of an index and its RNG that reads a sample; None if no source takes an RNG."""
        reads = passing_on_all(self._sources)
        return None if reads is None else partial(self._read, reads)

    def _read(self, reads: list[Callable[[int, SampleRNG], Any]], index: int, rng: SampleRNG) -> Any:
        source, own = self._find(index)
        sample = reads[source](own, rng)
        return (self._names[source], sample) if self._named else sample

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return the samples of a batch that a `DataLoader` reads without `wrap`.

        Warns:
            PromiseWarning: its order is not the order of the mixture.
        """
        if not self.is_ordered:
            self.is_ordered = True  # once
            in_turn = len(indices) > 1 and list(indices) == list(range(indices[0], indices[0] + len(indices)))
            if in_turn or self._plan["weights"] is not None or self._plan["epochs"] is not None:
                warn(
                    _UNWRAPPED.format("one source after another" if in_turn else "in a different order"), PromiseWarning
                )
        return [self[index] for index in indices]

    def __repr__(self) -> str:
        return f"mix({{{', '.join(f'{name!r}: <{length}>' for name, length in self.lengths.items())}}})"


def _whole(index: Any) -> int:
    try:
        return index if isinstance(index, Padding) else operator.index(index)
    except TypeError as error:
        raise UnsupportedError(
            f"a mixture needs an integer index, but got {index!r}.\n"
            "Read one sample at a time, for example with [mixture[i] for i in range(3)]."
        ) from error


def _length(name: Any, source: Any) -> int:
    what = f"the source {name!r} of a mixture"
    if is_a(source, Mix):
        raise UnsupportedError(
            f"{what} is a mixture itself, and its weights would be lost.\nPass its sources directly to the outer "
            "mix(), and multiply their weights with the weight of the inner mixture."
        )
    refuse_hidden_order(source, what)
    refuse_hidden_epochs(source, what)
    if is_a(source, (str, bytes, bytearray)):
        raise UnsupportedError(
            f"{what} is a {qualname_of(type(source))}: {source[:40]!r}.\n"
            "Its characters would be the samples. If it is a file name, open the file and pass its samples. If you do "
            "want characters, pass list(text)."
        )
    streams = any(qualname_of(base) == "IterableDataset" for base in mro_of(type(source)))  # PyTorch or Hugging Face
    if streams or is_a(source, Mapping) or not has(type(source), "__getitem__"):
        loads = ask(source, "batch_sampler") is not None
        dataset = " Pass its dataset here, and the mixture to a DataLoader." if loads else ""
        raise UnsupportedError(
            f"{what} cannot be read by index: its type is {qualname_of(type(source))}.\n"
            f"A mixture reads samples by index. Pass an object with source[index] and len(source).{dataset}"
        )
    if state_methods(source) is not None:
        raise UnsupportedError(
            f"{what} has a state: {qualname_of(type(source))} has methods to save and load it.\nThe state would be "
            "lost on resume. Make each sample depend only on its index."
        )
    return length_of(source, what)
