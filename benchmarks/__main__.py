"""Run the benchmarks: `python -m benchmarks [--quick] [--rounds N] [--only NAME] [--markdown FILE] ...`."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks import report
from benchmarks.plan import FULL, QUICK, Plan
from benchmarks.remote import Pool
from benchmarks.suites import SUITES

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and if asked to, write the tables to a file; return the exit status."""
    options = _parser().parse_args(arguments)
    names = [name for name in options.only or SUITES if name not in options.without]
    plan = QUICK if options.quick else FULL
    tables = _measure(names, replace(plan, rounds=options.rounds or plan.rounds))
    if options.markdown is not None:
        report.write(options.markdown, tables, list(SUITES))
    return 0


def _measure(names: list[str], plan: Plan) -> dict[str, list[report.Table]]:
    """Run suites one after another, and show each table as soon as it is done."""
    tables: dict[str, list[report.Table]] = {}
    with Pool() as pool:
        for name in names:
            print(f"measuring: {name} ...", file=sys.stderr, flush=True)
            tables[name] = SUITES[name](plan, pool)
            for table in tables[name]:
                report.show(table)
            pool.rest()
    return tables


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, only to test that everything runs")
    parser.add_argument("--rounds", type=int, metavar="N", help=f"rounds per contender (default: {FULL.rounds})")
    parser.add_argument("--only", action="append", choices=list(SUITES), metavar="NAME", help=", ".join(SUITES))
    parser.add_argument("--without", action="append", choices=list(SUITES), metavar="NAME", default=[])
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the suites' tables into this page")
    return parser


if __name__ == "__main__":
    sys.exit(main())
