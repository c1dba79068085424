"""`resumable verify`: options and output."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from resumable._selfcheck.verify import verify
from resumable.cli.show import print_json, wrapped
from resumable.cli.users import users_function

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from resumable.cli.show import Parser

__all__ = ["fill"]

_EPILOG = """examples:
  resumable verify checkpoints train.py:make_loader
  resumable verify s3://runs/7 package.train:loaders -- --data photos

exit status: 0 if every loader accepts its state, 1 if one does not, 2 if nothing could be verified."""


def fill(parser: Parser) -> None:
    """Add the options of `resumable verify` to a parser."""
    parser.description = "Load the states of a checkpoint into the loaders of a script strictly, and read one batch."
    parser.epilog = _EPILOG
    parser.add_argument("checkpoint", help="path or URL of a checkpoint, as for `resumable inspect`")
    parser.add_argument("function", help="script.py:name or package.module:name, such as train.py:make_loader")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(act=_verify)


def _verify(given: Namespace, words: Sequence[str]) -> int:
    with users_function(given.function, words) as make:
        found = verify(given.checkpoint, make)
    if given.json:
        print_json(found.as_dict())
    else:
        sys.stdout.write(f"{wrapped(str(found))}\n")
    return 0 if found.ok else 1
