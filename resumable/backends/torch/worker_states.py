"""How far the workers of an iterable-style `DataLoader` are, as values that go to them and come back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["LENIENT", "StreamPlan", "WorkerState"]

LENIENT, _ELSEWHERE = "lenient", "elsewhere"
_MOST_BATCHES = 1 << 40  # of an epoch, as no run has


@dataclass(frozen=True, slots=True)
class WorkerState:
    """How far one worker is.

    Args:
        batches: batches of this epoch that were delivered.
        ended: it has no more in this epoch.
        state: the dataset's own state after them, where it has one.
        iterator: the state of the dataset's iterator after them, where that has one of its own.
        canary: digest of the sample that comes next, where there is a state; else of the last one that was delivered.
        strict: refuse another sample than that, instead of a warning.
        elsewhere: another rank read it, so that no more is known than how many batches it gave.
    """

    batches: int = 0
    ended: bool = False
    state: Any = None
    iterator: Any = None
    canary: str | None = None
    strict: bool = True
    elsewhere: bool = False

    @property
    def has_own(self) -> bool:
        """Whether there is a state of the dataset's own."""
        return self.state is not None or self.iterator is not None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values; what is None is left out."""
        later = {"state": self.state, "iterator": self.iterator, "canary": self.canary}
        return {
            "batches": self.batches,
            "ended": self.ended,
            **{name: value for name, value in later.items() if value is not None},
            **({_ELSEWHERE: True} if self.elsewhere else {}),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> WorkerState:
        """Make a state of `as_dict`'s values.

        Raises:
            KeyError: a field is missing.
            ValueError: a field has a value that no worker can have had.
        """
        batches, ended = values["batches"], values["ended"]
        later = {name: values.get(name) for name in ("state", "iterator", "canary")}
        if type(batches) is not int or not 0 <= batches <= _MOST_BATCHES:
            raise ValueError(f"batches of a worker must be an integer of 0 to {_MOST_BATCHES}, but it is {batches!r}")
        if type(ended) is not bool or not isinstance(later["canary"], str | None):
            raise ValueError(f"ended and canary of a worker are no bool and no string: {ended!r}, {later['canary']!r}")
        elsewhere = values.get(_ELSEWHERE, False) is True
        return cls(batches, ended, **later, strict=not values.get(LENIENT, False), elsewhere=elsewhere)


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """Where an epoch is begun: the states of all workers, and the number of the one whose turn it is."""

    epoch: int
    turn: int
    states: list[WorkerState]
