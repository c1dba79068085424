"""Images per second of DALI with our sampler against DALI's own reader, with the same graph."""

from __future__ import annotations

import tempfile
import time
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.ratios import in_turns, median, ratio
from benchmarks.report import Table

if TYPE_CHECKING:
    from benchmarks.plan import Plan
    from benchmarks.remote import Pool, Remote

__all__ = ["run"]

_SIZES = ((100, 100), (500, 375))  # width and height
_BATCH, _TARGET, _TURNS = 32, 0.92, 4  # a turn takes this many times as long as in the other suites
_LABELS = {
    "paths": "files, read by DALI",
    "dataset": "a dataset of bytes, read in this process",
    "workers": "a dataset of bytes, read by a worker",
}
_NOTE = (
    "Ratio: images per second / fn.readers.file, median of paired turns (smallest-largest). Both decode, resize to 64 "
    "by 64, and shuffle, with two threads and batches of 32. Processor time covers all threads of the training "
    "process."
)


def run(plan: Plan, pool: Pool) -> list[Table]:
    """Compare the ways to read with DALI's reader."""
    columns = (
        "source",
        "image",
        "images/s reader",
        "images/s ours",
        "ratio",
        "ratio by processor time",
        "target",
        "reached",
    )
    table = Table("DALI with our sampler against fn.readers.file", columns, note=_NOTE)
    for width, height in _SIZES:
        with tempfile.TemporaryDirectory() as folder:
            remotes = {name: pool[name] for name in ("reader", *_LABELS)}
            taken = _measure(plan, remotes, folder, width, height)
            table.rows += [_row(name, f"{width} x {height}", taken["reader"], taken[name]) for name in _LABELS]
    return [table]


def _measure(
    plan: Plan, remotes: dict[str, Remote], folder: str, width: int, height: int
) -> dict[str, list[dict[str, float]]]:
    for name, remote in remotes.items():
        remote.make(
            "benchmarks.tasks_dali_elastic:Images", name=name, folder=folder, width=width, height=height, batch=_BATCH
        )
    return in_turns(plan.rounds, {name: partial(_turn, plan, remote) for name, remote in remotes.items()})


def _turn(plan: Plan, remote: Remote) -> dict[str, float]:
    taken: dict[str, float] = remote.call(
        "turn", batches=plan.batches, seconds=_TURNS * plan.seconds, lead=min(plan.lead, 8)
    )
    time.sleep(plan.pause)
    return taken


def _row(name: str, size: str, reader: list[dict[str, float]], ours: list[dict[str, float]]) -> tuple[str, ...]:
    wall, processor = (
        ratio([turn[clock] for turn in reader], [turn[clock] for turn in ours]) for clock in ("wall", "processor")
    )
    target = name == "paths"
    return (
        _LABELS[name],
        size,
        *(f"{_BATCH / median([turn['wall'] for turn in turns]) * 1e6:,.0f}" for turns in (reader, ours)),
        str(wall),
        str(processor),
        f">= {_TARGET:.2f}" if target else "none",
        wall.at_least(_TARGET) if target else "",
    )
