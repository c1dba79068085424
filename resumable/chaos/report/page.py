"""The report page: one HTML file without scripts, with the likely causes first and a timeline per failed case."""

from __future__ import annotations

import shlex
from html import escape
from typing import TYPE_CHECKING

from resumable.chaos.plan import FAULTS, main_loader
from resumable.chaos.report.text import (
    COLUMNS,
    describe_differences,
    describe_result,
    make_rows,
    name_step,
    shorten,
    tell,
    tell_lines,
    told,
)
from resumable.chaos.verify.history import steps_of
from resumable.failpoints import POINTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from resumable.chaos.report.text import Line
    from resumable.chaos.verify.history import Key
    from resumable.chaos.verify.outcome import Outcome, Results


__all__ = ["make_page"]


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --text: #1f2328; --dim: #59636e; --page: #fff; --box: #f3f5f7; --line: #d1d9e0;
  --ok: #1a7f37; --failed: #cf222e; --warning: #8a5c00; --trained: #4477aa; --again: #e0a526; }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ --text: #e6edf3; --dim: #9198a1; --page: #0d1117;
  --box: #171d25; --line: #3d444d; --ok: #3fb950; --failed: #f85149; --warning: #d29922; --trained: #6ea8dc;
  --again: #e3b341; }} }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem;
  color: var(--text); background: var(--page); overflow-wrap: anywhere; }}
h1 {{ font-size: 1.5rem; }} h2 {{ font-size: 1.2rem; margin-top: 2rem; }} h3 {{ font-size: 1rem; margin: 0; }}
h1, h2, h3 {{ line-height: 1.3; }}
a {{ color: inherit; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .2rem .6rem; text-align: right; border-bottom: 1px solid var(--line); vertical-align: top;
  overflow-wrap: normal; }}
th:first-child, td:first-child, .words, .cases th:nth-child(-n+3) {{ text-align: left; }}
.filter {{ display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin: .7rem 0; }}
body:has(#only-failed:checked) tr.ok, body:has(#only-missed:checked) tr:not(.missed, .head) {{ display: none; }}
code, pre {{ font: 13px/1.5 ui-monospace, monospace; background: var(--box); border-radius: 4px; }}
code {{ padding: .1rem .3rem; }}
.command {{ user-select: all; }}
pre {{ padding: .5rem .7rem; white-space: pre-wrap; margin: .5rem 0; }}
.PASSED {{ color: var(--ok); }} .FAILED {{ color: var(--failed); }} .WARNING {{ color: var(--warning); }}
.case {{ border: 1px solid var(--line); border-radius: 6px; padding: .8rem 1rem; margin: 1rem 0; }}
.case p {{ margin: .5rem 0; }} .case .cause {{ margin: .7rem 0; }}
.case:target {{ outline: 2px solid var(--trained); }}
h3 a:not(:hover) {{ text-decoration: none; }}
.cause {{ border-left: 4px solid var(--failed); padding-left: .7rem; }}
.lines {{ white-space: pre-wrap; }}
.dim {{ color: var(--dim); }}
.launch {{ margin: .5rem 0; }}
.label {{ display: flex; flex-wrap: wrap; gap: 0 1rem; font-size: 13px; }}
.track {{ position: relative; height: 1.3rem; margin: 0 .5rem; border-bottom: 1px solid var(--line); }}
.track > * {{ position: absolute; bottom: 0; }}
.trained, .again {{ height: .8rem; min-width: 2px; }}
.trained {{ background: var(--trained); }} .again {{ background: var(--again); }}
.epoch {{ height: 100%; border-left: 1px dotted var(--dim); }}
.mark {{ font: 11px/1 sans-serif; transform: translateX(-50%); }}
.save {{ bottom: .85rem; }} .fault {{ color: var(--failed); font-size: 20px; font-weight: bold; }}
.axis {{ border: 0; margin-bottom: .7rem; font-size: 12px; color: var(--dim); }}
.legend > span {{ display: inline-block; margin-right: 1.2rem; font-size: 13px; }}
.legend i {{ display: inline-block; width: 1.2rem; }}
@media (max-width: 40rem) {{ th, td {{ padding: .2rem; font-size: 12px; }} ul {{ padding-left: 1.2rem; }} }}
@media print {{ body {{ max-width: none; margin: 0; font-size: 10pt; }}
  .filter {{ display: none; }} .case, tr {{ break-inside: avoid; }} .track > *, .legend i {{
  print-color-adjust: exact; }} }}
</style>
</head>
<body>
{body}
</body>
</html>
"""
_LEGEND = (
    '<p class="legend"><span><i class="trained"></i> trained</span><span><i class="again"></i> trained again</span>'
    '<span>▲ checkpoint saved</span><span><b class="FAILED">✕</b> fault</span><span class="dim">Steps are epoch.step, '
    "both counted from 0. A checkpoint has the number of the last step before it.</span></p>"
)


def make_page(report: Results) -> str:
    """Create the page."""
    result, *coverage = describe_result(report).split("\n")
    word = result.partition(":")[0]
    shown = told(report)
    others = [outcome for outcome in report.failed if outcome not in shown]
    order = _order(report)
    title = f"Cases that {'failed' if report.failed else 'passed'}"
    parts = [
        f'<h1 class="{word}">{escape(result)}</h1>',
        *(f"<p>{escape(line)}</p>" for line in coverage),
        f'<pre class="command">{escape(shlex.join(report.command))}</pre>',
        *_section("Likely causes", _causes(report.failed), "ul"),
        *_section(title, [_LEGEND, *(_case(report, outcome, order) for outcome in shown)] if shown else []),
        *_section("More failed cases", [_case(report, outcome, order) for outcome in others]),
        *_section("Kinds of faults", [_kinds(report)]),
        *_section(
            "All cases",
            [_filter(report), _cases(report, {one.name for one in (*shown, *others)})] if report.outcomes else [],
        ),
        *_section("Not compared", [f"<li>{escape(note)}</li>" for note in report.notes], "ul"),
        f'<p class="dim">{escape(", ".join(map(" ".join, report.environment.items())))}</p>',
    ]
    return _PAGE.format(title=escape(f"Chaos: {result.partition('.')[0]}"), body="\n".join(parts))


def _section(title: str, content: Iterable[str], element: str = "div") -> list[str]:
    inside = "\n".join(content)
    return [f"<h2>{escape(title)}</h2>", f"<{element}>{inside}</{element}>"] if inside else []


def _causes(failed: Iterable[Outcome]) -> list[str]:
    """Return each likely cause once, with links to its cases; most cases first."""
    cases: dict[str, list[Outcome]] = {}
    for outcome in failed:
        cases.setdefault(outcome.diagnosis.cause or outcome.diagnosis.text, []).append(outcome)
    found = sorted(cases.values(), key=len, reverse=True)
    return [
        f"<li>{escape(outcomes[0].diagnosis.text or 'The cause is unknown')}. "
        f"{'Case' if len(outcomes) == 1 else 'Cases'}: {', '.join(map(_link, outcomes))}</li>"
        for outcomes in found
    ]


def _link(outcome: Outcome, text: str = "") -> str:
    return f'<a href="#case-{escape(outcome.name)}">{escape(text or outcome.name)}</a>'


def _case(report: Results, outcome: Outcome, order: dict[Key, int]) -> str:
    found = outcome.diagnosis
    parts = [f"<h3>{_link(outcome, f'Case {outcome.name}: {outcome.case}')}</h3>"]
    parts += [f'<div class="dim">{escape(text)}</div>' for text in _moments(report, outcome)]
    if found.text:
        tried = f"<br>Tried: {escape(found.trial)}" if found.trial else ""
        parts.append(f'<p class="cause"><b>Likely cause:</b> {escape(found.text)}{tried}</p>')
    parts += [_timeline(outcome, order)] if outcome.attempts else []
    parts += [
        f'<div class="lines"><b class="FAILED">{escape(name)}</b>: {escape(shorten(text))}</div>'
        for name, text in outcome.violations.items()
    ]
    parts += [f"<div>{escape(line)}</div>" for line in describe_differences(found)]
    if outcome.attempts:
        lines = escape("\n".join(tell_lines(outcome)))
        parts.append(f"<details><summary>The launches in words</summary><pre>{lines}</pre></details>")
    if not outcome.ok:
        parts.append(f'<p>Run it again: <code class="command">{escape(outcome.reproduction)}</code></p>')
        parts.append(_outputs(report, outcome))
    return f'<section class="case" id="case-{escape(outcome.name)}">{"".join(parts)}</section>'


def _moments(report: Results, outcome: Outcome) -> Iterator[str]:
    """Yield what the process is doing at the failpoint of each fault, as in the baseline run."""
    for fault in outcome.case.faults:
        name = fault.point or ""
        if not name and fault.after is None:
            log = report.baseline.ranks.get(fault.rank)
            workers = max(report.baseline.workers, key=len, default=[])
            points = workers if FAULTS[fault.kind].in_worker else log.points if log else []
            name = points[fault.number - 1] if fault.number <= len(points) else ""
        if meaning := POINTS.get(name):
            yield f"{f'{name} number' if fault.point else 'Point'} {fault.number}: {meaning}"


def _outputs(report: Results, outcome: Outcome) -> str:
    """Return links to what each launch printed, next to the page."""
    if report.directory is None or not outcome.attempts:
        return ""
    is_campaign = outcome.directory.parent == report.directory  # not a case that was run again
    above = f"{outcome.name}/" if is_campaign else ""
    launches = dict.fromkeys(attempt.launch for attempt in outcome.attempts)
    links = (f'<a href="{escape(above)}attempt-{launch}/output.txt">{launch}</a>' for launch in launches)
    return f"<p>Output of launch {', '.join(links)}</p>"


def _kinds(report: Results) -> str:
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in make_rows(report)
    )
    return _table(COLUMNS, rows)


def _table(columns: Iterable[str], rows: str) -> str:
    heads = "".join(f"<th>{escape(column)}</th>" for column in columns)
    return f'<table><thead><tr class="head">{heads}</tr></thead><tbody>{rows}</tbody></table>'


# The list of all cases, in which style sheets hide the rows that were not asked for.


def _filter(report: Results) -> str:
    counts = {
        "all": len(report.outcomes),
        "failed": len(report.failed),
        "missed": sum(not outcome.reached for outcome in report.outcomes),
    }
    words = {"all": "all", "failed": "failed", "missed": "not reached"}
    asked = [name for name, count in counts.items() if name == "all" or 0 < count < counts["all"]]
    if len(asked) == 1:
        return ""
    boxes = (
        f'<label><input type="radio" name="only" id="only-{name}"{" checked" * (name == "all")}> '
        f"{words[name]} ({counts[name]})</label>"
        for name in asked
    )
    return f'<div class="filter">{"".join(boxes)}</div>'


def _cases(report: Results, linked: set[str]) -> str:
    rows = "".join(_row(outcome, linked) for outcome in report.outcomes)
    table = _table(("case", "result", "fault", "launches", "steps retrained"), rows)
    return f'<div class="cases">{table}</div>'


def _row(outcome: Outcome, linked: set[str]) -> str:
    word = "FAILED" if not outcome.ok else "PASSED" if outcome.reached else "WARNING"
    kinds = [*(["ok"] if outcome.ok else []), *([] if outcome.reached else ["missed"])]
    fault = str(outcome.case) + ("" if outcome.reached else ", not reached")
    broken = "".join(f'<br><span class="dim">{escape(name)}</span>' for name in outcome.violations)
    name = _link(outcome) if outcome.name in linked else escape(outcome.name)
    return (
        f'<tr class="{" ".join(kinds)}"><td>{name}</td><td class="{word}">{word}</td>'
        f'<td class="words">{escape(fault)}{broken}</td><td>{outcome.starts}</td><td>{outcome.retrained}</td></tr>'
    )


# The timeline of a case: a bar per launch and rank, along the steps of the baseline run.

_MOST_LABELS = 8  # on the axis


def _order(report: Results) -> dict[Key, int]:
    """Number the steps of the main loader in the baseline run."""
    keys = sorted(steps_of(report.baseline))
    main = main_loader(loader for loader, _ in keys)
    return {key: number for number, key in enumerate(key for key in keys if key[0] == main)}


def _timeline(outcome: Outcome, order: dict[Key, int]) -> str:
    epochs = {number: key[1].epoch for key, number in order.items() if key[1].step == 1}
    share = 100 / max(len(order), 1)
    labeled = list(epochs.items())[:: -(-len(epochs) // _MOST_LABELS) or 1]
    axis = "".join(f'<span style="left:{number * share:.2f}%">epoch {epoch}</span>' for number, epoch in labeled)
    lines = "".join(f'<i class="epoch" style="left:{number * share:.2f}%"></i>' for number in epochs if number)
    rows = [
        f'<div class="launch"><div class="label"><b>{_name(line)}</b>'
        f'<span class="dim">{escape(_words(line))}</span></div>'
        f'<div class="track">{lines}{"".join(_marks(line, order, share))}</div></div>'
        for line in tell(outcome.case, outcome.attempts, outcome.evaluating)
    ]
    return "".join([*rows, f'<div class="track axis">{axis}</div>'])


def _name(line: Line) -> str:
    return f"launch {line.start}" + (f", rank {line.rank} of {line.world}" if line.world > 1 or line.resized else "")


def _words(line: Line) -> str:
    return "; ".join(filter(None, [f"resized from {line.resized}" if line.resized else "", line.end]))


def _marks(line: Line, order: dict[Key, int], share: float) -> Iterator[str]:
    for kind, words, keys in (("again", "trained again", line.again), ("trained", "trained", line.trained)):
        for start, length in _bars(keys, order):
            place = f"left:{start * share:.2f}%;width:{length * share:.2f}%"
            yield f'<i class="{kind}" title="{words}: {length} steps" style="{place}"></i>'
    saves = {f"{_behind(key, order) * share:.1f}": key for key in line.saves}  # one per place that can be seen
    for place, key in saves.items():
        name = "the start" if key is None else name_step(key)
        yield f'<i class="mark save" title="checkpoint at {escape(name)}" style="left:{place}%">▲</i>'
    if line.struck:
        last = max((_behind(key, order) for key in (*line.again, *line.trained)), default=0)
        yield f'<b class="mark fault" title="{escape(line.end)}" style="left:{last * share:.2f}%">✕</b>'


def _bars(keys: Iterable[Key], order: dict[Key, int]) -> list[tuple[int, int]]:
    """Combine consecutive steps into bars: the first step and the number of steps of each."""
    bars: list[tuple[int, int]] = []
    for number in sorted(order[key] for key in keys if key in order):
        if bars and sum(bars[-1]) == number:
            bars[-1] = (bars[-1][0], bars[-1][1] + 1)
        else:
            bars.append((number, 1))
    return bars


def _behind(key: Key | None, order: dict[Key, int]) -> int:
    return order[key] + 1 if key in order else 0
