"""Lets a fault happen to the process that comes by its point, to the agent that started it, or to all processes."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from resumable.chaos.launch.processes import living_members
from resumable.chaos.recorder.fire import FIRING
from resumable.chaos.recorder.launched import find_agent
from resumable.failpoints import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["strike"]

_SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM}


def strike(fault: Mapping[str, Any]) -> None:
    """Let a fault happen.

    Args:
        fault: as `Fault.as_plan` returns it. Only signals reach other processes than this one.
    """
    target, above = fault.get("target", ""), find_agent()
    if target == "agent" and above is not None:
        _send(_SIGNALS[fault["kind"]], [above])
        return
    if target == "all":
        _send(_SIGNALS[fault["kind"]], [above] if above is not None else [])  # first of all: it would tell the others
        others = living_members(0, f"{VARIABLE}={os.environ.get(VARIABLE, '')}")
        _send(_SIGNALS[fault["kind"]], (one for one in others if one not in {above, os.getpid()}))
    FIRING[fault["kind"]]()


def _send(number: signal.Signals, processes: Iterable[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)
