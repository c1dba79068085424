"""Reads the ledgers of one start of the command: what its ranks and workers did, and what happened to its files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from resumable.chaos.recorder.events import read_events
from resumable.chaos.recorder.logs import RankLog

if TYPE_CHECKING:
    from pathlib import Path

    from resumable.chaos.launch.inventory import Left
    from resumable.chaos.recorder.logs import Batch, Place

__all__ = ["Attempt", "InPlace", "read_attempts"]


class InPlace(NamedTuple):
    """A file that was written in place.

    Args:
        first: time of the first write.
        over: an older content was lost by it, in that or a later one.
    """

    first: float
    over: bool = False


@dataclass
class Attempt:
    """One start of the ranks, by the command or by an agent in it, such as torchrun, which restarts them.

    Args:
        number: from 0.
        ranks: what each rank did, by rank.
        workers: names of the failpoints that each worker process came by.
        fired: whether its fault happened.
        status: exit status of the command, negative for a signal.
        killed: why the harness killed it, where it did.
        orphans: processes that it left behind.
        unloadable: committed checkpoints that cannot be loaded after it, in words.
        output: what it printed, its end.
        written: what was redirected into the case's directory, by its own path.
        read: files outside of it that `torch.load` read.
        in_place: files of the case that were written under their own names, by their paths in it.
        read_in_place: when it first read those that an earlier start wrote so.
        refused: why a process ended itself before it had done harm.
        left: the files that the last start of a case left.
        leg: number of the command's start in its case; the number of this one where no agent restarts ranks.
        restarts: how often the agent had restarted its ranks by then.
    """

    number: int
    ranks: dict[int, RankLog] = field(default_factory=dict)
    workers: list[list[str]] = field(default_factory=list)
    fired: bool = False
    status: int | None = None
    killed: str = ""
    orphans: list[int] = field(default_factory=list)
    unloadable: list[str] = field(default_factory=list)
    output: str = ""
    written: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    in_place: dict[str, InPlace] = field(default_factory=dict)
    read_in_place: dict[str, float] = field(default_factory=dict)
    refused: str = ""
    left: Left | None = None
    leg: int = -1
    restarts: int = 0

    def __post_init__(self) -> None:
        if self.leg < 0:
            self.leg = self.number

    @property
    def watched(self) -> bool:
        """Whether any process of it imported resumable."""
        return bool(self.ranks)

    def trained(self) -> dict[tuple[int, Place], dict[int, Batch]]:
        """Return what each rank trained on, by loader and place.

        One rank that acknowledges a step speaks for all: it has what each of them was delivered. Another one may be
        killed before it says so itself.
        """
        acked = {key for log in self.ranks.values() for key in log.trained()}
        steps: dict[tuple[int, Place], dict[int, Batch]] = {}
        for rank, log in sorted(self.ranks.items()):
            for key, batch in log.batches.items():
                if key in acked:
                    steps.setdefault(key, {})[rank] = batch
        return steps


def read_attempts(directory: Path, number: int, leg: int = -1) -> list[Attempt]:
    """Read the ledgers of one start of the command: an attempt for each time that its ranks were started.

    Args:
        directory: of the ledgers.
        number: of the first attempt.
        leg: number of the command's start.
    """
    ledgers: dict[int, list[_Ledger]] = {}
    for path in [*directory.glob("worker-*.jsonl"), *directory.glob("events-*.jsonl")]:
        if events := read_events(path)[0]:
            ledgers.setdefault(events[0].get("restarts", 0), []).append(
                _Ledger(path.stat().st_mtime, path.name, events)
            )
    attempts = [
        _read_attempt(Attempt(one, leg=number if leg < 0 else leg, restarts=restarts), sorted(ledgers[restarts]))
        for one, restarts in enumerate(sorted(ledgers), start=number)
    ] or [Attempt(number, leg=leg)]
    for path in directory.glob("outside-*.jsonl"):
        _add_outside(attempts[-1], path)
    return attempts


class _Ledger(NamedTuple):
    changed: float
    name: str
    events: list[dict[str, Any]]


def _read_attempt(attempt: Attempt, ledgers: list[_Ledger]) -> Attempt:
    for _, name, events in ledgers:
        if name.startswith("worker-"):
            attempt.workers.append([event["point"] for event in events if "point" in event])
            attempt.fired |= any(event["kind"] == "fire" for event in events)
            continue
        rank = events[-1].get("rank", 0)  # known from the process group on
        log = attempt.ranks.setdefault(rank, RankLog(rank, events[-1].get("world", 1)))
        for event in events:
            log.add(event)
        attempt.fired |= bool(log.fired)
    return attempt


def _add_outside(attempt: Attempt, path: Path) -> None:
    for event in read_events(path)[0]:
        if event["kind"] == "refused":
            attempt.refused = attempt.refused or event["why"]
        elif event["kind"] == "in place":
            known = attempt.in_place.get(event["path"], InPlace(event["time"]))
            over = known.over or event["over"]
            attempt.in_place[event["path"]] = InPlace(min(known.first, event["time"]), over)
        elif event["kind"] == "read in place":
            first = attempt.read_in_place.get(event["path"], event["time"])
            attempt.read_in_place[event["path"]] = min(first, event["time"])
        else:
            (attempt.written if event["kind"] == "written" else attempt.read).add(event["path"])
