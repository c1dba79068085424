"""The command `resumable`: parses the command line and returns the exit status."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

from resumable import __version__
from resumable.cli.chaos import add_chaos
from resumable.cli.check import add_check
from resumable.cli.diff import add_diff
from resumable.cli.doctor import add_doctor
from resumable.cli.flight import add_flight
from resumable.cli.inspect import add_inspect
from resumable.cli.samples import add_samples
from resumable.cli.show import Help, Parser, wrapped
from resumable.cli.verify import add_verify
from resumable.errors import ResumableError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line.

    Args:
        arguments: its words; None for those of this process.

    Returns:
        The exit status: 0; 1 if a promise was broken or things differ; 2 if nothing could be done.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    own, command = _split(words)
    parser = _make_parser()
    given, unknown = parser.parse_known_args(own)
    if unknown:
        parser.error(
            f"unknown argument: {' '.join(unknown)!r}. Put a command to run after two dashes: -- python train.py"
        )
    try:
        return int(given.act(given, command))
    except ResumableError as error:
        sys.stderr.write(wrapped(f"{type(error).__name__}: {error}", spared=True) + "\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted. All started processes have ended.\n")
        return 128 + signal.SIGINT


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Split the words at the first `--`: the words after it are another program's."""
    place = words.index("--") if "--" in words else len(words)
    return words[:place], words[place + 1 :]


def _make_parser() -> Parser:
    parser = Parser(prog="resumable", description="Make training resume at the exact batch.", formatter_class=Help)
    parser.add_argument("--version", action="version", version=f"resumable {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    add_check(commands)
    add_verify(commands)
    add_doctor(commands)
    add_chaos(commands)
    add_flight(commands)
    add_inspect(commands)
    add_diff(commands)
    add_samples(commands)
    return parser
