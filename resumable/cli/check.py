"""`resumable check`: options and output."""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, TextIO

from resumable._selfcheck.program import check_program
from resumable._selfcheck.report import LoaderReport
from resumable._selfcheck.scripts import absolute
from resumable._selfcheck.trials import check
from resumable.cli.junit import Case, add_junit, write_junit
from resumable.cli.show import print_json, wrapped
from resumable.cli.users import undiverted, users_function
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from resumable._selfcheck.report import CheckReport, Trial
    from resumable._selfcheck.trials import Heard, Tell
    from resumable.cli.show import Parser

__all__ = ["fill"]

_EPILOG = """examples:
  resumable check -- python train.py --data photos
  resumable check train.py:make_loader
  resumable check train.py:make_loader -- --data photos

With a command, the program runs until its first Loader is about to deliver a batch. That Loader is checked there, and \
the rest of the program does not run. The program is launched twice, in the current directory.

With a function, the script is imported. The function takes no arguments and returns a loader, anything that \
wrap takes, a dict or list of these, or a LightningDataModule.

exit status: 0 if every check passed, 1 if one failed, 2 if nothing could be checked."""


def fill(parser: Parser) -> None:
    """Add the options of `resumable check` to a parser."""
    parser.usage = "resumable check [options] [FUNCTION] -- COMMAND ..."
    parser.description = "Read part of the data, interrupt and resume it at several points, and compare every batch."
    parser.epilog = _EPILOG
    parser.add_argument(
        "function", metavar="FUNCTION", nargs="?", help="script.py:name or package.module:name; none to check a command"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    add_junit(parser)
    parser.add_argument("--seconds", type=float, default=30.0, help="time limit for new trials (default: 30)")
    parser.set_defaults(act=_check)


def _check(given: Namespace, words: Sequence[str]) -> int:
    began = time.monotonic()
    with undiverted() as out:
        report = _run(given, words, (lambda _: None) if given.json else _Printer(out).tell)
    report = replace(report, seconds=time.monotonic() - began)
    verdict = report.verdict("--seconds N")
    if given.junit is not None:
        cases = [(one, trial) for one in report.loaders for trial in one.trials]
        write_junit(given.junit, "resumable check", [_case(one, trial) for one, trial in cases], report.seconds)
    if given.json:
        print_json(report.as_dict())
        if report.status == 2:  # noqa: PLR2004  # an exit status
            _say(verdict)
        return report.status
    lines = [*(f"WARNING {note}" for note in report.notes), verdict]
    sys.stdout.write("\n" + wrapped("\n\n".join(lines)) + "\n")
    return report.status


def _run(given: Namespace, words: Sequence[str], tell: Tell) -> CheckReport:
    if given.function is not None:
        with users_function(given.function, words) as make:
            return check(make, seconds=given.seconds, spec=absolute(given.function), tell=tell)
    if words:
        return check_program(words, given.seconds, tell, _say)
    raise ConfigurationError(
        "there is nothing to check.\nPass a command, as in: resumable check -- python train.py, or a function, as in: "
        "resumable check train.py:make_loader"
    )


def _case(loader: LoaderReport, trial: Trial) -> Case:
    told = trial.shown("").partition("\n")[2]
    name = f"{loader.name} {trial.name}".strip()
    return Case(loader.source, name, told if trial.kept is False else "", trial.cause if trial.kept is None else "")


def _say(text: str) -> None:
    sys.stderr.write(f"{wrapped(text)}\n")


class _Printer:
    """Prints each part of a report as soon as it is known.

    Args:
        out: where to.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._causes: dict[str, str] = {}

    def tell(self, heard: Heard) -> None:
        """Print a part."""
        key, what = heard
        if isinstance(what, LoaderReport):
            text = f"{what.head}\n"
        else:
            text = what.shown(self._causes.get(key, ""), key)
            self._causes[key] = what.cause or self._causes.get(key, "")
        with contextlib.suppress(BrokenPipeError):  # the reader has what it wants, as `head` does
            self._out.write(f"{wrapped(text)}\n")
            self._out.flush()
