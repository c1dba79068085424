"""How far the workers of an iterable-style `DataLoader` are, as values that go to them and come back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Part", "StreamPlan"]


@dataclass(frozen=True, slots=True)
class Part:
    """How far one worker is.

    Args:
        batches: batches of this epoch that were handed over.
        ended: it has no more in this epoch.
        state: the dataset's own state behind them, where it has one.
    """

    batches: int = 0
    ended: bool = False
    state: Any = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        values = {"batches": self.batches, "ended": self.ended}
        return values if self.state is None else {**values, "state": self.state}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Part:
        """Make a part of `as_dict`'s values."""
        return cls(values["batches"], values["ended"], values.get("state"))


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """Where an epoch is begun: the parts of all workers, and the number of the one whose turn it is."""

    epoch: int
    turn: int
    parts: list[Part]
