"""Measures contenders alternately, each in its process."""

from __future__ import annotations

import time
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.ratios import in_turns

if TYPE_CHECKING:
    from benchmarks.case import Case
    from benchmarks.plan import Plan
    from benchmarks.remote import Remote

__all__ = ["get_ready", "read_in_turns", "wait_in_turns"]

_WARM = 50


def read_in_turns(plan: Plan, case: Case, remotes: dict[str, Remote]) -> dict[str, dict[str, list[float]]]:
    """Let contenders read the same case.

    Returns:
        For each contender the µs per batch in every round: `wall` and `processor`.
    """
    for name, remote in remotes.items():
        remote.make("benchmarks.tasks:Throughput", name=name, case=asdict(case), warm=min(_WARM, plan.batches))
    taken = in_turns(plan.rounds, {name: partial(_turn, plan, remote) for name, remote in remotes.items()})
    return {
        name: {clock: [turn[clock] for turn in turns] for clock in ("wall", "processor")}
        for name, turns in taken.items()
    }


def _turn(plan: Plan, remote: Remote) -> dict[str, float]:
    turn: dict[str, float] = remote.call("turn", batches=plan.batches, seconds=plan.seconds, lead=plan.lead)
    time.sleep(plan.pause)
    return turn


def get_ready(case: Case, remotes: dict[str, Remote], step: int = 0) -> None:
    """Give every contender a state after `step` batches, and let each wait for a first batch once, without counting."""
    for name, remote in remotes.items():
        remote.make("benchmarks.tasks:FirstBatch", name=name, case=asdict(case), step=step)
        remote.call("wait", resume=False)
        remote.call("wait", resume=True)


def wait_in_turns(rounds: int, remotes: dict[str, Remote], *, resume: bool) -> dict[str, list[float]]:
    """Return for each contender the milliseconds to the first batch in every round; they must be prepared."""
    return in_turns(rounds, {name: partial(remote.call, "wait", resume=resume) for name, remote in remotes.items()})
