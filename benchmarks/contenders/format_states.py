"""What the readers of other libraries have in common that keep a state: a place is found by reading up to it."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from benchmarks.contenders.format_files import grouped

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Stateful"]


class Stateful:
    """Something with `state_dict` and `load_state_dict`, of samples or of batches.

    Args:
        source: it.
        samples: how many there are; it may not know.
        batched: it gives lists of samples.
    """

    def __init__(self, source: Any, samples: int, *, batched: bool) -> None:
        self._source, self._samples, self._batched = source, samples, batched

    def __len__(self) -> int:
        return self._samples

    def start(self, state: Any = None) -> Iterator[Any]:
        """Begin an epoch, or go on."""
        if state is not None:
            self._source.load_state_dict(state)
        return iter(self._source) if self._batched else grouped(self._source)

    def state_at(self, step: int) -> Any:
        """Read up to there."""
        batches = self.start()
        for _ in islice(batches, step):
            pass
        return self._source.state_dict()
