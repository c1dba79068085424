"""Runs inside an observed process: records its actions, and injects the faults of the plan.

The environment contains the path of the plan, a JSON file:

    {"attempt": 0, "directory": "...", "case": "...",
     "faults": [{"kind": "kill", "rank": 0, "target": "", "point": null, "number": 17}]}

A fault is due when a process of that rank passes its `number`-th failpoint; with a `point`, its `number`-th failpoint
of that name. Each worker process counts its own failpoints. A fault happens once per launch, even if an agent restarts
the ranks.
"""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import resource
import signal
import time
from collections import Counter
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resumable import failpoints
from resumable._order.world import World
from resumable._processes import living_members
from resumable.chaos.ledger import Writer
from resumable.chaos.recorder import guard
from resumable.chaos.recorder.guard import GUARD
from resumable.chaos.recorder.guard.writers import is_remote, refuse_remote
from resumable.chaos.recorder.notes import NOTES, Updates, count_trained, note_point
from resumable.chaos.recorder.saves import Saves, is_in_order, torn
from resumable.failpoints import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import NoReturn


__all__ = ["read_plan", "restarts", "start", "strike"]


_TRAINED = {"loader.state", "loader.epoch_end"}  # failpoints after which a script has trained


def read_plan(path: str) -> dict[str, Any]:
    """Read a plan.

    Raises:
        OSError: it does not exist.
        ValueError: it is not a plan.
    """
    plan = json.loads(Path(path).read_text())
    if not isinstance(plan, dict) or not plan.keys() >= {"attempt", "directory", "case", "faults"}:
        raise ValueError("required keys are missing")
    return plan


def start(path: str, plan: dict[str, Any]) -> None:
    """Observe this process and its forks."""
    guard.start(path)
    agent = _Agent(plan, in_worker=multiprocessing.parent_process() is not None)
    failpoints.watch(agent.come_by, agent.hear)
    GUARD.saves = agent.saves
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
        """Start counting again in a separate file: this process was forked from the observed one."""
        self._in_worker = True
        self._begin()

    def come_by(self, name: str, about: tuple[Any, ...]) -> None:
        """Handle a failpoint."""
        if name == "worker.start" and not self._in_worker:
            self.become_worker()  # a spawned worker has no parent process while it imports this module
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
        """Record an event."""
        self._write(kind, **fields)
        self._updates.come_by(kind, fields)
        if kind == "wrote":
            self.saves.keep(fields["name"], fields["step"], aside=fields["aside"])

    def _look_for_model(self) -> None:
        """Check whether PyTorch trains a model here; it may be created late."""
        self._looks -= 1
        if (elements := count_trained()) is not None:
            self._looks = 0
            self._write("model", elements=elements)

    def hear(self, name: str, about: tuple[Any, ...]) -> None:
        """Handle an event that is not a failpoint."""
        if name in REFUSALS:
            REFUSALS[name](self._plan, *about)
        if name == "loader.wrapped":
            self._wrapped = True
            self._write("wrapped")

    def _mark(self, fault: int) -> Path:
        """Return the file that marks a fault as done, because an agent may restart its ranks in the same launch."""
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
        """Return the number of a loader, in the order in which they are first seen."""
        for number, known in enumerate(self._loaders):
            if known is loader:
                return number
        self._loaders.append(loader)
        return len(self._loaders) - 1

    def has_loader(self) -> bool:
        """Return whether the script has created a loader, in a process that trains."""
        return self._wrapped and not self._in_worker

    def has_begun(self) -> bool:
        """Return whether a batch was fetched."""
        return self._counts["loader.fetch"] > 0

    def steps(self) -> int | None:
        """Return the global step of the first loader that is trained on; None in a thread other than the loop's."""
        training = (loader for loader in self._loaders if not loader.evaluation)
        return next((int(loader.global_step) for loader in training), 0) if is_in_order() else None

    def stands(self) -> list[dict[str, Any]]:
        """Return the position of each loader, in the order of their numbers."""
        return [loader.cursor.as_dict() for loader in self._loaders]


# Injects a fault into the process at the failpoint, the agent that started it, or all processes.

_SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM}


def strike(fault: Mapping[str, Any]) -> None:
    """Inject a fault.

    Args:
        fault: from `Fault.as_plan`. Only signals reach processes other than this one.
    """
    target, above = fault.get("target", ""), find_agent()
    if target == "agent" and above is not None:
        _send(_SIGNALS[fault["kind"]], [above])
        return
    if target == "all":
        _send(_SIGNALS[fault["kind"]], [above] if above is not None else [])  # first, or it would inform the others
        others = living_members(0, f"{VARIABLE}={os.environ.get(VARIABLE, '')}")
        _send(_SIGNALS[fault["kind"]], (one for one in others if one not in {above, os.getpid()}))
    FIRING[fault["kind"]]()


def _send(number: signal.Signals, processes: Iterable[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


# The faults that a process injects into itself at a failpoint.

_LONG = 3600.0  # seconds: processes that wait this long are killed
_SLOW = 0.5  # seconds
_DAY = 86400.0  # seconds
_SPARE = 1 << 20  # bytes that can still be allocated when memory runs out


class ChaosError(RuntimeError):
    """A chaos run raises it on purpose."""


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _hang() -> None:
    end = time.monotonic() + _LONG
    while time.monotonic() < end:
        time.sleep(1.0)


def _raise() -> None:
    raise ChaosError("an exception, raised on purpose")


def _run_out_of_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _SPARE, resource.RLIM_INFINITY))
    bytearray(2 * _SPARE)  # raises a MemoryError


def _fail_storage() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def _fill_storage() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _slow_down() -> None:
    time.sleep(_SLOW)


def _turn_clock(by: float) -> None:
    original = time.time
    time.time = lambda: original() + by


FIRING: dict[str, Callable[[], None]] = {
    "kill": _kill,
    "term": _terminate,
    "stop": _stop,
    "hang": _hang,
    "raise": _raise,
    "oom": _run_out_of_memory,
    "eio": _fail_storage,
    "enospc": _fill_storage,
    "slow": _slow_down,
    "clock-forward": lambda: _turn_clock(_DAY),
    "clock-back": lambda: _turn_clock(-_DAY),
}


# Stops a process that would resume a real run outside its case.
#
# Nothing would be lost. But each launch would resume from there, and resuming from its own checkpoints would not be
# tested.

_INSTEAD = (
    "Each launch would resume from there, so its own checkpoints would not be tested. For this test, use a relative "
    "checkpoint path, which leads into the case, or {dir}."
)


def _refuse_remote_store(_: Any, root: str, filesystem: Any, __: str) -> None:
    """Reject a remote store."""
    if is_remote(filesystem):
        refuse_remote(root)


def _refuse_real_steps(_: Any, store: Any) -> None:
    """Reject loading from a store outside the case."""
    from resumable.checkpoint.steps import Steps  # noqa: PLC0415  # already imported if there is a store

    if "://" in store.root or GUARD.holds(os.path.realpath(store.root)):
        return
    if steps := list(Steps(store.root, {}).committed()):
        which = f"step {steps[-1]}" if len(steps) == 1 else f"{len(steps)} checkpoints, the newest of step {max(steps)}"
        _refuse(f"the command loads from {store.root}, which contains a real run outside its case: {which}")


def _refuse_real_state(plan: dict[str, Any], *_: Any) -> None:
    """Reject a loader's state before any was saved in this case: it can only belong to another run."""
    if plan["attempt"] == 0 and not _has_taken_a_state(Path(plan["directory"])):
        last = f" The last file that it read outside its case: {GUARD.recent}" if GUARD.recent else ""
        _refuse(
            "the command loads a loader's state in its first launch, before saving one, so it belongs to a real run",
            f" To start at a position on purpose, use loader.seek(...).{last}",
        )


def _has_taken_a_state(ledgers: Path) -> bool:
    kinds = (b'"kind": "state"', b'"kind": "save"')
    return any(kind in path.read_bytes() for path in ledgers.glob("*.jsonl") for kind in kinds)


def _refuse_real_checkpoint(_: Any, trainer: Any) -> None:
    """Reject a Trainer that resumes from a file that this case did not write."""
    path = trainer.ckpt_path
    if path and "://" not in str(path) and not GUARD.holds(os.path.realpath(path)) and Path(path).exists():
        _refuse(f"the Trainer resumes from {path}, which belongs to a real run outside its case")


def _refuse(what: str, more: str = "") -> NoReturn:
    GUARD.refuse(f"{what}.\n  the case: {GUARD.case}\n{_INSTEAD}{more}")


REFUSALS: dict[str, Callable[..., None]] = {
    "store.opened": _refuse_remote_store,
    "store.load": _refuse_real_steps,
    "loader.load": _refuse_real_state,
    "lightning.load": _refuse_real_checkpoint,
}


# The process that started this one as a rank: torchrun's agent, which may restart its ranks.


def find_agent() -> int | None:
    """Return the process id of the agent, such as torchrun; None if this rank has none."""
    return os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None


def restarts() -> int:
    """Return how often the agent has restarted its ranks. Each agent counts separately; a chaos run has one."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
