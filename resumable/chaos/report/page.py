"""The report page: one self-contained HTML file."""

from __future__ import annotations

import shlex
from html import escape
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from resumable._distribution import pip_install
from resumable.chaos.report.text import (
    COLUMNS,
    describe_result,
    describe_violations,
    make_rows,
    make_timeline,
    name_kept,
    told,
)
from resumable.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from resumable.chaos.report.outcome import Outcome, Results


__all__ = ["make_page"]


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
table {{ border-collapse: collapse; }}
th, td {{ padding: .2rem .8rem; text-align: right; border-bottom: 1px solid #ddd; }}
th:first-child, td:first-child {{ text-align: left; }}
pre, code {{ background: #f5f5f5; font-size: 13px; }}
pre {{ padding: .6rem; overflow-x: auto; }}
svg {{ max-width: 100%; height: auto; }}
.ok {{ color: #228833; }}
.failed {{ color: #cc3344; }}
</style>
</head>
<body>
{body}
</body>
</html>
"""


def make_page(report: Results, *, needs_picture: bool = True) -> str:
    """Create the page.

    Args:
        report: of the campaign.
        needs_picture: raise if the picture cannot be drawn.

    Raises:
        MissingDependencyError: matplotlib, which draws the picture, is not installed.
    """
    title = "Chaos: " + ("a promise was broken" if report.failed else name_kept(report))
    parts = [
        f'<h1 class="{"ok" if report.ok else "failed"}">{escape(title)}</h1>',
        f"<p>{escape(describe_result(report))}</p>",
        f"<pre>{escape(shlex.join(report.command.words))}</pre>",
        _table(report),
        *_section("Notes", "".join(f"<li>{escape(note)}</li>" for note in report.notes), "ul"),
        *_section("Broken promises", "".join(_violations(report.failed))),
        *_section("Timeline", _picture(report, needs_picture=needs_picture)),
        *_section("In words", f"<pre>{escape(make_timeline(report))}</pre>"),
    ]
    return _PAGE.format(title=escape(title), body="\n".join(parts))


def _section(title: str, content: str, element: str = "div") -> list[str]:
    return [f"<h2>{escape(title)}</h2>", f"<{element}>{content}</{element}>"] if content else []


def _table(report: Results) -> str:
    heads = "".join(f"<th>{escape(column)}</th>" for column in COLUMNS)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in make_rows(report)
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def _violations(failed: Iterable[Outcome]) -> Iterable[str]:
    for outcome in failed:
        yield f"<h3>Case {escape(outcome.name)}: {escape(str(outcome.case))}</h3>"
        yield f"<pre>{escape(describe_violations(outcome))}</pre>"
        yield f"<p>Run it again: <code>{escape(outcome.reproduction)}</code></p>"


def _picture(report: Results, *, needs_picture: bool) -> str:
    outcomes = told(report)
    if not outcomes:
        return ""
    if find_spec("matplotlib"):
        return _CAPTION + str(import_module("resumable.chaos.report.picture").draw(outcomes, report.baseline))
    if needs_picture:
        raise MissingDependencyError(f"the picture {_NEEDS}.\n{_INSTALL}")
    return f"<p>The picture is missing: it {_NEEDS}. {escape(_INSTALL)}</p>"


_CAPTION = "<p>One row per launch and rank; the axis counts the steps of the baseline run.</p>"
_NEEDS = "needs matplotlib, which cannot be imported here"
_INSTALL = f"Install it: {pip_install('chaos')}"
