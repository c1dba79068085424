"""Make `assets/chaos.svg`: an excerpt of the report of a chaos run.

python docs/draw_chaos.py         read assets/chaos.json
python docs/draw_chaos.py --run   break the first program of debug/chaos.md first
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from html import unescape
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from drawing import STYLE, WIDTH, framed, label

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["COMMAND", "DATA", "PAGE", "PICTURE", "picture"]

DOCS = Path(__file__).parent
PAGE = DOCS / "debug/chaos.md"
DATA, PICTURE = (DOCS / f"assets/chaos.{suffix}" for suffix in ("json", "svg"))
COMMAND = "resumable chaos run --points 4 --jobs 2 -- python train.py"
LEFT, INNER = 16, 30  # of the page, and of a case
TRACK = WIDTH - 2 * INNER - 16  # the length of all steps
LINE = 17
LETTERS = 54  # in a line
COLORS = (
    ".code { font: 11px ui-monospace, Menlo, Consolas, monospace }\n"
    ".shade { fill: #f3f5f7 }\n"
    ".verdict { font-size: 14px; font-weight: 700; fill: #cc3344 }\n"
    ".trained { fill: #4477aa }\n"
    ".again { fill: #e0a526 }\n"
    "@media (prefers-color-scheme: dark) {\n"
    "  .shade { fill: #1c232c }\n  .verdict { fill: #ff7b72 }\n  .trained { fill: #6ea8dc }\n}"
)


def run() -> dict[str, Any]:
    """Run the command of the tutorial, and return what its report shows of the first case."""
    found = re.search(r'```python title="train.py"\n(.*?)```', PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(DOCS.parent)}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(found[1], encoding="utf-8")
        words = [sys.executable, "-m", *shlex.split(COMMAND.replace("-- python", f"-- {sys.executable}"))]
        subprocess.run(words, cwd=folder, env=environment, check=False)  # noqa: S603  # ours; its status says FAILED
        page = Path(folder, "runs/chaos/report.html").read_text(encoding="utf-8")
    return excerpt(page)


def excerpt(page: str) -> dict[str, Any]:
    """Return the verdict of a report, and its first case."""
    case = _all('(<section class="case".*?</section>)', page)[0]
    verdict = _all('<h1 class="FAILED">(.*?)</h1>', page)[0]
    return {
        "verdict": verdict.partition(". ")[0] + ".",
        "case": _all("<h3><a.*?>(.*?)</a></h3>", case)[0],
        "point": _all('<div class="dim">(.*?)</div>', case)[0],
        "cause": _all('<p class="cause"><b>Likely cause:</b> (.*?)(?:<br>|</p>)', case)[0],
        "launches": [
            {
                "name": _all("<b>(.*?)</b>", one)[0],
                "end": _all('<span class="dim">(.*?)</span>', one)[0],
                "bars": _all(r'class="(trained|again)".*?left:([\d.]+)%;width:([\d.]+)%', one),
                "saves": _all(r'class="mark save".*?left:([\d.]+)%', one),
                "fault": _all(r'class="mark fault".*?left:([\d.]+)%', one),
            }
            for one in _all(r'<div class="launch">(.*?</div>.*?)</div></div>', case)
        ],
        "epochs": _all(r'<span style="left:([\d.]+)%">(.*?)</span>', case),
        "broken": _all('<b class="FAILED">(.*?)</b>(: .*?)</div>', case),
        "others": _all("<div>((?:differ|equal): .*?)</div>", case),
        "again": _all('<code class="command">(.*?)</code>', case)[0],
    }


def _all(pattern: str, text: str) -> list[Any]:
    found = re.findall(pattern, text, re.DOTALL)
    return [unescape(one) if isinstance(one, str) else [unescape(part) for part in one] for one in found]


def picture(shown: dict[str, Any]) -> str:
    """Return the picture."""
    shapes, top = [], 8.0

    def write(text: str, kind: str = "", left: float = INNER, letters: int = LETTERS) -> None:
        nonlocal top
        for line in wrap(text, letters):
            top += LINE
            shapes.append(label(left, top, line, kind))

    write(shown["verdict"], "verdict", LEFT, LETTERS - 8)
    top += 12
    start = top
    top += 4
    write(shown["case"], "bold")
    write(shown["point"], "note")
    top += 6
    above = top
    write(f"Likely cause: {shown['cause']}", "", INNER + 10, LETTERS - 3)
    shapes.append(f'<rect class="red" x="{INNER}" y="{above + 3:g}" width="3" height="{top - above + 2:g}"/>')
    top += 4
    for launch in shown["launches"]:
        top += LINE + 3
        shapes += [label(INNER, top, launch["name"], "bold"), label(INNER + 66, top, launch["end"], "note")]
        top += 24
        shapes += _track(launch, top)
    top += 14
    shapes += [label(INNER + 8 + float(at) * TRACK / 100, top, name, "note") for at, name in shown["epochs"]]
    top += 4
    for name, rest in shown["broken"]:
        first = len(shapes)
        write(name + rest)
        shapes[first] = shapes[first].replace(name, f'<tspan class="red bold">{name}</tspan>', 1)
    for text in shown["others"]:
        write(text)
    write("Run it again:")
    top += 8
    shapes.append(f'<rect class="shade" x="{INNER}" y="{top:g}" width="{WIDTH - 2 * INNER}" height="20" rx="3"/>')
    shapes.append(label(INNER + 8, top + 14, shown["again"], "code"))
    top += 30
    size = f'width="{WIDTH - 2 * LEFT + 4}" height="{top - start:g}"'
    shapes.append(f'<rect class="line" x="{LEFT - 2}" y="{start:g}" {size} rx="6"/>')
    top += 18
    shapes += _legend(top)
    return framed(int(top) + 10, shapes, f"{STYLE}\n{COLORS}")


def _track(launch: dict[str, Any], bottom: float) -> Iterator[str]:
    """Draw what a launch trained, its checkpoints and its fault, above a line."""
    left = INNER + 8
    yield f'<path class="line" d="M{left} {bottom:g}h{TRACK}"/>'
    for kind, at, length in launch["bars"]:
        place = f'x="{left + float(at) * TRACK / 100:.1f}" width="{float(length) * TRACK / 100:.1f}"'
        yield f'<rect class="{kind}" {place} y="{bottom - 12:g}" height="12"/>'
    for at in launch["saves"]:
        yield _save(left + float(at) * TRACK / 100, bottom - 13)
    for at in launch["fault"]:
        yield _fault(left + float(at) * TRACK / 100, bottom - 6)


def _save(x: float, y: float) -> str:
    return f'<path d="M{x - 3:.1f} {y:g}h6l-3 -5z" fill="#8c959f"/>'


def _fault(x: float, y: float) -> str:
    return f'<path class="mark" d="M{x - 5:.1f} {y - 5:g}l10 10m0 -10l-10 10"/>'


def _legend(top: float) -> Iterator[str]:
    entries = (("trained", 0.0), ("trained again", 68.0), ("checkpoint", 170.0), ("fault", 258.0))
    for text, at in entries:
        yield label(LEFT + at + 18, top, text, "note")
    for kind, at in (("trained", 0.0), ("again", 68.0)):
        yield f'<rect class="{kind}" x="{LEFT + at:g}" y="{top - 9:g}" width="13" height="10"/>'
    yield _save(LEFT + 176, top - 1)
    yield _fault(LEFT + 266, top - 4)


if __name__ == "__main__":
    if "--run" in sys.argv:
        DATA.write_text(f"{json.dumps(run(), indent=1)}\n", encoding="utf-8")
    PICTURE.write_text(picture(json.loads(DATA.read_text(encoding="utf-8"))), encoding="utf-8")
