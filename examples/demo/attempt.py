"""The record of one training process, from its start or resume to its end or kill."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from .ledger import read_events

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["Attempt", "Place", "Trained", "make_attempt", "read_attempt"]


class Place(NamedTuple):
    """An epoch, and a number of batches in it."""

    epoch: int
    step: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.step:02d}"


class Trained(NamedTuple):
    """A batch that was trained on: the loader's position after it, and a digest of its bytes."""

    place: Place
    digest: str

    def __str__(self) -> str:
        return f"{self.digest} at {self.place}"


_START = Place(0, 0)


@dataclass
class Attempt:
    """The record of one process. A *count* is the number of batches in the weights, over the whole run.

    Args:
        resumed: count at its start.
        begun: the loader's position at its start.
        started: time in seconds just before it loaded its state.
        received: time at which it had its first batch; None if it was killed before.
        batches: the batches that it trained on, by count.
        saves: counts at which a checkpoint was saved.
        state_bytes: size of the largest loader state in a checkpoint.
        epoch_ends: counts at which evaluations started.
        evaluations: their results, in order, each with the number of its epoch.
        scores: the evaluations of the whole run in the last checkpoint; empty before the end.
        weights: digest of the final weights; None before the end.
    """

    resumed: int = 0
    begun: Place = _START
    started: float = 0.0
    received: float | None = None
    batches: dict[int, Trained] = field(default_factory=dict)
    saves: list[int] = field(default_factory=list)
    state_bytes: int = 0
    epoch_ends: list[int] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    scores: list[dict[str, Any]] = field(default_factory=list)
    weights: str | None = None

    @property
    def ended(self) -> bool:
        """Whether it finished the training."""
        return self.weights is not None

    @property
    def milliseconds(self) -> float | None:
        """Time from loading the state to the first batch; None if it was killed before."""
        return None if self.received is None else 1000 * (self.received - self.started)

    @property
    def last(self) -> int:
        """Count at its end or kill, as far as it was recorded."""
        return max(self.batches, default=self.resumed)

    @property
    def stopped(self) -> Place:
        """The loader's position at that count."""
        return self.batches[self.last].place if self.batches else self.begun

    def add(self, event: dict[str, Any]) -> None:
        """Add an event of the ledger."""
        match event["kind"]:
            case "start":
                self.started = event["time"]
            case "begin":
                self.resumed, self.begun = event["count"], _place(event)
            case "received" if self.received is None:
                self.received = event["time"]
            case "batch":
                self.batches[event["count"]] = Trained(_place(event), event["digest"])
            case "save":
                self.saves.append(event["count"])
                self.state_bytes = max(self.state_bytes, event["state_bytes"])
            case "epoch-end":
                self.epoch_ends.append(event["count"])
            case "evaluation":
                self.evaluations.append(event["score"])
            case "end":
                self.weights, self.scores = event["weights"], event["scores"]


def make_attempt(events: Iterable[dict[str, Any]]) -> Attempt:
    """Gather the events of an attempt."""
    attempt = Attempt()
    for event in events:
        attempt.add(event)
    return attempt


def read_attempt(path: Path) -> Attempt:
    """Read the ledger of an attempt."""
    return make_attempt(read_events(path)[0])


def _place(event: dict[str, Any]) -> Place:
    return Place(event["epoch"], event["step"])
