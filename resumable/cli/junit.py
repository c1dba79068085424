"""A JUnit file, which CI systems show."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from xml.etree.ElementTree import Element, ElementTree, SubElement

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Sequence

__all__ = ["Case", "add_junit", "write_junit"]


class Case(NamedTuple):
    """A row of the file.

    Args:
        of: the loader or the command that was tested.
        name: of the test.
        failure: how it failed; empty if it did not.
        skipped: why it was skipped; empty if it was not.
    """

    of: str
    name: str
    failure: str = ""
    skipped: str = ""


def add_junit(parser: ArgumentParser) -> None:
    """Add the option `--junit`."""
    parser.add_argument("--junit", type=Path, metavar="FILE", help="also write a JUnit XML file, for CI systems")


def write_junit(path: Path, name: str, cases: Sequence[Case], seconds: float) -> None:
    """Write the file.

    Args:
        path: of the file; its folder is made.
        name: of the suite.
        cases: its tests.
        seconds: duration of all.
    """
    failures, skipped = (sum(bool(getattr(case, kind)) for case in cases) for kind in ("failure", "skipped"))
    counts = {"tests": str(len(cases)), "failures": str(failures), "skipped": str(skipped), "errors": "0"}
    suites = Element("testsuites", counts)
    suite = SubElement(suites, "testsuite", {"name": name, **counts, "time": f"{seconds:.3f}"})
    for case in cases:
        test = SubElement(suite, "testcase", {"classname": _valid(case.of), "name": _valid(case.name)})
        for kind, text in (("failure", case.failure), ("skipped", case.skipped)):
            if text:
                lines = _valid(text).strip().split("\n")
                SubElement(test, kind, {"message": lines[0].strip()}).text = "\n".join(lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    ElementTree(suites).write(path, encoding="utf-8", xml_declaration=True)


def _valid(text: str) -> str:
    """Escape characters that XML does not have."""
    return "".join(one if one.isprintable() or one == "\n" else one.encode("unicode_escape").decode() for one in text)
