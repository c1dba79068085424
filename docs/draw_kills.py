"""Make `assets/kills.svg`, the picture of the README: a training run that was killed three times.

python docs/draw_kills.py         read assets/kills.json
python docs/draw_kills.py --run   train and kill first, with the code of the demo
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from demo.catalogue import find_source
from demo.digits import load_digits, write_digits
from demo.experiment import Experiment
from demo.harness import fork_servers

DATA, PICTURE = (Path(__file__).parent / f"assets/kills.{suffix}" for suffix in ("json", "svg"))
SEED = 2  # its kills are far apart

# All lengths are pixels of a picture that is 400 wide, so the text is as large as it says on a narrow screen.
WIDTH, LEFT, RIGHT, TOP, ROW, BAR = 400, 48, 14, 22, 27, 14
STYLE = """\
text { font: 12px system-ui, sans-serif; fill: #1f2328 }
.note { font-size: 11px; fill: #59636e }
.page { fill: #ffffff }
.first { fill: #4477aa }
.again { fill: #eebb55 }
.kill { stroke: #cc3344; stroke-width: 3 }
.save { fill: #59636e }
.end { stroke: #8c959f; stroke-dasharray: 2 3 }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc }
  .note { fill: #9198a1 }
  .page { fill: #0d1117 }
  .first { fill: #6699cc }
  .kill { stroke: #ff7b72 }
  .save { fill: #9198a1 }
}"""


def run() -> dict[str, Any]:
    """Train from a `DataLoader` twice, once with kills; return what the picture shows."""
    with tempfile.TemporaryDirectory() as folder, fork_servers() as preload:
        digits = Path(folder) / "digits.npz"
        write_digits(load_digits(), digits)
        experiment = Experiment(find_source("map-style"), digits, Path(folder) / "runs", 3, SEED)
        comparison = experiment.run(preload, lambda _, __, ___: None)
    return {
        "identical": comparison.verdict.identical,
        "epoch_ends": comparison.baseline.epoch_ends,
        "processes": [
            {"resumed": one.resumed, "last": one.last, "saves": one.saves, "killed": not one.ended}
            for one in comparison.attempts
        ],
    }


def picture(data: dict[str, Any]) -> str:
    """Return the picture: a row per process."""
    processes, ends = data["processes"], data["epoch_ends"]
    bottom = TOP + ROW * len(processes)
    height = bottom + 44
    size = f'width="{WIDTH}" height="{height}"'
    shapes = [f'<rect class="page" {size} rx="6"/>']
    for number, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
        shapes.append(f'<path class="end" d="M{_x(end, ends)} {TOP - 4}V{bottom}"/>')
        shapes.append(_text((_x(begin, ends) + _x(end, ends)) / 2, 14, f"epoch {number}", "note", "middle"))
    seen = 0
    for number, one in enumerate(processes):
        shapes += _row(TOP + ROW * number + 4, number, one, seen, ends)
        seen = max(seen, one["last"])
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {size}>',
            f"<style>\n{STYLE}\n</style>",
            *shapes,
            *_legend(bottom + 18),
            "</svg>\n",
        ]
    )


def _x(count: int, ends: list[int]) -> float:
    return round(LEFT + (WIDTH - LEFT - RIGHT) * count / ends[-1], 1)


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{text}</text>'


def _row(y: int, number: int, one: dict[str, Any], seen: int, ends: list[int]) -> list[str]:
    """Draw a process; `seen` batches had been trained on by those before."""
    again = min(max(seen, one["resumed"]), one["last"])
    shapes = [_text(LEFT - 6, y + 12, f"run {number + 1}", "", "end")]
    for kind, begin, end in [("again", one["resumed"], again), ("first", again, one["last"])]:
        if begin < end:
            left, right = _x(begin, ends), _x(end, ends)
            shapes.append(f'<rect class="{kind}" x="{left:g}" y="{y}" width="{right - left:.1f}" height="{BAR}"/>')
    shapes += [_triangle(_x(count, ends), y + BAR + 1) for count in one["saves"]]
    return shapes + ([_cross(_x(one["last"], ends), y + BAR / 2)] if one["killed"] else [])


def _triangle(x: float, y: float) -> str:
    return f'<path class="save" d="M{x:g} {y:g}l3.5 6h-7z"/>'


def _cross(x: float, y: float) -> str:
    return f'<path class="kill" d="M{x - 6:g} {y - 6:g}l12 12m0 -12l-12 12"/>'


def _legend(y: int) -> list[str]:
    return [
        f'<rect class="first" x="10" y="{y - 9}" width="14" height="10"/>',
        _text(29, y, "trained"),
        f'<rect class="again" x="84" y="{y - 9}" width="14" height="10"/>',
        _text(103, y, "trained again"),
        _triangle(196, y - 8),
        _text(205, y, "checkpoint"),
        _cross(286, y - 4),
        _text(298, y, "kill -9"),
        _text(10, y + 18, "Final weights: bit-identical to a run that was never killed", "note"),
    ]


if __name__ == "__main__":
    if "--run" in sys.argv:
        DATA.write_text(f"{json.dumps(run(), indent=1)}\n", encoding="utf-8")
    PICTURE.write_text(picture(json.loads(DATA.read_text(encoding="utf-8"))), encoding="utf-8")
