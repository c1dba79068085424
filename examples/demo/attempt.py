"""What one training process did, from its start or resume to its end or kill."""

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
    """A batch that was trained on: where the loader stood after it, and a digest of its bytes."""

    place: Place
    digest: str

    def __str__(self) -> str:
        return f"{self.digest} at {self.place}"


_START = Place(0, 0)


@dataclass
class Attempt:
    """What one process did. A *count* is a number of batches in the weights, over the whole run.

    Args:
        resumed: count at its beginning.
        begun: where the loader stood then.
        started: time in seconds at which it was about to load its state.
        received: time at which it had its first batch; None where it was killed before.
        batches: what it trained on, by count.
        saves: counts at which a checkpoint was saved.
        state_bytes: size of the largest loader state in a checkpoint.
        epoch_ends: counts at which evaluations began.
        evaluations: what they gave, in order, each with the number of its epoch.
        scores: the evaluations that the last checkpoint carried, of the whole run; empty before the end.
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
        """Whether it came to the end of the training."""
        return self.weights is not None

    @property
    def milliseconds(self) -> float | None:
        """How long the first batch took, from loading the state on; None where it was killed before."""
        return None if self.received is None else 1000 * (self.received - self.started)

    @property
    def last(self) -> int:
        """Count at its end or kill, as far as it was written down."""
        return max(self.batches, default=self.resumed)

    @property
    def stopped(self) -> Place:
        """Where the loader stood then."""
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
