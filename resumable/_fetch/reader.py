"""Reader: reads the samples of a request, each under its own randomness, and names the one that fails."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import length_hint
from typing import TYPE_CHECKING, Any

from resumable._fetch.failures import ended_inside, in_short, note
from resumable._order.plan import Padding
from resumable._randomness.idle import Seeding
from resumable._randomness.keys import Randomness, isolated, reseed
from resumable.failpoints import point

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resumable._fetch.reading import Reading
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
        reading: where is noted which sample is read, one by one; None: nowhere.
    """

    source: Any
    collate: Callable[[Any], Any] | None
    randomness: Randomness
    together: bool = False
    seeding: Seeding = field(default_factory=Seeding)
    reading: Reading | None = None

    def read_isolated(self, request: Request) -> Any:
        """Read a request and give the global generators back as they were."""
        if self.randomness == "off":
            return self.read(request)
        with isolated():
            return self.read(request)

    def read(self, request: Request) -> Any:
        """Read a request in a process whose global generators may be changed.

        Raises:
            SampleError: the source raised `StopIteration`; anything else comes as it is, with a note of the sample.
        """
        point("worker.read", request)
        indices = indices_of(request)
        batch_key = 0 if self.randomness == "off" else request.batch_key
        if self.randomness == "batch" or (self.together and self.randomness == "sample"):
            reseed(batch_key)
        if self.together:
            samples = self._together(indices)
        elif self.reading is None:
            samples = self._apart(request, indices, batch_key, self.source)
        else:
            with self.reading.noting(self.source) as source:
                samples = self._apart(request, indices, batch_key, source)
        if self.collate is None:
            return samples[0]
        if self.randomness == "sample":
            reseed(batch_key)
        return no_end("collate", self.collate, samples)

    def _apart(self, request: Request, indices: list[Any], batch_key: int, source: Any) -> list[Any]:
        if self.randomness == "sample":
            return self._keyed(request, indices, batch_key, source)
        left = iter(indices)
        try:
            return [source[index] for index in left]
        except StopIteration as error:
            raise ended_inside(f"sample {_last_of(indices, left)}") from error
        except Exception as error:
            note(error, f"sample {_last_of(indices, left)}")
            raise

    def _keyed(self, request: Request, indices: list[Any], batch_key: int, source: Any) -> list[Any]:
        left, keys = iter(indices), request.keys.tolist()

        def read_all(seed: Callable[[int], object]) -> list[Any]:
            nonlocal left
            left, samples = iter(indices), []
            for index, key in zip(left, keys, strict=True):
                seed(key)
                samples.append(source[index])
            return samples

        try:
            return self.seeding.read(read_all, batch_key)
        except StopIteration as error:
            raise ended_inside(f"sample {_last_of(indices, left)}") from error
        except Exception as error:
            note(error, f"sample {_last_of(indices, left)}")
            raise

    def _together(self, indices: list[Any]) -> Any:
        try:
            return self.source.__getitems__(indices)
        except StopIteration as error:
            raise ended_inside(in_short(indices)) from error
        except Exception as error:
            note(error, in_short(indices))
            raise


def _last_of(indices: list[Any], left: Iterator[Any]) -> Any:
    """Return the index that an iterator over them gave last."""
    return indices[len(indices) - length_hint(left) - 1]
