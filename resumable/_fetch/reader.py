"""Reads the samples of a request, each with its own randomness, and reports which one fails.

The source learns in advance which samples follow, so it can read more than one sample at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from operator import length_hint
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable._fetch.failures import ended_inside, in_short, note
from resumable._introspection import ask, shorten
from resumable._order.plan import Padding
from resumable._randomness.passed import borrow_rng, return_rng
from resumable._randomness.seeding import Seeding
from resumable.failpoints import point
from resumable.protocols import Upcoming

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import TypeAlias

    from resumable._fetch.order import Order
    from resumable._flight import Recorder
    from resumable._randomness.keys import Randomness
    from resumable._randomness.passed import SampleRNG
    from resumable.protocols import Request

    _Passes: TypeAlias = Callable[[Any, SampleRNG], Any] | None
    _Read: TypeAlias = Callable[[Iterator[Any], Any, _Passes], list[Any]]  # of indices, a source, and its `passes`

__all__ = ["Reader", "indices_of", "no_end", "prefetch", "upcoming_of"]


def no_end(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a user's function, and convert `StopIteration`, which would be mistaken for the end of the epoch.

    Raises:
        SampleError: it raised `StopIteration`; other exceptions stay the same, with a note.
    """
    try:
        return function(*arguments)
    except StopIteration as error:
        raise ended_inside(name) from error
    except Exception as error:
        note(error, name)
        raise


def indices_of(request: Request) -> list[Any]:
    """Return the sample indices of a request. Those that only fill up the batch have the type `Padding`."""
    found, padding = request.indices, request.padding
    indices: list[Any] = found if isinstance(found, list) else found.tolist()
    first = len(indices) - padding
    return [*indices[:first], *map(Padding, indices[first:])] if padding else indices


@dataclass(frozen=True, slots=True)
class Reader:
    """Turns a request into a batch.

    Args:
        source: has `source[index]`.
        collate: makes a batch from a list of samples. With None, each request has one sample, which is the batch.
        randomness: how often the global RNGs are seeded, or whether RNGs are passed.
        together: read all samples of a request with one call of `source.__getitems__`; the RNGs are then
            seeded once per batch.
        seeding: what is known about the RNGs that the source uses.
        recorder: records which sample is being read, if each is read separately.
        passes: reads a sample of the source from its index and its RNG; None if the source takes no RNG.
        mixes: `collate` takes the RNG of the batch as well.
    """

    source: Any
    collate: Callable[..., Any] | None
    randomness: Randomness
    together: bool = False
    seeding: Seeding = field(default_factory=Seeding)
    recorder: Recorder | None = None
    passes: Callable[[Any, SampleRNG], Any] | None = None
    mixes: bool = False

    def read_isolated(self, request: Request) -> Any:
        """Read a request, and restore the global RNGs afterwards."""
        return self._read(request, isolate=True)

    def read(self, request: Request) -> Any:
        """Read a request in a process whose global RNGs may be changed.

        Raises:
            SampleError: the source raised `StopIteration`; other exceptions stay the same, with a note of the sample.
        """
        return self._read(request, isolate=False)

    def _read(self, request: Request, *, isolate: bool) -> Any:
        point("worker.read", request)
        if self.randomness == "off":
            self._prefetch(request)
            return self._collated(self._samples(request, _read_plainly))
        if self.randomness == "passed":
            return self.seeding.watched(partial(self._passed, request), request.epoch)
        read_all = partial(self._seeded, request, request.batch_key)
        return self.seeding.read(read_all, isolate=isolate, epoch=request.epoch)

    def _seeded(self, request: Request, batch_key: int, seed: Callable[[int], object], bits: int) -> Any:
        """Read a request with the seeds of its samples, or with the seed of the batch."""
        self._prefetch(request)
        per_sample = self.randomness == "sample"
        if not per_sample or self.together:
            seed(batch_key & bits)
        samples = self._samples(request, partial(_read_seeded, request, seed, bits) if per_sample else _read_plainly)
        if per_sample and self.collate is not None:
            seed(batch_key & bits)
        return self._collated(samples)

    def _passed(self, request: Request) -> Any:
        """Read a request, and pass the RNGs of its samples and of the batch to the functions that take them."""
        self._prefetch(request)
        rng = borrow_rng()
        try:
            read = _read_plainly if self.passes is None else partial(_read_passing, request, rng)
            samples = self._samples(request, read)
            return self._collated(samples, rng.at(request.batch_key)) if self.mixes else self._collated(samples)
        finally:
            return_rng(rng)

    def _prefetch(self, request: Request) -> None:
        """Tell the source what will be read, before any seed is set, so its use of RNGs does not affect samples."""
        if not self.together and ask(type(self.source), "resumable_prefetch") is not None:
            prefetch(self.source, indices_of(request), partial(upcoming_of, request))

    def _collated(self, samples: list[Any], *rng: SampleRNG) -> Any:
        return samples[0] if self.collate is None else no_end("collate", self.collate, samples, *rng)

    def _samples(self, request: Request, read: _Read) -> Any:
        """Read the samples, with a function if each is read separately."""
        indices = indices_of(request)
        if self.together:
            return self._together(indices)
        if self.recorder is None:
            return _apart(read, indices, self.source, self.passes)
        with self.recorder.noting(self.source, self.passes) as (source, passes):
            return _apart(read, indices, source, passes)

    def _together(self, indices: list[Any]) -> Any:
        try:
            return self.source.__getitems__(indices)
        except StopIteration as error:
            raise ended_inside(in_short(indices)) from error
        except Exception as error:
            note(error, in_short(indices))
            raise


def _apart(read: _Read, indices: list[Any], source: Any, passes: _Passes) -> list[Any]:
    """Read each sample separately; an exception of the source gets a note with its sample."""
    left = iter(indices)
    try:
        return read(left, source, passes)
    except StopIteration as error:
        raise ended_inside(_name_of(_last_of(indices, left))) from error
    except Exception as error:
        note(error, _name_of(_last_of(indices, left)))
        raise


def _read_plainly(indices: Iterable[Any], source: Any, _: _Passes) -> list[Any]:
    return [source[index] for index in indices]


def _read_seeded(
    request: Request, seed: Callable[[int], object], bits: int, indices: Iterable[Any], source: Any, _: _Passes
) -> list[Any]:
    """Seed before each sample; the function that seeds returns a true value."""
    keys = (request.keys & np.uint64(bits)).tolist()
    return [source[index] for index, key in zip(indices, keys, strict=True) if seed(key)]


def _read_passing(request: Request, rng: SampleRNG, indices: Iterable[Any], _: Any, passes: _Passes) -> list[Any]:
    assert passes is not None
    return rng.read(passes, indices, request.keys.tolist())


def _name_of(index: Any) -> str:
    """Describe a sample. Its index may be an object of any kind and length."""
    return f"sample {shorten(index, show=str)}"


def _last_of(indices: list[Any], left: Iterator[Any]) -> Any:
    """Return the index that an iterator over `indices` yielded last."""
    return indices[len(indices) - length_hint(left) - 1]


_Place = tuple[int, int]  # an epoch, and a position in it


def prefetch(source: Any, indices: Sequence[Any], upcoming: Callable[[], Upcoming | None]) -> None:
    """Call the method of a source that is `protocols.Prefetching`; do nothing for others.

    Args:
        source: of the samples.
        indices: the samples that will be read.
        upcoming: returns the blocks that are read soon; None if the order is not the source's, or not in blocks.
    """
    method = ask(type(source), "resumable_prefetch")
    if method is not None:
        method(source, indices, upcoming)


def upcoming_of(request: Request) -> Upcoming | None:
    """Return the blocks at and after a request; None if its order is not in blocks, or not known here.

    Blocks of a mixture are numbered like its samples.
    """
    order: Any = request.order
    sampler: Any = getattr(order, "sampler", None)
    if hasattr(sampler, "blocks_of"):
        return _blocks(sampler, *_ends(order, request))
    if hasattr(sampler, "stretches"):
        return _of_mixture(sampler, *_ends(order, request))
    return None


def _ends(order: Order, request: Request) -> tuple[_Place, _Place]:
    """Return the positions of a request's first sample, and after its last, without samples that fill up the batch."""
    first, *more = order.plan.segments(request.epoch, request.start, request.stop)
    last = next((one for one in reversed(more) if one.epoch > first.epoch), first)
    return (first.epoch, first.start), (last.epoch, last.stop)


def _blocks(sampler: Any, begin: _Place, end: _Place) -> Upcoming:
    """Return the blocks of all windows between two positions, and of a part of the window after them."""
    windows = sampler.blocks_of(*begin)
    while (windows[-2].epoch, windows[-2].stop) < end:
        windows += sampler.blocks_of(windows[-1].epoch, windows[-1].start)[1:]
    *here, following = windows
    passed = (end[1] - here[-1].start) / (here[-1].stop - here[-1].start)
    soon = following.blocks[: int(np.ceil(passed * len(following.blocks)))]
    return Upcoming(sampler.spans(np.concatenate([one.blocks for one in here])), sampler.spans(soon))


def _of_mixture(sampler: Any, begin: _Place, end: _Place) -> Upcoming | None:
    found = list(_of_sources(sampler, begin, end))
    if not found:
        return None
    here, soon = zip(*found, strict=True)
    return Upcoming(np.concatenate(here), np.concatenate(soon))


def _of_sources(sampler: Any, begin: _Place, end: _Place) -> Iterator[Upcoming]:
    for stretch in sampler.stretches(begin, end):
        own = _blocks(stretch.order, stretch.begin, stretch.end)  # a small source may repeat several times
        yield Upcoming(*(np.unique(spans, axis=0) + stretch.first for spans in own))
