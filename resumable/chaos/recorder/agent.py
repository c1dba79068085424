"""Inside of a watched process: writes down what it does, and lets happen what the plan says.

The environment names the plan, a JSON file:

    {"attempt": 0, "directory": "...", "case": "...",
     "faults": [{"kind": "kill", "rank": 0, "point": null, "number": 17}]}

A fault is due when a process of that rank comes by a failpoint for the `number`-th time; where it names a point, by
that one. Points of worker processes are counted in each of them.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections import Counter
from pathlib import Path
from typing import Any

from resumable import failpoints
from resumable._order.world import World
from resumable.chaos.recorder import overlay
from resumable.chaos.recorder.events import Writer
from resumable.chaos.recorder.fire import FIRING
from resumable.chaos.recorder.live import Updates
from resumable.chaos.recorder.notes import NOTES, note_point
from resumable.chaos.recorder.refusals import REFUSALS

__all__ = ["read_plan", "start"]


def read_plan(path: str) -> dict[str, Any]:
    """Read a plan.

    Raises:
        OSError: it is not there.
        ValueError: it is none.
    """
    plan = json.loads(Path(path).read_text())
    if not isinstance(plan, dict) or not plan.keys() >= {"attempt", "directory", "case", "faults"}:
        raise ValueError("it has not what a plan has")
    return plan


def start(path: str, plan: dict[str, Any]) -> None:
    """Watch this process, and those that it forks."""
    overlay.start(path)
    agent = _Agent(plan, in_worker=multiprocessing.parent_process() is not None)
    failpoints.watch(agent.come_by, agent.hear)
    os.register_at_fork(after_in_child=agent.become_worker)


class _Agent:
    def __init__(self, plan: dict[str, Any], *, in_worker: bool) -> None:
        self._plan, self._in_worker = plan, in_worker
        self._loaders: list[Any] = []
        self._updates = Updates(self._write, self.stands)
        self._begin()

    def _begin(self) -> None:
        self._counts: Counter[str | None] = Counter()
        self._ledger: Writer | None = None

    def become_worker(self) -> None:
        """Count again, in a file of its own: this process was forked from the watched one."""
        self._in_worker = True
        self._begin()

    def come_by(self, name: str, about: tuple[Any, ...]) -> None:
        """Be told of a failpoint."""
        self._counts[None] += 1
        self._counts[name] += 1
        if name in REFUSALS:
            REFUSALS[name](self._plan, *about)
        note = NOTES.get(name, note_point)(self, name, *about)
        self._write(**note, point=name)
        self._updates.come_by(note["kind"], note)
        for number, fault in enumerate(self._plan["faults"]):
            if self._is_due(fault, name):
                self._write("fire", fault=number)
                FIRING[fault["kind"]]()

    def hear(self, name: str, about: tuple[Any, ...]) -> None:
        """Be told of something at which nothing goes wrong."""
        if name in REFUSALS:
            REFUSALS[name](self._plan, *about)
        if name == "loader.wrapped":
            self._write("wrapped")

    def _is_due(self, fault: dict[str, Any], name: str) -> bool:
        worker = name.startswith("worker.") and self._in_worker
        if worker != fault["in_worker"] or fault["point"] not in {None, name}:
            return False
        return bool(self._counts[fault["point"]] == fault["number"] and World.detect().rank == fault["rank"])

    def _write(self, kind: str, **fields: Any) -> None:
        if self._ledger is None:
            self._ledger = Writer(Path(self._plan["directory"]), "worker" if self._in_worker else "events")
            self._ledger.write("start", attempt=self._plan["attempt"])
        world = World.detect()
        self._ledger.write(kind, number=self._counts[None], rank=world.rank, world=world.size, **fields)

    def number_of(self, loader: Any) -> int:
        """Number the loaders in the order in which they are first seen."""
        for number, known in enumerate(self._loaders):
            if known is loader:
                return number
        self._loaders.append(loader)
        return len(self._loaders) - 1

    def stands(self) -> list[dict[str, Any]]:
        """Return where each loader stands, in the order of their numbers."""
        return [loader.cursor.as_dict() for loader in self._loaders]
