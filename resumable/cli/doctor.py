"""`resumable doctor`: options and output."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from resumable._selfcheck.doctor import doctor
from resumable.cli.show import Help, print_json, wrapped

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

__all__ = ["add_doctor"]


def add_doctor(commands: Any) -> None:
    """Add `doctor` to the commands of a parser."""
    parser = commands.add_parser(
        "doctor",
        help="show versions, rank and start method",
        description="Show versions, rank and start method, and warn if each rank would read all the data.",
        epilog="exit status: 0 if no problem was found, 1 otherwise.",
        formatter_class=Help,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(act=_doctor)


def _doctor(given: Namespace, _: Sequence[str]) -> int:
    found = doctor()
    if given.json:
        print_json(found.as_dict())
    else:
        sys.stdout.write(f"{wrapped(str(found))}\n")
    return 0 if found.ok else 1
