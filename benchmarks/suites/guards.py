"""The cost of the checks of `wrap`, by source: steps, states, epochs and resumes with and without them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks.ratios import in_turns, median, ratio
from benchmarks.report import Table

if TYPE_CHECKING:
    from benchmarks.plan import Plan
    from benchmarks.remote import Pool, Remote

__all__ = ["run"]

_SOURCES = (
    ("list", 0),
    ("DataLoader", 0),
    ("DataLoader", 2),
    ("iterable, read again", 0),
    ("iterable with a state", 0),
)
_MEASURES = ("step", "step with a state", "epoch", "resume")
_COLUMNS = ("source", "workers", *(f"us {name}" for name in _MEASURES), *(f"{name} ratio" for name in _MEASURES))
_NOTE = (
    'Times with checks="none", and times with checks="all" divided by them, median of paired turns '
    "(smallest-largest). They are processor time of the training process, without its workers. Samples are integers "
    "that cost nothing, 64 per batch. An epoch is its start, its end and a state there, without its steps. A resume is "
    "from an epoch's end, with a new Loader, to the first batch."
)


def run(plan: Plan, pool: Pool) -> list[Table]:
    """Compare `checks="all"` with `checks="none"`."""
    table = Table('Cost of checks="all"', _COLUMNS, note=_NOTE)
    remotes = {checks: pool[f"guards {checks}"] for checks in ("none", "all")}
    for source, workers in _SOURCES:
        for checks, remote in remotes.items():
            given = {"source": source, "workers": workers, "batches": max(plan.batches // 5, 4), "checks": checks}
            remote.make("benchmarks.tasks_guards:Guarded", **given)
        taken = in_turns(plan.rounds, {checks: partial(_turn, remote) for checks, remote in remotes.items()})
        none, every = (
            {name: [turn[name] for turn in taken[checks]] for name in _MEASURES} for checks in ("none", "all")
        )
        times = (f"{median(none[name]):.1f}" for name in _MEASURES)
        ratios = (str(ratio(every[name], none[name])) for name in _MEASURES)
        table.rows.append((source, str(workers), *times, *ratios))
    return [table]


def _turn(remote: Remote) -> dict[str, float]:
    plain, saving = (remote.call("epoch", saves=saves) for saves in (False, True))
    return {
        "step": plain["step"],
        "step with a state": saving["step"],
        "epoch": plain["epoch"],
        "resume": remote.call("resume"),
    }
