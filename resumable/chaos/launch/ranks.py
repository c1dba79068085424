"""A command that starts several ranks: there may be an agent above them, and ranks may wait for a dead one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from resumable.chaos.recorder.events import read_events

if TYPE_CHECKING:
    from pathlib import Path

    from resumable.chaos.plan import Fault

__all__ = ["SHARED_STORE", "SURVIVE", "environment_of_agents", "wait_for_the_dead"]

SHARED_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
SURVIVE = {"agent", "all"}  # targets whose ranks may live on: they are killed at once, as by a job's scheduler
_PATIENCE = 10.0  # seconds without any sign of life of ranks that have lost one


def environment_of_agents() -> dict[str, str]:
    """Return what torchrun needs to start ranks again.

    Without it they read the addresses of the dead ones from the store that torchrun shares with them, and cannot
    connect: https://github.com/pytorch/pytorch/issues/135712. A value that is set already counts.
    """
    return {SHARED_STORE: os.environ.get(SHARED_STORE, "1")}


def wait_for_the_dead(fault: Fault | None, silent: float, ledgers: Path) -> str:
    """Say why a command has to be killed whose ranks wait for one that was killed, as a collective does for minutes.

    An agent ends such ranks, and may start them again, which takes its time. Without one nothing else does.

    Args:
        fault: of this start.
        silent: seconds without any sign of life.
        ledgers: their directory.
    """
    if fault is None or fault.kind != "kill" or silent <= _PATIENCE:
        return ""
    if not any(b'"fire"' in path.read_bytes() for path in ledgers.glob("events-*.jsonl")):
        return ""
    events = [event for path in ledgers.glob("events-*.jsonl") for event in read_events(path)[0]]
    struck = any(event["kind"] == "fire" and event["world"] > 1 for event in events)
    alone = not any(event.get("agent") for event in events)
    return f"a rank was killed, and the others gave no sign of life for {_PATIENCE:.0f} s" if struck and alone else ""
