"""The same `DataLoader`, wrapped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import resumable
from benchmarks.contenders.plain import plain_loader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.case import Case

__all__ = ["Ours"]


class Ours:
    """`wrap(DataLoader(...))` with a randomness mode.

    Args:
        case: what to read.
        options: of `wrap`.
    """

    def __init__(self, case: Case, **options: Any) -> None:
        self._loader = resumable.wrap(plain_loader(case), **options)

    def start(self, state: Any = None) -> Iterator[Any]:
        """Start an epoch, or continue."""
        if state is not None:
            self._loader.load_state_dict(state)
        return iter(self._loader)

    def state(self) -> Any:
        """Return the state."""
        return self._loader.state_dict()

    def state_at(self, step: int) -> Any:
        """Seek to a step and return the state."""
        self._loader.seek(epoch=0, step=step)
        return self._loader.state_dict()
