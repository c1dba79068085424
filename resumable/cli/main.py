"""The command `resumable`: parses the command line and returns the exit status. A command is imported if it is used."""

from __future__ import annotations

import signal
import sys
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING

from resumable._distribution import warn_of_other_project
from resumable._version import __version__
from resumable.cli.show import Parser, as_error
from resumable.errors import ResumableError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_COMMANDS = {
    "check": "interrupt and resume a loader, and compare every batch",
    "chaos": "break a training script on purpose, and prove that it loses nothing",
    "verify": "check whether a checkpoint fits the data and options of a script",
    "inspect": "show the content of a checkpoint, and the position of its data",
    "diff": "show which parts of two checkpoints differ, and by how much",
    "samples": "list the samples of any batch, from a checkpoint alone",
    "flight": "show where the ranks of a run are, or were when they crashed",
    "doctor": "show versions, rank and start method",
}
_EPILOG = """examples:
  resumable check -- python train.py
  resumable chaos run -- python train.py
  resumable inspect checkpoints

`resumable COMMAND --help` shows the options and examples of a command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line.

    Args:
        arguments: its words; None for the words of this process.

    Returns:
        The exit status: 0; 1 if a check failed or things differ; 2 if nothing could be done.
    """
    warn_of_other_project()  # which `import resumable` cannot do if that project has overwritten `__init__.py`
    words = list(sys.argv[1:] if arguments is None else arguments)
    own, command = _split(words)
    if not own or own[0] not in _COMMANDS:
        return _about(own)
    name = own[0]
    parser = Parser(prog=f"resumable {name}")
    import_module(f"resumable.cli.{name}").fill(parser)
    given, unknown = parser.parse_known_args(own[1:])
    if unknown:
        parser.error(
            f"unknown argument: {' '.join(unknown)!r}\nPut a command to run after two dashes: -- python train.py"
        )
    try:
        return int(given.act(given, command))
    except ResumableError as error:
        sys.stderr.write(f"{as_error(str(error))}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted. All started processes have ended.\n")
        return 128 + signal.SIGINT


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Split the words at the first `--`: the words after it are another program's."""
    place = words.index("--") if "--" in words else len(words)
    return words[:place], words[place + 1 :]


def _about(words: list[str]) -> int:
    """Print the help or the version, or reject a word that is not a command."""
    width = max(map(len, _COMMANDS))
    listed = "\n".join(f"  {name:{width}}  {text}" for name, text in _COMMANDS.items())
    parser = Parser(prog="resumable", usage="resumable COMMAND ...", epilog=f"commands:\n{listed}\n\n{_EPILOG}")
    parser.description = "Make training resume at the exact batch."
    parser.add_argument("-V", "--version", action="version", version=f"resumable {__version__}")
    if words and words[0][:1] != "-":
        near = get_close_matches(words[0], _COMMANDS, n=1)
        hint = f"Did you mean `resumable {near[0]}`?" if near else f"The commands are {', '.join(_COMMANDS)}."
        parser.error(f"unknown command: {words[0]!r}\n{hint}")
    parser.parse_args(words)
    parser.print_help()
    return 0
