"""Make `assets/recording.svg`: a terminal in which a training run is killed and started again.

python docs/draw_recording.py         read assets/recording.json
python docs/draw_recording.py --run   run recorded/train.py, kill it, and run it again first
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

__all__ = ["DATA", "PICTURE", "picture"]

DOCS = Path(__file__).parent
DATA, PICTURE = (DOCS / f"assets/recording.{suffix}" for suffix in ("json", "svg"))
KILLED_AFTER = 37  # lines
SHOWN = {"first": (1, 5), "resumed": (9, 2), "other": (1, 2)}  # the first and last lines of each run
PAUSE, HOLD = 0.7, 6.0  # seconds: the longest between two lines, and at the end

# All lengths are pixels of a picture that is 400 wide, so the text is as large as it says on a narrow screen.
WIDTH, LEFT, TOP, LINE = 400, 14, 40, 17
STYLE = """\
.screen { fill: #161b22 }
text { font: 12px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #d1d7e0; white-space: pre }
.typed { fill: #ffffff; font-weight: 700 }
.note { fill: #9198a1 }
.kill { fill: #ff7b72; font-weight: 700 }
.good { fill: #56d364; font-weight: 700 }
@media (prefers-reduced-motion) { g { animation: none !important } }"""


def run() -> list[dict[str, Any]]:
    """Run the program until it is killed, run it again to its end, and run it in another folder without a kill."""
    with tempfile.TemporaryDirectory() as folder:
        (killed := Path(folder, "killed")).mkdir()
        (other := Path(folder, "never-killed")).mkdir()
        return [
            {"name": "first", "lines": _lines(killed, KILLED_AFTER)},
            {"name": "resumed", "lines": _lines(killed)},
            {"name": "other", "lines": _lines(other)},
        ]


def _lines(folder: Path, kill_after: int = 0) -> list[list[Any]]:
    """Return the lines of a run with the seconds at which they came."""
    command = [sys.executable, str(DOCS / "recorded/train.py")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(DOCS.parent)}
    lines: list[list[Any]] = []
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603  # ours
        begun = time.monotonic()
        for line in process.stdout or ():
            lines.append([round(time.monotonic() - begun, 2), line.rstrip()])
            if len(lines) == kill_after:
                process.send_signal(signal.SIGKILL)
                break
    assert process.returncode == (-signal.SIGKILL if kill_after else 0)
    return lines


def picture(runs: list[dict[str, Any]]) -> str:
    """Return the picture, whose lines appear one after the other."""
    commands = {
        "first": "python train.py",
        "resumed": "python train.py",
        "other": "cd ../never-killed; python train.py",
    }
    shown: list[tuple[float, str, str]] = []  # when, kind, text
    now = 0.0
    for one in runs:
        shown.append((now, "typed", f"$ {commands[one['name']]}"))
        before = 0.0
        for seconds, kind, text in _shown(one):
            now += min(seconds - before, PAUSE)
            before = seconds
            shown.append((now, kind, text))
        now += PAUSE
        if one["name"] == "first":
            shown.append((now, "kill", "Killed  (kill -9 from another terminal)"))
            now += 2 * PAUSE
    whole = now + HOLD
    height = TOP + LINE * len(shown) + 6
    rules, lines = [], []
    for number, (when, kind, text) in enumerate(shown):
        start = 100 * when / whole
        rules.append(
            f"@keyframes k{number} {{ 0%, {start:.2f}% {{ opacity: 0 }} {start + 0.01:.2f}% {{ opacity: 1 }} }}"
        )
        line = f'<text class="{kind}" x="{LEFT}" y="{TOP + LINE * number + 8}">{escape(text)}</text>'
        lines.append(f'<g style="animation: k{number} {whole:.1f}s infinite">{line}</g>')
    size = f'width="{WIDTH}" height="{height}"'
    dots = [
        f'<circle cx="{18 + 16 * place}" cy="16" r="5" fill="{color}"/>'
        for place, color in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {size}>'
    style = "\n".join([STYLE, *rules])
    screen = f'<rect class="screen" {size} rx="8"/>'
    return "\n".join([head, f"<style>\n{style}\n</style>", screen, *dots, *lines, "</svg>\n"])


def _shown(one: dict[str, Any]) -> list[tuple[float, str, str]]:
    """Return the lines of a run that the picture has room for."""
    lines = one["lines"]
    first, last = SHOWN[one["name"]]
    skipped = lines[first : len(lines) - last]
    middle = [(skipped[-1][0], "note", f"... {len(skipped)} more steps")] if skipped else []
    return [
        *((seconds, _kind(text), text) for seconds, text in lines[:first]),
        *middle,
        *((seconds, _kind(text), text) for seconds, text in lines[len(lines) - last :]),
    ]


def _kind(text: str) -> str:
    return "good" if text.startswith(("resumed", "weights")) else ""


if __name__ == "__main__":
    if "--run" in sys.argv:
        DATA.write_text(f"{json.dumps(run(), indent=1)}\n", encoding="utf-8")
    PICTURE.write_text(picture(json.loads(DATA.read_text(encoding="utf-8"))), encoding="utf-8")
