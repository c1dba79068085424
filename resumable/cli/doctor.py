"""`resumable doctor`: options and output."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from resumable._selfcheck.doctor import doctor
from resumable.cli.show import print_json, wrapped

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from resumable.cli.show import Parser

__all__ = ["fill"]

_EPILOG = """examples:
  resumable doctor
  srun resumable doctor --json

exit status: 0 if no problem was found, 1 otherwise."""


def fill(parser: Parser) -> None:
    """Add the options of `resumable doctor` to a parser."""
    parser.description = "Show versions, rank and start method, and warn about anything that prevents an exact resume."
    parser.epilog = _EPILOG
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(act=_doctor)


def _doctor(given: Namespace, _: Sequence[str]) -> int:
    found = doctor()
    if given.json:
        print_json(found.as_dict())
    else:
        sys.stdout.write(f"{wrapped(str(found))}\n")
    return 0 if found.ok else 1
