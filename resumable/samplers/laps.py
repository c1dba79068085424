"""The order of a source whose samples are others in each epoch: the epoch goes into the indices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable.samplers.base import Bindable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from resumable._randomness.keyed import IntArray
    from resumable.samplers.base import Sampler

__all__ = ["Laps"]


class Laps:
    """A sampler that asks for sample `i` of epoch `e` by the index `e * samples + i`.

    Args:
        inner: says the order of the samples in each epoch.
        samples: of the source, per epoch.
        what: names the algorithm by which the samples of an epoch are made, and what it depends on.

    Attributes:
        length: positions per epoch.
    """

    def __init__(self, inner: Sampler, samples: int, what: str) -> None:
        self._inner, self._samples, self._what = inner, samples, what
        self.length = inner.length

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        """Compute the sample indices of the positions `start..stop-1`; shape `(stop - start,)`."""
        return self._inner.indices(epoch, start, stop) + epoch * self._samples

    def bound_to(self, global_batch: int) -> Laps:
        """Return the sampler with what fits a global batch, where the inner one leaves something open."""
        return self._of(self._inner.bound_to(global_batch)) if isinstance(self._inner, Bindable) else self

    def bound_as(self, spec: Mapping[str, Any]) -> Laps:
        """Return the sampler with what a state says, where the inner one leaves something open."""
        return self._of(self._inner.bound_as(spec)) if isinstance(self._inner, Bindable) else self

    def doubt(self, global_batch: int) -> str:
        """Return why the inner order does not fit a global batch; empty where it does."""
        return self._inner.doubt(global_batch) if isinstance(self._inner, Bindable) else ""

    def spec(self) -> dict[str, int | str]:
        """What the inner sampler says, the number of samples, and how those of an epoch are made."""
        return {**self._inner.spec(), "windows": self._samples, "packing": self._what}

    def _of(self, inner: Sampler) -> Laps:
        return self if inner is self._inner else Laps(inner, self._samples, self._what)

    def __repr__(self) -> str:
        return f"Laps({self._inner!r}, {self._samples}, {self._what!r})"
