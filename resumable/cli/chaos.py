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
from resumable.chaos.report.text import make_summary
from resumable.cli.show import Help, print_json, wrapped
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Iterator, Sequence

    from resumable.chaos.report import Report

__all__ = ["add_chaos"]

_EXAMPLES = """examples:
  resumable chaos run -- python train.py
  resumable chaos run --points all -- python train.py
  resumable chaos run --faults flip,eio -- python train.py
  resumable chaos run --mtbf 600 -- python -m package.train
  resumable chaos run --resize 2,1,2 -- \\
      torchrun --standalone --nproc-per-node=2 train.py

The command runs in a new directory each time. If one of its words contains {dir}, it runs in the current directory \
instead, and {dir} is replaced with the new one. {ranks} is replaced with the number of ranks. Files that Python code \
writes elsewhere are redirected into the new directory. TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 is set by default: \
torchrun needs it to restart ranks.

"""
_STATUSES = """exit status: 0 if every promise was kept, 1 if one was broken, 2 if the command cannot be tested, 3 if \
every promise that could be compared was kept, but nothing of the model was compared."""


def add_chaos(commands: Any) -> None:
    """Add `chaos` to the commands of a parser."""
    chaos = commands.add_parser(
        "chaos",
        help="break a training script on purpose, and prove that it loses nothing",
        epilog=_STATUSES,
        formatter_class=Help,
    )
    actions = chaos.add_subparsers(title="actions", required=True, metavar="ACTION")
    _add_run(actions)
    again = actions.add_parser(
        "replay",
        help="run one case again, with the same command and faults",
        epilog=_STATUSES,
        formatter_class=Help,
    )
    again.add_argument("directory", type=Path, help="directory of the case, such as runs/chaos/0007")
    again.add_argument("--yes", action="store_true", help="run the command in the directory without asking")
    _add_json(again)
    again.set_defaults(act=_replay)


def _add_run(actions: Any) -> None:
    parser: ArgumentParser = actions.add_parser(
        "run",
        help="run a campaign",
        usage="resumable chaos run [options] -- COMMAND ...",
        description="Run a training command twice without faults. Then interrupt it at one failpoint after another, "
        "restart it, and compare the data it trained on, its checkpoints and its weights.",
        epilog=f"faults:\n{_list_faults()}\n\n{_EXAMPLES}{_STATUSES}",
        formatter_class=Help,
    )
    add = parser.add_argument
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
    add("--ranks", type=int, metavar="N", help="number of ranks (default: taken from the command)")
    add("--resize", type=_numbers, metavar="N,...", help="numbers of ranks of successive launches")
    add(
        "--jobs",
        type=int,
        default=1,
        metavar="N",
        help="cases that run at the same time (default: 1); torchrun then needs --standalone",
    )
    add("--directory", type=Path, default=Path("runs/chaos"), help="directory for the report and the failed cases; "
        "the previous campaign's files are removed (default: runs/chaos)")  # fmt: skip
    add("--patience", type=float, default=60.0, metavar="SECONDS", help="time without progress that counts as a hang "
        "(default: 60)")  # fmt: skip
    add("--grace", type=float, default=5.0, metavar="SECONDS", help="time from SIGTERM to SIGKILL (default: 5)")
    add("--limit", type=float, default=3600.0, metavar="SECONDS", help="time limit of one launch (default: 3600)")
    add("--preload", default="", metavar="MODULE,...", help="import these modules once, such as torch, and fork each "
        "launch of a Python program from there; saves seconds (default: launch the command directly)")  # fmt: skip
    add("--ignore", action="append", default=[], metavar="GLOB", help="files in the work folder that are not compared, "
        "such as 'logs/*'; can be repeated")  # fmt: skip
    _add_json(parser)
    parser.set_defaults(act=_run)


def _add_json(parser: ArgumentParser) -> None:
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
    options = {name: value for name, value in vars(given).items() if name not in {"act", "json"}}
    with _ending_in_order():
        report = run(words, **options, tell=_tell)
    _print(report, given.directory, as_json=given.json)
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
    _print(report, given.directory / "replay", as_json=given.json)
    return report.status


def _agrees(directory: Path) -> bool:
    """Show the command stored in a directory, and ask whether to run it: the directory may not be the user's.

    Raises:
        ConfigurationError: there is no terminal for the question.
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


def _print(report: Report, directory: Path, *, as_json: bool) -> None:
    if as_json:
        print_json(report.as_dict())
        return
    parts = [str(report)] if not report.failed else [report.timeline(), make_summary(report, shown=0)]
    sys.stdout.write(wrapped("\n\n".join([*parts, f"Page: {directory / 'report.html'}"])) + "\n")


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
