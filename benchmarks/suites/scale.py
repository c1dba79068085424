"""Costs as work grows: samples to 10¹², workers to 16, ranks to 100,000."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.report import Table

if TYPE_CHECKING:
    from benchmarks.plan import Plan
    from benchmarks.remote import Pool

__all__ = ["run"]

_SAMPLES = ("samples", "us per step", "ms to the first batch at 90 %", "bytes of a state", "MB that it took")
_WORKERS = ("workers", "us of the training process per batch", "MB of the training process", "MB of a worker")
_RANKS = ("ranks", "ms to a rank's first batch", "us per step of a rank", "bytes of the state", "kB of a rank's loader")


def run(plan: Plan, pool: Pool) -> list[Table]:
    """Measure each in a separate process."""
    return [_samples(plan, pool), _workers(plan, pool), _ranks(plan, pool)]


def _samples(plan: Plan, pool: Pool) -> Table:
    table = Table(
        "As the dataset grows",
        _SAMPLES,
        note="wrap() over a sequence, batches of 64, shuffled; processor time of the only process.",
    )
    remote = pool["scale of samples"]
    remote.make("benchmarks.tasks_scale:Samples")
    for power in range(4, 13) if plan.every else (4, 12):
        found = remote.call("measure", length=10**power, steps=plan.batches)
        table.rows.append(
            (
                f"1e+{power:02}",
                f"{found['us']:.1f}",
                f"{found['ms']:.2f}",
                f"{found['bytes']:.0f}",
                f"{found['MB']:.1f}",
            )
        )
    return table


def _workers(plan: Plan, pool: Pool) -> Table:
    note = "wrap(DataLoader) over 10¹² integers, batches of 64. Memory is what no other process shares."
    table = Table("As the workers grow", _WORKERS, note=note)
    for workers in (0, 1, 2, 4, 8, 16) if plan.every else (2,):
        remote = pool[f"scale of {workers} workers"]
        remote.make("benchmarks.tasks_scale:Workers", name="sample")
        found = remote.call("measure", length=plan.large * 1000, workers=workers, batches=plan.batches)
        table.rows.append(
            (str(workers), f"{found['us']:.0f}", f"{found['own']:.1f}", f"{found['worker']:.1f}" if workers else "")
        )
        remote.rest()
    return table


def _ranks(plan: Plan, pool: Pool) -> Table:
    remote = pool["scale of ranks"]
    remote.make("benchmarks.tasks_scale:Ranks")
    sizes = (1, 10, 100, 1000, 10_000, 100_000) if plan.every else (1, 100)
    agreed = remote.call("agree", size=sizes[-1])
    note = (
        "10¹² samples, batches of 64 per rank; processor time. Each rank is its real loader, with the same state, one "
        f"after another in one process; up to 100 of them. All {agreed:,} ranks listed their samples of one step: "
        "together they are the global batch, in its order."
    )
    table = Table("As the ranks grow", _RANKS, note=note)
    for size in sizes:
        found = remote.call("measure", size=size, sample=100)
        table.rows.append(
            (f"{size}", f"{found['ms']:.2f}", f"{found['us']:.1f}", f"{found['bytes']:.0f}", f"{found['kB']:.0f}")
        )
    return table
