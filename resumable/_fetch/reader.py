"""Reader: reads the samples of a request, each under its own randomness, and names the one that fails."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from operator import length_hint
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable._fetch.ahead import prefetch, upcoming_of
from resumable._fetch.failures import ended_inside, in_short, note
from resumable._introspection import ask, shorten
from resumable._order.plan import Padding
from resumable._randomness.idle import Seeding
from resumable.failpoints import point

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resumable._flight import Recorder
    from resumable._randomness.keys import Randomness
    from resumable.protocols import Request

__all__ = ["Reader", "indices_of", "no_end"]


def no_end(name: str, function: Callable[[Any], Any], argument: Any) -> Any:
    """Call a user's function, whose `StopIteration` would be taken for the end of the epoch.

    Raises:
        SampleError: it raised one; anything else comes as it is, with a note.
    """
    try:
        return function(argument)
    except StopIteration as error:
        raise ended_inside(name) from error
    except Exception as error:
        note(error, name)
        raise


def indices_of(request: Request) -> list[Any]:
    """Return the sample indices of a request; those that only fill up the batch are of the type `Padding`."""
    found, padding = request.indices, request.padding
    indices: list[Any] = found if isinstance(found, list) else found.tolist()
    first = len(indices) - padding
    return [*indices[:first], *map(Padding, indices[first:])] if padding else indices


@dataclass(frozen=True, slots=True)
class Reader:
    """Turns a request into a batch.

    Args:
        source: has `source[index]`.
        collate: makes a batch of a list of samples; None: the one sample that a request then has is the batch.
        randomness: how often the global generators are seeded.
        together: read all samples of a request by `source.__getitems__` instead of one by one; the generators are then
            seeded once per batch.
        seeding: what is known about the generators that the source draws from.
        recorder: notes which sample is read, if they are read one by one.
    """

    source: Any
    collate: Callable[[Any], Any] | None
    randomness: Randomness
    together: bool = False
    seeding: Seeding = field(default_factory=Seeding)
    recorder: Recorder | None = None

    def read_isolated(self, request: Request) -> Any:
        """Read a request and give the global generators back as they were."""
        return self._read(request, isolate=True)

    def read(self, request: Request) -> Any:
        """Read a request in a process whose global generators may be changed.

        Raises:
            SampleError: the source raised `StopIteration`; anything else comes as it is, with a note of the sample.
        """
        return self._read(request, isolate=False)

    def _read(self, request: Request, *, isolate: bool) -> Any:
        point("worker.read", request)
        if self.randomness == "off":
            self._prefetch(request)
            return self._collated(self._samples(request, None))
        read_all = partial(self._seeded, request, request.batch_key)
        return self.seeding.read(read_all, isolate=isolate, epoch=request.epoch)

    def _seeded(self, request: Request, batch_key: int, seed: Callable[[int], object], bits: int) -> Any:
        """Read a request with the seeds of its samples, or with that of the batch."""
        self._prefetch(request)
        per_sample = self.randomness == "sample"
        if not per_sample or self.together:
            seed(batch_key & bits)
        samples = self._samples(request, (seed, bits) if per_sample else None)
        if per_sample and self.collate is not None:
            seed(batch_key & bits)
        return self._collated(samples)

    def _prefetch(self, request: Request) -> None:
        """Tell the source what is to be read, before any seed is set: what it draws is not the sample's."""
        if not self.together and ask(type(self.source), "resumable_prefetch") is not None:
            prefetch(self.source, indices_of(request), partial(upcoming_of, request))

    def _collated(self, samples: list[Any]) -> Any:
        return samples[0] if self.collate is None else no_end("collate", self.collate, samples)

    def _samples(self, request: Request, seeder: tuple[Callable[[int], object], int] | None) -> Any:
        """Read the samples, and seed before each of them where they are read one by one."""
        indices = indices_of(request)
        if self.together:
            return self._together(indices)
        if self.recorder is None:
            return self._apart(request, indices, seeder, self.source)
        with self.recorder.noting(self.source) as source:
            return self._apart(request, indices, seeder, source)

    def _apart(
        self, request: Request, indices: list[Any], seeder: tuple[Callable[[int], object], int] | None, source: Any
    ) -> list[Any]:
        left = iter(indices)
        try:
            if seeder is None:
                return [source[index] for index in left]
            seed, bits = seeder
            keys = (request.keys & np.uint64(bits)).tolist()
            return [source[index] for index, key in zip(left, keys, strict=True) if seed(key)]
        except StopIteration as error:
            raise ended_inside(_name_of(_last_of(indices, left))) from error
        except Exception as error:
            note(error, _name_of(_last_of(indices, left)))
            raise

    def _together(self, indices: list[Any]) -> Any:
        try:
            return self.source.__getitems__(indices)
        except StopIteration as error:
            raise ended_inside(in_short(indices)) from error
        except Exception as error:
            note(error, in_short(indices))
            raise


def _name_of(index: Any) -> str:
    """Name a sample: its index may be an object of any kind and length."""
    return f"sample {shorten(index, show=str)}"


def _last_of(indices: list[Any], left: Iterator[Any]) -> Any:
    """Return the index that an iterator over them gave last."""
    return indices[len(indices) - length_hint(left) - 1]
