"""Binding: the sampler of a stream, where it leaves something open that the global batch or a state says."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Protocol

from resumable.errors import ShuffleWarning
from resumable.samplers.base import Bindable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from resumable.samplers import Sampler

    class Saved(Protocol):
        """A state, by what has to be the same in both runs."""

        @property
        def fingerprint(self) -> Mapping[str, Any]:
            """Values by dotted names, the sampler's after "sampler."."""
            ...


__all__ = ["Binding"]


class Binding:
    """Binds a sampler once: when the stream first opens, or by a loaded state. Until then, it fits the ranks of now.

    Args:
        sampler: as it was given.
        asked: tells the samples per step that this run would begin with.
    """

    def __init__(self, sampler: Sampler, asked: Callable[[], int]) -> None:
        self._asked = asked
        self._open = sampler if isinstance(sampler, Bindable) else None  # asked once, as that takes 20 microseconds
        self._bound = sampler if self._open is None else None
        self._for_now: tuple[int, Sampler] | None = None
        self._doubted = False

    @property
    def sampler(self) -> Sampler:
        """The sampler, with nothing left open."""
        if self._bound is not None:
            return self._bound
        global_batch = self._asked()
        if self._for_now is None or self._for_now[0] != global_batch:
            assert self._open is not None
            self._for_now = global_batch, self._open.bound_to(global_batch)
        return self._for_now[1]

    def like(self, state: Saved) -> Sampler:
        """Return the sampler as it is in a state, if that says it; else as it is now."""
        return self._said_by(state) or self.sampler

    def adopt(self, state: Saved) -> None:
        """Go on with the sampler of a state, if that says it."""
        self._bound = self._said_by(state) or self._bound

    def _said_by(self, state: Saved) -> Sampler | None:
        if self._open is None:
            return None
        facts, prefix = state.fingerprint, "sampler."
        spec = {name.removeprefix(prefix): value for name, value in facts.items() if name.startswith(prefix)}
        bound = self._open.bound_as(spec)
        return None if bound is self._open else bound

    def open(self, global_batch: int) -> None:
        """Bind the sampler to the global batch of the first opening.

        Warns:
            ShuffleWarning: it mixes too little for the batch.
        """
        if self._open is None:
            return
        bound = self._bound or self._open.bound_to(global_batch)
        self._bound = bound
        if not self._doubted and isinstance(bound, Bindable) and (doubt := bound.doubt(global_batch)):
            self._doubted = True
            warnings.warn(doubt, ShuffleWarning, stacklevel=2)
