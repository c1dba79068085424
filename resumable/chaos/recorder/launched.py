"""What started a process as a rank: torchrun's agent, which may start its ranks again by itself."""

from __future__ import annotations

import os

__all__ = ["find_agent", "restarts"]


def find_agent() -> int | None:
    """Return the number of the agent's process, as torchrun is one; None for a rank that none has started."""
    return os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None


def restarts() -> int:
    """Return how often the agent has started its ranks again. Each agent counts by itself, and a chaos run has one."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
