"""`resumable doctor`: the options of the command line, and what it prints."""

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
        help="look for what breaks a promise on this machine",
        description="Show versions, ranks, limits and the environment, and name what breaks a promise.",
        epilog="exit status: 0 if nothing breaks a promise, 1 if something does, 2 if the store cannot be looked at.",
        formatter_class=Help,
    )
    parser.add_argument("--store", metavar="PATH", help="folder for checkpoints: try to write, sync and rename there")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(act=_doctor)


def _doctor(given: Namespace, _: Sequence[str]) -> int:
    found = doctor(given.store)
    if given.json:
        print_json(found.as_dict())
    else:
        sys.stdout.write(f"{wrapped(str(found))}\n")
    return 0 if found.ok else 1
