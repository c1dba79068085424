"""FFCV: images per second with keyed operations against the plain Loader, and the time to the first batch."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.ratios import in_turns, median, ratio
from benchmarks.remote import Remote
from benchmarks.report import Table

if TYPE_CHECKING:
    from benchmarks.plan import Plan
    from benchmarks.remote import Pool

__all__ = ["run"]

_LARGE = 128
_CASES = [(mode, size, workers) for mode, size in (("jpg", _LARGE), ("raw", _LARGE), ("raw", 32)) for workers in (1, 2)]
_COLUMNS = ("file", "pixels", "workers", "images/s plain", "images/s wrapped", "ratio", "by processor time", "reached")
_NOTE = (
    "Random crop, flip, cutout and translation. Ratio: images per second wrapped / plain, median of paired epochs "
    "(smallest-largest); target >= 0.95."
)
_STARTS = ("workers", "s plain", "s wrapped")
_TASK = "benchmarks.tasks_ffcv:Epochs"


def run(plan: Plan, pool: Pool) -> list[Table]:
    """Compare epochs in turns, and first batches in fresh processes."""
    table = Table("FFCV: throughput of keyed operations", _COLUMNS, note=_NOTE)
    fewest = max(50, min(2000, plan.batches * 4))
    for mode, size, workers in _CASES if plan.every else _CASES[:1]:
        remote = pool["ffcv"]
        images = fewest if size == _LARGE else fewest * 5  # with small ones, an epoch would take only milliseconds
        remote.make(_TASK, mode=mode, workers=workers, images=images, size=size)
        measures = {wrapped: partial(remote.call, "epoch", wrapped=wrapped) for wrapped in (False, True)}
        in_turns(1, measures)
        taken = in_turns(plan.rounds, measures)
        table.rows.append(_row((mode, str(size), str(workers)), images, taken[False], taken[True]))
    return [table, _starts(fewest, (1, 2) if plan.every else (1,))]


def _row(case: tuple[str, ...], images: int, plain: list[Any], ours: list[Any]) -> tuple[str, ...]:
    walls = [[each["wall"] for each in taken] for taken in (plain, ours)]
    processors = [[each["processor"] for each in taken] for taken in (plain, ours)]
    compared = ratio(walls[0], walls[1])
    rates = [f"{images / median(wall):,.0f}" for wall in walls]
    return (*case, *rates, str(compared), str(ratio(processors[0], processors[1])), compared.at_least(0.95))


def _starts(images: int, numbers: tuple[int, ...]) -> Table:
    table = Table("FFCV: time to the first batch", _STARTS, note="A fresh process each, after all imports.")
    for workers in numbers:
        seconds = [_first(images, workers, wrapped=wrapped) for wrapped in (False, True)]
        table.rows.append((str(workers), *(f"{value:.1f}" for value in seconds)))
    return table


def _first(images: int, workers: int, *, wrapped: bool) -> float:
    with Remote() as remote:
        remote.make(_TASK, mode="jpg", workers=workers, images=images, size=128)
        return float(remote.call("first", wrapped=wrapped))
