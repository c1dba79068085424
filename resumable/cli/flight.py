"""`resumable flight`: the records of a run as a table."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resumable._flight.folder import odd_ones, read
from resumable.cli.show import Help, columns, print_json, wrapped

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from resumable._flight.records import BeingRead, FlightRecord

__all__ = ["add_flight"]

_HEAD = ("rank", "epoch", "step", "phase", "global step", "last state", "reading", "since (UTC)", "pid", "process")


def add_flight(commands: Any) -> None:
    """Add `flight` to the commands of a parser."""
    flight = commands.add_parser(
        "flight",
        help="show where the ranks of a run are, or were when they crashed",
        epilog="exit status: 0, or 2 if there is no record.",
        formatter_class=Help,
    )
    flight.add_argument("folder", type=Path, help='of wrap(..., flight_recorder="...")')
    flight.add_argument("--json", action="store_true", help="print one JSON document")
    flight.set_defaults(act=_show)


def _show(given: Namespace, _: Sequence[str]) -> int:
    records = read(given.folder)
    odd = odd_ones(records)
    if given.json:
        print_json({"ranks": [_as_dict(record) for record in records], "odd": [record.rank for record in odd]})
        return 0
    lines = _lines([_HEAD, *map(_row, records)], columns())
    lines += [wrapped(f"Elsewhere than most: rank {one.rank}, {one.status} {one.where}.") for one in odd]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _lines(rows: Sequence[Sequence[str]], most: int) -> list[str]:
    """Return the lines of a table; of one that is too wide, as several tables, each with the first column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    tables: list[list[int]] = [[0]]
    for number, width in enumerate(widths[1:], start=1):
        if len(tables[-1]) > 1 and sum(widths[one] + 2 for one in tables[-1]) + width > most:
            tables.append([0])
        tables[-1].append(number)
    return [
        "  ".join(row[number].ljust(widths[number]) for number in chosen).rstrip() for chosen in tables for row in rows
    ]


def _as_dict(record: FlightRecord) -> dict[str, Any]:
    """Return what a record shows, as plain values."""
    values = {one.name: getattr(record, one.name) for one in fields(record) if not one.name.startswith("_")}
    reading = [one._asdict() for one in record.reading]
    return {**values, "when": record.when.isoformat(), "reading": reading, "status": record.status}


def _row(record: FlightRecord) -> tuple[str, ...]:
    saved = "none" if record.saved is None else str(record.saved)
    numbers = (record.rank, record.epoch, record.step, record.phase, record.global_step, saved)
    reading = ", ".join(map(_reading, record.reading)) or "-"
    return (*map(str, numbers), reading, f"{record.when:%Y-%m-%d %H:%M:%S}", str(record.pid), record.status)


def _reading(one: BeingRead) -> str:
    return str(one.sample) if one.worker is None else f"{one.sample} (worker {one.worker})"
