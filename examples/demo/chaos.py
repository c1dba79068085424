"""`python -m examples.demo.chaos`: every kind of fault against every source; `--page` writes the results to a page."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError
from pathlib import Path
from typing import TYPE_CHECKING

from resumable.chaos.api import check_kinds
from resumable.chaos.plan import FAULTS
from resumable.errors import ConfigurationError

from .catalogue import SOURCES, find_source
from .matrix import Settings, run_matrix
from .page import make_tables, write_page

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; return the exit status: 0, or 1 if a promise was broken or a source could not be tested."""
    parser = ArgumentParser(prog="python -m examples.demo.chaos", description=__doc__)
    add = parser.add_argument
    add("--sources", type=_sources, default=list(SOURCES), metavar="NAME,...", help=f"some of {', '.join(SOURCES)}")
    add("--faults", type=_faults, default=list(FAULTS), metavar="KIND,...", help=f"some of {', '.join(FAULTS)}")
    add("--points", type=int, default=2, help="failpoints per kind of fault (default: 2)")
    add("--jobs", type=int, default=2, help="cases that run at the same time (default: 2)")
    add("--directory", type=Path, default=Path("runs/chaos-sources"), help="default: runs/chaos-sources")
    add("--fresh", action="store_true", help="launch every process directly, instead of forking it from one that has "
        "imported torch: ten times slower")  # fmt: skip
    add("--page", type=Path, metavar="FILE", help="write the tables into this page")
    given = parser.parse_args(arguments)
    if given.page and (set(given.sources), set(given.faults)) != (set(SOURCES), set(FAULTS)):
        parser.error("--page rewrites all tables, so it needs a run of all sources and faults")
    rows = run_matrix(
        given.sources, Settings(given.faults, given.points, given.jobs, given.directory, given.fresh), _tell
    )
    sys.stdout.write(make_tables(rows, given.faults, given.points) + "\n")
    if given.page:
        write_page(given.page, rows, given.faults, given.points)
    return 0 if all(row.ok for row in rows) else 1


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _sources(text: str) -> list[str]:
    names = text.split(",")
    try:
        for name in names:
            find_source(name)
    except ConfigurationError as error:
        raise ArgumentTypeError(str(error)) from error
    return names


def _faults(text: str) -> list[str]:
    try:
        return list(check_kinds(text))
    except ConfigurationError as error:
        raise ArgumentTypeError(str(error)) from error


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("Interrupted. All started processes have ended.")
