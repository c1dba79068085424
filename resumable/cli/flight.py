"""`resumable flight`: the records of a run, one line per rank."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resumable.cli.show import print_json, wrapped
from resumable.flight import odd_ones, read

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from resumable.cli.show import Parser
    from resumable.flight import FlightRecord

__all__ = ["fill"]

_EPILOG = """example:
  resumable flight runs/flight

exit status: 0, or 2 without a record."""


def fill(parser: Parser) -> None:
    """Add the options of `resumable flight` to a parser."""
    parser.description = "Show where the ranks of a run are, or were when they crashed."
    parser.epilog = _EPILOG
    parser.add_argument("folder", type=Path, help='the folder of wrap(..., flight_recorder="...")')
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(act=_show)


def _show(given: Namespace, _: Sequence[str]) -> int:
    records = read(given.folder)
    odd = [record.rank for record in odd_ones(records)]
    if given.json:
        print_json({"ranks": [_as_dict(record) for record in records], "odd": odd})
        return 0
    lines = [*map(_line, records), *([f"Different from most: rank {', '.join(map(str, odd))}."] if odd else [])]
    sys.stdout.write("\n".join(map(wrapped, lines)) + "\n")
    return 0


def _line(record: FlightRecord) -> str:
    saved = "no state yet" if record.saved is None else f"last state {record.saved}"
    about = f"global step {record.global_step}, {saved}, since {record.when:%Y-%m-%d %H:%M:%S} UTC, pid {record.pid}"
    return f"rank {record.rank}: {record.status} {record.where} ({about})"


def _as_dict(record: FlightRecord) -> dict[str, Any]:
    """Return the public fields of a record as plain values."""
    values = {one.name: getattr(record, one.name) for one in fields(record) if not one.name.startswith("_")}
    return {**values, "when": record.when.isoformat(), "status": record.status}
