"""`resumable chaos`: options and output."""

from __future__ import annotations

import shlex
import signal
import sys
from argparse import ArgumentTypeError, Namespace
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resumable.chaos.api import replay, run
from resumable.chaos.campaign import read_record
from resumable.chaos.plan import FAULTS
from resumable.chaos.report.text import describe_violations, make_summary
from resumable.cli.junit import Case, add_junit, write_junit
from resumable.cli.show import print_json, wrapped
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Iterator, Sequence

    from resumable.chaos.report import Outcome, Report
    from resumable.cli.show import Parser

__all__ = ["fill"]

_EXAMPLES = """examples:
  resumable chaos run -- python train.py
  resumable chaos run --points all -- python train.py
  resumable chaos run --faults flip,eio -- python train.py
  resumable chaos run --mtbf 600 -- python -m package.train
  resumable chaos run --resize 2,1,2 -- \\
      torchrun --standalone --nproc-per-node=2 train.py

"""
_HOW = """\
{dir} in the command is replaced with the directory of the case, and {ranks} with the number of ranks. \
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 is set by default: torchrun needs it to restart ranks.

"""
_STATUSES = """exit status: 0 if every promise was kept, 1 if one was broken, 2 if the command cannot be tested, 3 if \
every promise that could be compared was kept, but nothing of the model was compared."""


def fill(parser: Parser) -> None:
    """Add the options of `resumable chaos` to a parser."""
    parser.description = "Break a training script on purpose, and prove that it loses nothing."
    parser.epilog = _EXAMPLES + _STATUSES
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    _add_run(actions)
    again = actions.add_parser("replay", help="run one case again, with the same command and faults")
    again.description = "Run one case again, with the same command and faults."
    again.epilog = f"example:\n  resumable chaos replay runs/chaos/0007\n\n{_STATUSES}"
    again.add_argument("directory", type=Path, help="directory of the case, such as runs/chaos/0007")
    again.add_argument("--yes", action="store_true", help="run the command in the directory without asking")
    _add_output(again)
    again.set_defaults(act=_replay)


def _add_run(actions: Any) -> None:
    parser: ArgumentParser = actions.add_parser(
        "run",
        help="run a campaign",
        usage="resumable chaos run [options] -- COMMAND ...",
        description="Run a training script twice without faults. Then interrupt it at one failpoint after another, "
        "restart it, and compare the data it trained on, its checkpoints and its weights.",
        epilog=f"kinds of faults:\n{_list_faults()}\n\n{_EXAMPLES}{_HOW}{_STATUSES}",
    )
    add = parser.add_argument_group("faults").add_argument
    add("--faults", metavar="KIND,...", help="kinds of faults, see below (default: kill, and worker-kill if there are "
        "workers)")  # fmt: skip
    add("--points", type=_points, metavar="N|all", help="failpoints per kind of fault (default: as many as take a few "
        "minutes, at least one of each type; 0 with --mtbf)")  # fmt: skip
    add("--pairs", type=int, default=0, metavar="N", help="cases with two faults in a row (default: 0)")
    add("--random", type=int, default=0, metavar="N", help="cases with one to three random faults (default: 0)")
    add(
        "--mtbf",
        type=float,
        metavar="SECONDS",
        help="add a case with kills at random times, this long apart on average",
    )
    add("--failures", type=int, default=3, metavar="N", help="number of kills with --mtbf (default: 3)")
    add("--seed", type=int, default=0, help="seed of all random choices (default: 0)")
    add = parser.add_argument_group("launches").add_argument
    add("--ranks", type=int, metavar="N", help="number of ranks (default: taken from the command)")
    add("--resize", type=_numbers, metavar="N,...", help="numbers of ranks of successive launches")
    add(
        "--jobs",
        type=int,
        default=1,
        metavar="N",
        help="cases that run at the same time (default: 1); torchrun then needs --standalone",
    )
    add("--preload", default="", metavar="MODULE,...", help="import these modules once, such as torch, and fork each "
        "launch of a Python program from there; saves seconds (default: launch the command directly)")  # fmt: skip
    add("--patience", type=float, default=60.0, metavar="SECONDS", help="time without progress that counts as a hang, "
        "or 20 times the longest of the baseline run if that is more (default: 60)")  # fmt: skip
    add("--grace", type=float, default=5.0, metavar="SECONDS", help="time from SIGTERM to SIGKILL (default: 5)")
    add("--limit", type=float, default=3600.0, metavar="SECONDS", help="time limit of one launch (default: 3600)")
    add = parser.add_argument_group("results").add_argument
    add("--ignore", action="append", default=[], metavar="GLOB", help="files in the work folder that are not compared, "
        "such as 'logs/*'; can be repeated")  # fmt: skip
    add("--directory", type=Path, default=Path("runs/chaos"), help="directory for the report and the failed cases; "
        "the previous campaign's files are removed (default: runs/chaos)")  # fmt: skip
    _add_output(parser)
    parser.set_defaults(act=_run)


def _add_output(parser: ArgumentParser) -> None:
    add_junit(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document, the same as report.json")


def _list_faults() -> str:
    width = max(map(len, FAULTS))
    return "\n".join(f"  {name:{width}}  {kind.meaning}" for name, kind in FAULTS.items())


def _points(text: str) -> str | int:
    if text == "all":
        return text
    if not text.isdigit():
        raise ArgumentTypeError(f"expected a whole number or all, got {text!r}")
    return int(text)


def _numbers(text: str) -> list[int]:
    numbers = text.split(",")
    if not all(number.isdigit() for number in numbers):
        raise ArgumentTypeError(f"expected whole numbers separated by commas, as in 2,1,2, got {text!r}")
    return [int(number) for number in numbers]


def _run(given: Namespace, words: Sequence[str]) -> int:
    if not words:
        raise ConfigurationError("no command to run.\nPut it after two dashes: resumable chaos run -- python train.py")
    options = {name: value for name, value in vars(given).items() if name not in {"act", "json", "junit"}}
    with _ending_in_order():
        report = run(words, **options, tell=_tell)
    _print(report, given.directory, given)
    return report.status


def _replay(given: Namespace, words: Sequence[str]) -> int:
    if words:
        raise ConfigurationError(
            f"replay takes no command, but got {words[0]!r}.\nIt runs the campaign's command. Leave out the dashes."
        )
    if not given.yes and not _agrees(given.directory):
        _tell("Nothing was run.")
        return 2
    with _ending_in_order():
        report = replay(given.directory, tell=_tell)
    _print(report, given.directory / "replay", given)
    return report.status


def _agrees(directory: Path) -> bool:
    """Show the command stored in a directory, and ask whether to run it: the directory may not be the user's.

    Raises:
        ConfigurationError: the question needs a terminal.
    """
    command = shlex.join(read_record(directory.absolute()).command.words)
    if not sys.stdin.isatty():
        raise ConfigurationError(
            f"{directory} contains this command, which replay would run:\n  {command}\nThere is no terminal to ask for "
            "confirmation. Check the command, and pass --yes."
        )
    sys.stderr.write(f"{directory} contains this command:\n  {command}\nRun it in {Path.cwd()}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _tell(text: str) -> None:
    sys.stderr.write(wrapped(text, spared=True) + "\n")


def _print(report: Report, directory: Path, given: Namespace) -> None:
    if given.junit is not None:
        command = shlex.join(report.command)
        write_junit(given.junit, "resumable chaos", [_case(command, one) for one in report.outcomes], report.seconds)
    if given.json:
        print_json(report.as_dict())
        return
    parts = [make_summary(report, shown=0), report.timeline()] if report.failed else [str(report)]
    sys.stdout.write(wrapped("\n\n".join([*parts, f"Page: {directory / 'report.html'}"])) + "\n")


def _case(command: str, outcome: Outcome) -> Case:
    told = "" if outcome.ok else f"{describe_violations(outcome)}\nagain: {outcome.reproduction}"
    missed = "" if outcome.reached or told else "The run ended before the fault, so nothing was tested."
    return Case(command, f"{outcome.name}: {outcome.case}", told, missed)


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Make SIGTERM and SIGHUP unwind the stack, which kills the launched processes."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
