"""`resumable flight`: the records of a run as a table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resumable._flight.folder import odd_ones, read

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from resumable._flight.records import BeingRead, FlightRecord

__all__ = ["add_flight"]

_HEAD = ("rank", "epoch", "step", "phase", "global step", "last state", "reading", "since (UTC)", "pid", "process")


def add_flight(commands: Any) -> None:
    """Add `flight` to the commands of a parser."""
    flight = commands.add_parser("flight", help="show where the ranks of a run are, or were when they crashed")
    flight.add_argument("folder", type=Path, help='of wrap(..., flight_recorder="...")')
    flight.set_defaults(act=_show)


def _show(given: Namespace, _: Sequence[str]) -> int:
    records = read(given.folder)
    rows = [_HEAD, *map(_row, records)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += [f"Elsewhere than most: rank {odd.rank}, {odd.status} {odd.where}." for odd in odd_ones(records)]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _row(record: FlightRecord) -> tuple[str, ...]:
    saved = "none" if record.saved is None else str(record.saved)
    numbers = (record.rank, record.epoch, record.step, record.phase, record.global_step, saved)
    reading = ", ".join(map(_reading, record.reading)) or "-"
    return (*map(str, numbers), reading, f"{record.when:%Y-%m-%d %H:%M:%S}", str(record.pid), record.status)


def _reading(one: BeingRead) -> str:
    return str(one.sample) if one.worker is None else f"{one.sample} (worker {one.worker})"
