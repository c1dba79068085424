"""Inside of a watched process: writes down what it does, and lets happen what the plan says.

The environment names the plan, a JSON file:

    {"attempt": 0, "directory": "...", "case": "...",
     "faults": [{"kind": "kill", "rank": 0, "target": "", "point": null, "number": 17}]}

A fault is due when a process of that rank comes by a failpoint for the `number`-th time; where it names a point, by
that one. Points of worker processes are counted in each of them. It happens once in a start of the command, also where
an agent starts its ranks again.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from resumable import failpoints
from resumable._order.world import World
from resumable.chaos.recorder import overlay
from resumable.chaos.recorder.aiming import strike
from resumable.chaos.recorder.events import Writer
from resumable.chaos.recorder.launched import find_agent, restarts
from resumable.chaos.recorder.live import Updates, count_trained
from resumable.chaos.recorder.notes import NOTES, note_point
from resumable.chaos.recorder.refusals import REFUSALS
from resumable.chaos.recorder.saves import Saves, is_in_order, torn

__all__ = ["read_plan", "start"]


_TRAINED = {"loader.state", "loader.epoch_end"}  # points at which a script has trained


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
    overlay.STATE.saves = agent.saves
    os.register_at_fork(after_in_child=agent.become_worker)


class _Agent:
    def __init__(self, plan: dict[str, Any], *, in_worker: bool) -> None:
        self._plan, self._in_worker = plan, in_worker
        self._loaders: list[Any] = []
        self._updates = Updates(self._write, self.stands)
        self._looks, self._wrapped = 3, False
        self.saves = Saves(self, Path(plan["directory"]))
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
        if name == "worker.start" and not self._in_worker:
            self.become_worker()  # one that was spawned: it is no child of anything while it imports this
        self._counts[None] += 1
        self._counts[name] += 1
        if name in REFUSALS:
            REFUSALS[name](self._plan, *about)
        note = NOTES.get(name, note_point)(self, name, *about)
        self.tell(**note, point=name)
        if name in _TRAINED and self._looks and not self._in_worker:
            self._look_for_model()
        for number, fault in enumerate(self._plan["faults"]):
            if self._is_due(fault, name) and not (restarts() and self._mark(number).exists()):
                self._write("fire", fault=number)
                self._mark(number).touch()
                with torn(about[0]) if name == "torch.save.half" else nullcontext():
                    strike(fault)

    def tell(self, kind: str, **fields: Any) -> None:
        """Write down an event."""
        self._write(kind, **fields)
        self._updates.come_by(kind, fields)
        if kind == "wrote":
            self.saves.keep(fields["name"], fields["step"], aside=fields["aside"])

    def _look_for_model(self) -> None:
        """See whether torch trains anything here; a model may be made late."""
        self._looks -= 1
        if (elements := count_trained()) is not None:
            self._looks = 0
            self._write("model", elements=elements)

    def hear(self, name: str, about: tuple[Any, ...]) -> None:
        """Be told of something at which nothing goes wrong."""
        if name in REFUSALS:
            REFUSALS[name](self._plan, *about)
        if name == "loader.wrapped":
            self._wrapped = True
            self._write("wrapped")

    def _mark(self, fault: int) -> Path:
        """Return the file that says that a fault has happened: an agent may start its ranks again in the same start."""
        return Path(self._plan["directory"]) / f"fired-{fault}"

    def _is_due(self, fault: dict[str, Any], name: str) -> bool:
        worker = name.startswith("worker.") and self._in_worker
        if worker != fault["in_worker"] or fault["point"] not in {None, name}:
            return False
        return bool(self._counts[fault["point"]] == fault["number"] and World.detect().rank == fault["rank"])

    def _write(self, kind: str, **fields: Any) -> None:
        if self._ledger is None:
            self._ledger = Writer(Path(self._plan["directory"]), "worker" if self._in_worker else "events")
            self._ledger.write(
                "start", attempt=self._plan["attempt"], restarts=restarts(), agent=find_agent() is not None
            )
        world = World.detect()
        self._ledger.write(kind, number=self._counts[None], rank=world.rank, world=world.size, **fields)

    def number_of(self, loader: Any) -> int:
        """Number the loaders in the order in which they are first seen."""
        for number, known in enumerate(self._loaders):
            if known is loader:
                return number
        self._loaders.append(loader)
        return len(self._loaders) - 1

    def has_loader(self) -> bool:
        """Return whether the script has made a loader, in a process that trains."""
        return self._wrapped and not self._in_worker

    def has_begun(self) -> bool:
        """Return whether a batch was fetched."""
        return self._counts["loader.fetch"] > 0

    def steps(self) -> int | None:
        """Return how far the first loader to train from has come; None where another thread may go on meanwhile."""
        training = (loader for loader in self._loaders if not loader.evaluation)
        return next((int(loader.global_step) for loader in training), 0) if is_in_order() else None

    def stands(self) -> list[dict[str, Any]]:
        """Return where each loader stands, in the order of their numbers."""
        return [loader.cursor.as_dict() for loader in self._loaders]
