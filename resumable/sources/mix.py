"""mix(): several sources as one, in the order of a mixture."""

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
from resumable.errors import ConfigurationError, UnsupportedError
from resumable.loader.registry import refuse_hidden_order
from resumable.protocols import Upcoming
from resumable.samplers import Mixture
from resumable.samplers.base import length_of
from resumable.samplers.blocks import blocks_of_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from resumable.samplers.timeline import Weights

__all__ = ["Mix", "mix"]


def mix(  # noqa: PLR0913  # what a mixture depends on; each has a default
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
    source is shuffled by itself, and all of its samples come once before one of them comes again.

    Args:
        sources: what has `source[index]` and `len(source)`, by names that stay the same.
        weights: of the sources, by their names; or phases `[(first sample, weights), ...]`, where a source without a
            weight waits, to join in a later phase. None: the numbers of their samples.
        epochs: after how many epochs of its own a source is used up; one number for all of them, or by name. A source
            without one begins again and again.
        at_end: what happens then: "leave", and the others share its part by their weights, or "stop" the mixture.
        num_samples: samples per epoch of a mixture that has no end; those of all sources by default, in whole windows.
        window: samples per window, in which the proportions are exact. None: the first global batch.
        named: give each sample as `(name of its source, sample)`.
        shuffle: how each source is: True as a whole; "blocks" those in blocks that have `sizes`, as
            `wrap(..., shuffle="blocks")` does it, and the others as a whole.

    Raises:
        ConfigurationError: sources, weights, phases or epochs that make no mixture, or no source with `sizes` for
            "blocks".
        UnsupportedError: a source that is not read by its index alone.
    """
    if shuffle not in (True, "blocks"):
        raise ConfigurationError(
            f'shuffle must be True or "blocks", but it is {shuffle!r}.\n'
            "Each source of a mixture is shuffled by itself, as a whole or in blocks. A source in an order of its own "
            "has no place in one."
        )
    plan = {"weights": weights, "epochs": epochs, "at_end": at_end, "num_samples": num_samples, "window": window}
    return Mix(sources, named=named, plan=plan, in_blocks=shuffle == "blocks")


class Mix:
    """Sources one after the other, by index, with the order in which `wrap` reads them; made by `mix`.

    Args:
        sources: by their names.
        named: give each sample as `(name of its source, sample)`.
        plan: what the mixture depends on.
        in_blocks: shuffle those in blocks that have `sizes`.

    Attributes:
        lengths: samples of each source, by its name.
    """

    def __init__(
        self, sources: Mapping[str, Any], *, named: bool, plan: Mapping[str, Any], in_blocks: bool = False
    ) -> None:
        if not isinstance(sources, Mapping):
            raise ConfigurationError(
                f"mix() takes a mapping from names to sources, but got {type(sources).__qualname__}.\n"
                'A state could not tell one source from another. Give for instance {"web": web, "code": code}.'
            )
        self.lengths = {name: _length(name, source) for name, source in sources.items()}
        cut = {name: source for name, source in sources.items() if in_blocks and hasattr(source, "sizes")}
        if in_blocks and not cut:
            raise ConfigurationError(
                f'shuffle="blocks" was given, but none of the sources {", ".join(map(repr, sources))} has an attribute '
                "sizes.\nWhich samples lie together could not be known. Give one of them sizes, the number of samples "
                "of each shard; or leave shuffle out."
            )
        blocks = {name: blocks_of_source(source, self.lengths[name], 0) for name, source in cut.items()}
        self._plan, self._named = {**plan, "blocks": blocks}, named
        self.resumable_order(0)  # says what is wrong with the plan
        self._names, self._sources = list(sources), list(sources.values())
        self._ends = list(accumulate(self.lengths.values()))

    def resumable_order(self, seed: int) -> Mixture:
        """Return the order in which it is to be read."""
        return Mixture(self.lengths, seed=seed, **self._plan)

    def locate(self, indices: Iterable[int]) -> list[tuple[str, int]]:
        """Return the source of each index, as `Loader.sample_indices` has them, and the index in that source."""
        found = [self._find(index) for index in indices]
        return [(self._names[source], index) for source, index in found]

    @property
    def sources(self) -> dict[str, Any]:
        """The sources, by their names."""
        return dict(zip(self._names, self._sources, strict=True))

    def resumable_parts(self) -> list[tuple[int, Any]]:
        """Return the sources in their order, each with the number of its samples."""
        return list(zip(self.lengths.values(), self._sources, strict=True))

    def resumable_prefetch(self, indices: Sequence[int], upcoming: Callable[[], Upcoming | None]) -> None:
        """Pass on to each source which of its samples are to be read; see `resumable.protocols.Prefetching`."""
        own: dict[int, list[int]] = {}
        for source, index in map(self._find, indices):
            own.setdefault(source, []).append(index)
        once = cache(upcoming)  # all sources may ask
        for source, some in own.items():
            prefetch(self._sources[source], some, partial(self._upcoming, source, once))

    def _upcoming(self, source: int, upcoming: Callable[[], Upcoming | None]) -> Upcoming | None:
        """Return the blocks of a source, of those of all; None where its order is not in blocks."""
        blocks, end = upcoming(), self._ends[source]
        if blocks is None:
            return None
        begin = end - self.lengths[self._names[source]]
        here, soon = (spans[(begin <= spans[:, 0]) & (spans[:, 0] < end)] - begin for spans in blocks)
        return Upcoming(here, soon) if len(here) else None

    def _find(self, index: int) -> tuple[int, int]:
        index = _whole(index)
        if not 0 <= index < len(self):
            raise IndexError(f"the mixture has the samples 0..{len(self) - 1}, so there is no sample {index}")
        source = bisect.bisect_right(self._ends, index)
        own = index - (self._ends[source - 1] if source else 0)
        return source, Padding(own) if isinstance(index, Padding) else own

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Any:
        source, own = self._find(index)
        sample = self._sources[source][own]
        return (self._names[source], sample) if self._named else sample

    def __repr__(self) -> str:
        return f"mix({{{', '.join(f'{name!r}: <{length}>' for name, length in self.lengths.items())}}})"


def _whole(index: Any) -> int:
    try:
        return index if isinstance(index, Padding) else operator.index(index)
    except TypeError as error:
        raise UnsupportedError(
            f"the index of a sample of a mixture must be an integer, but it is {index!r}.\n"
            "Which sample is meant could not be known. Ask for one sample at a time: [mixture[i] for i in range(3)]."
        ) from error


def _length(name: Any, source: Any) -> int:
    what = f"the source {name!r} of a mixture"
    if is_a(source, Mix):
        raise UnsupportedError(
            f"{what} is a mixture itself.\nIts own weights would be lost. Give its sources with the others, each with "
            "the product of its weights."
        )
    refuse_hidden_order(source, what)
    if is_a(source, (str, bytes, bytearray)):
        raise UnsupportedError(
            f"{what} is a {qualname_of(type(source))}: {source[:40]!r}.\n"
            "Its characters would be the samples. Open the file that it names, and give its samples; a text of samples "
            "is a source as list(text)."
        )
    streams = any(qualname_of(base) == "IterableDataset" for base in mro_of(type(source)))  # torch's and Hugging Face's
    if streams or is_a(source, Mapping) or not has(type(source), "__getitem__"):
        loads = ask(source, "batch_sampler") is not None
        dataset = " Give its dataset, and the mixture to a DataLoader." if loads else ""
        raise UnsupportedError(
            f"{what} is not read by index: {qualname_of(type(source))}.\n"
            f"A mixture goes to any sample by its index. Give something with source[index] and len(source).{dataset}"
        )
    if state_methods(source) is not None:
        raise UnsupportedError(
            f"{what} remembers something from sample to sample: {qualname_of(type(source))} has methods for its "
            "state.\nIt would be lost on resume. Make a sample depend on nothing but its index."
        )
    return length_of(source, what)
