"""Shared by readers of other libraries with a state; they reach a position by reading up to it."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from benchmarks.contenders.format_files import grouped

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Stateful"]


class Stateful:
    """Anything with `state_dict` and `load_state_dict`, over samples or batches.

    Args:
        source: the reader.
        samples: their number, which the reader may not know.
        batched: whether it yields lists of samples.
    """

    def __init__(self, source: Any, samples: int, *, batched: bool) -> None:
        self._source, self._samples, self._batched = source, samples, batched

    def __len__(self) -> int:
        return self._samples

    def start(self, state: Any = None) -> Iterator[Any]:
        """Start an epoch, or continue."""
        if state is not None:
            self._source.load_state_dict(state)
        return iter(self._source) if self._batched else grouped(self._source)

    def state_at(self, step: int) -> Any:
        """Read up to a step."""
        batches = self.start()
        for _ in islice(batches, step):
            pass
        return self._source.state_dict()
