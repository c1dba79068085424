"""Inside of a watched process: writes down what it does, and lets happen what the plan says.

The environment names the plan, a JSON file:

    {"attempt": 0, "directory": "...", "faults": [{"kind": "kill", "rank": 0, "point": null, "number": 17}]}

A fault is due when a process of that rank comes by a fault point for the `number`-th time; where it names a point, by
that one. Points of worker processes are counted in each of them.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections import Counter
from pathlib import Path
from typing import Any

from resumable import faults
from resumable.chaos.digest import digest_content, digest_samples
from resumable.chaos.events import Writer
from resumable.chaos.fire import FIRING
from resumable.world import World

__all__ = ["start"]


def start(path: str) -> None:
    """Watch this process, and those that it forks."""
    plan = json.loads(Path(path).read_text())
    agent = _Agent(plan, in_worker=multiprocessing.parent_process() is not None)
    faults.watch(agent.come_by)
    os.register_at_fork(after_in_child=agent.become_worker)


class _Agent:
    def __init__(self, plan: dict[str, Any], *, in_worker: bool) -> None:
        self._plan, self._in_worker = plan, in_worker
        self._loaders: list[Any] = []
        self._begin()

    def _begin(self) -> None:
        self._counts: Counter[str | None] = Counter()
        self._ledger: Writer | None = None

    def become_worker(self) -> None:
        """Count anew, in a file of its own: this process was forked from the watched one."""
        self._in_worker = True
        self._begin()

    def come_by(self, name: str, about: tuple[Any, ...]) -> None:
        """Be told of a fault point."""
        self._counts[None] += 1
        self._counts[name] += 1
        self._write(**_NOTES.get(name, _note_point)(self, name, *about), point=name)
        for number, fault in enumerate(self._plan["faults"]):
            if self._is_due(fault, name):
                self._write("fire", fault=number)
                FIRING[fault["kind"]]()

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


def _note_point(*_: Any) -> dict[str, Any]:
    return {"kind": "point"}


def _note_batch(agent: _Agent, _: str, loader: Any, batch: Any) -> dict[str, Any]:
    return {
        "kind": "batch",
        "loader": agent.number_of(loader),
        **loader.cursor.as_dict(),
        "acked": loader.cursor == loader.acknowledged,
        "indices": _indices(loader),
        "digests": digest_samples(batch),
    }


def _indices(loader: Any) -> list[Any] | None:
    try:
        cursor = loader.cursor
        indices = loader.sample_indices(epoch=cursor.epoch, step=cursor.step - 1, rank=World.detect().rank)
        return [str(index) for index in indices]
    except Exception:  # noqa: BLE001  # sources without indices, and those resized in the middle of an epoch
        return None


def _note_ack(agent: _Agent, _: str, loader: Any) -> dict[str, Any]:
    return {"kind": "ack", "loader": agent.number_of(loader), **loader.acknowledged.as_dict()}


def _note_loaded(agent: _Agent, _: str, loader: Any) -> dict[str, Any]:
    return {"kind": "loaded", "loader": agent.number_of(loader), **loader.acknowledged.as_dict()}


def _root(store: Any) -> str:
    return str(store.root) if "://" in store.root else str(Path(store.root).absolute())


def _note_saved(_: _Agent, __: str, store: Any, step: int, content: Any) -> dict[str, Any]:
    parts = content.items() if isinstance(content, dict) else [("content", content)]
    digests = {str(name): digest_content(part) for name, part in parts if not list(_places(part))}
    return {"kind": "saving", "root": _root(store), "step": step, "places": list(_places(content)), "digests": digests}


def _note_committed(_: _Agent, __: str, store: Any, step: int) -> dict[str, Any]:
    return {"kind": "saved", "root": _root(store), "step": step}


def _note_restored(_: _Agent, __: str, store: Any, step: int | None, ___: Any) -> dict[str, Any]:
    return {"kind": "restored", "root": _root(store), "step": step}


def _note_file(_: _Agent, __: str, path: str) -> dict[str, Any]:
    return {"kind": "file", "path": str(Path(path).absolute())}


def _note_trainer_save(_: _Agent, __: str, trainer: Any, part: Any) -> dict[str, Any]:
    return {"kind": "save", "step": trainer.global_step, "places": list(_places(part))}


def _note_weights(_: _Agent, __: str, trainer: Any) -> dict[str, Any]:
    return {"kind": "weights", "digest": digest_content(trainer.lightning_module.state_dict())}


def _places(content: Any) -> Any:
    """Find the states of Loaders in a checkpoint."""
    if isinstance(content, dict):
        if {"format", "cursor", "global_batch"} <= content.keys():
            yield content["cursor"]
            return
        content = content.values()
    elif not isinstance(content, (list, tuple)):
        return
    for value in content:
        yield from _places(value)


_NOTES: dict[str, Any] = {
    "loader.handed": _note_batch,
    "loader.acked": _note_ack,
    "loader.epoch_end": _note_ack,
    "loader.loaded": _note_loaded,
    "store.save": _note_saved,
    "store.saved": _note_committed,
    "store.loaded": _note_restored,
    "store.written": _note_file,
    "store.synced": _note_file,
    "store.rename": _note_file,
    "store.renamed": _note_file,
    "lightning.save": _note_trainer_save,
    "lightning.end": _note_weights,
}
