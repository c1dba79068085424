"""`resumable check`: options and output."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from resumable._selfcheck.scripts import absolute
from resumable._selfcheck.trials import check
from resumable.cli.show import Help, print_json, users_function, wrapped

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

__all__ = ["add_check"]

_EPILOG = """The function takes no arguments and returns a loader, anything that wrap takes, a dict or list of these,
or a LightningDataModule. Code below `if __name__ == "__main__":` does not run.
Arguments after two dashes are passed to the script: resumable check train.py:make_loader -- --data photos

exit status: 0 if every promise was kept, 1 if one was broken, 2 if nothing could be checked."""


def add_check(commands: Any) -> None:
    """Add `check` to the commands of a parser."""
    parser = commands.add_parser(
        "check",
        help="interrupt and resume your loader at several points, and compare every batch",
        description="Read part of the data, interrupt and resume it at several points, and compare every batch.",
        epilog=_EPILOG,
        formatter_class=Help,
    )
    parser.add_argument("function", help="script.py:name or package.module:name, such as train.py:make_loader")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--seconds", type=float, default=30.0, help="time limit for new trials (default: 30)")
    parser.set_defaults(act=_check)


def _check(given: Namespace, words: Sequence[str]) -> int:
    spec = absolute(given.function)
    with users_function(given.function, words) as make:
        report = check(make, seconds=given.seconds, spec=spec)
    option = "--seconds N"
    if not given.json:
        sys.stdout.write(f"{wrapped(report.shown(option))}\n")
        return report.status
    print_json(report.as_dict())
    if report.status == 2:  # noqa: PLR2004  # an exit status
        sys.stderr.write(f"{report.verdict(option)}\n")
    return report.status
