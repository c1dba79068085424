"""Reader: reads the samples of a request, each under its own randomness, and names the one that fails."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import length_hint
from typing import TYPE_CHECKING, Any

from resumable.errors import SampleError
from resumable.faults import point
from resumable.randomness import Randomness, isolated, reseed
from resumable.schedule import Padding
from resumable.seeding import Seeding

if TYPE_CHECKING:
    from collections.abc import Callable

    from resumable.protocols import Request

__all__ = ["Reader", "indices_of"]


def indices_of(request: Request) -> list[Any]:
    """Return the sample indices of a request; those that only fill up the batch are of the type `Padding`."""
    indices: list[Any] = request.indices if isinstance(request.indices, list) else request.indices.tolist()
    first = len(indices) - request.padding
    return [*indices[:first], *map(Padding, indices[first:])] if request.padding else indices


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
    """

    source: Any
    collate: Callable[[Any], Any] | None
    randomness: Randomness
    together: bool = False
    seeding: Seeding = field(default_factory=Seeding)

    def read_isolated(self, request: Request) -> Any:
        """Read a request and give the global generators back as they were."""
        if self.randomness == "off":
            return self.read(request)
        with isolated():
            return self.read(request)

    def read(self, request: Request) -> Any:
        """Read a request in a process whose global generators may be changed.

        Raises:
            SampleError: the source raised; the message names the sample, the cause is the original error.
        """
        point("worker.read", request)
        indices = indices_of(request)
        if self.randomness == "batch" or (self.together and self.randomness == "sample"):
            reseed(request.batch_key)
        samples = self._together(request, indices) if self.together else self._one_by_one(request, indices)
        if self.collate is None:
            return samples[0]
        if self.randomness == "sample":
            reseed(request.batch_key)
        return self.collate(samples)

    def _one_by_one(self, request: Request, indices: list[Any]) -> list[Any]:
        source, left = self.source, iter(indices)

        def read_all(seed: Callable[[int], object]) -> list[Any]:
            nonlocal left
            left, samples = iter(indices), []
            for index, key in zip(left, request.keys.tolist(), strict=True):
                seed(key)
                samples.append(source[index])
            return samples

        try:
            if self.randomness == "sample":
                return self.seeding.read(read_all, request.batch_key)
            return [source[index] for index in left]
        except Exception as error:
            raise _failure(request, indices[len(indices) - length_hint(left) - 1], error) from error

    def _together(self, request: Request, indices: list[Any]) -> Any:
        try:
            return self.source.__getitems__(indices)
        except Exception as error:
            raise _failure(request, indices, error) from error


def _failure(request: Request, index: Any, error: Exception) -> SampleError:
    return SampleError(
        f"reading sample {index} failed: {type(error).__name__}: {error}\n"
        f"It belongs to epoch {request.epoch}, step {request.step}, rank {request.rank}. "
        "The loader's state is that before this batch: mend the sample and go on from it, or leave the sample out "
        "with a Subset."
    )
