"""The options of `python -m examples.demo`."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from resumable.errors import ConfigurationError

from .catalogue import SOURCES, Source, find_source, installed

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Options", "parse_options"]


class Options(NamedTuple):
    """The options.

    Args:
        sources: what to train from.
        kills: how often each training run is killed.
        seed: chooses the times.
        jobs: training runs at the same time.
        output: directory for the picture.
        all_installed: whether no sources were chosen, so all installed ones are used.
    """

    sources: list[Source]
    kills: int
    seed: int
    jobs: int
    output: Path
    all_installed: bool = False


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """Parse the command line."""
    parser = ArgumentParser(
        prog="python -m examples.demo",
        description="Kill real training runs with SIGKILL at random times, resume them, and compare them with "
        "baseline runs. Exits with 1 if anything differs.",
    )
    parser.add_argument(
        "--backends",
        nargs="+",
        type=_source,
        metavar="NAME",
        help=f"some of {', '.join(SOURCES)}; or module:function, which takes the digits and returns a loader from "
        "resumable.wrap (default: all that are installed)",
    )
    parser.add_argument("--kills", type=_positive, default=3, help="kills per source (default: 3)")
    parser.add_argument("--seed", type=int, default=0, help="chooses the times of the kills (default: 0)")
    parser.add_argument("--jobs", type=_positive, default=2, help="training runs at the same time (default: 2)")
    parser.add_argument("--output", type=Path, default=Path("runs/demo"), help="output directory (default: runs/demo)")
    given = parser.parse_args(arguments)
    sources = given.backends or installed()
    return Options(sources, given.kills, given.seed, given.jobs, given.output, all_installed=not given.backends)


def _source(name: str) -> Source:
    try:
        return find_source(name)
    except ConfigurationError as error:
        raise ArgumentTypeError(str(error)) from error


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return int(text)
