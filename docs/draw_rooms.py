"""Draws `internals/rooms.toml`: the picture `assets/rooms.svg` and the table in `internals/architecture.md`.

python docs/draw_rooms.py
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
ROOMS = DOCS / "internals/rooms.toml"
PICTURE = DOCS / "assets/rooms.svg"
PAGE = DOCS / "internals/architecture.md"
TABLE = re.compile(r"(?<=<!-- rooms -->\n\n).*?(?=\n\n<!-- end of rooms -->)", re.DOTALL)

# All lengths are pixels of a picture that is 400 wide, so the text is as large as it says on a narrow screen.
WIDTH, GAP, TITLE, BOX = 400, 4, 16, 24
STYLE = """\
text { font: 12px system-ui, sans-serif; fill: #1f2328 }
.floor { font-size: 10px; fill: #59636e }
rect { fill: #ffffff; stroke: #8c959f }
.public { fill: #ddf4ff; stroke: #0969da }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc }
  .floor { fill: #9198a1 }
  rect { fill: #0d1117; stroke: #656c76 }
  .public { fill: #0c2d6b; stroke: #4493f8 }
}"""


def floors() -> list[dict[str, Any]]:
    """Return the floors from the top to the bottom, as people see a house."""
    found: list[dict[str, Any]] = tomllib.loads(ROOMS.read_text(encoding="utf-8"))["floors"]
    return found[::-1]


def picture() -> str:
    """Return the picture: a row for each floor, and a box for each room."""
    drawn, top = [], 0
    for floor in floors():
        drawn.append(f'<text class="floor" x="1" y="{top + 12}">{floor["name"]}</text>')
        wide = (WIDTH - 2 - GAP * (len(floor["rooms"]) - 1)) / len(floor["rooms"])
        for number, room in enumerate(floor["rooms"]):
            left = 1 + number * (wide + GAP)
            public = any(not part.startswith("_") for part in room["parts"]) or room["parts"] == ["__init__"]
            box = f'x="{left:.1f}" y="{top + TITLE}" width="{wide:.1f}" height="{BOX}" rx="3"'
            middle = f'x="{left + wide / 2:.1f}" y="{top + TITLE + 16}" text-anchor="middle"'
            kind = "public" if public else "private"
            drawn.append(f'<rect class="{kind}" {box}/>')
            drawn.append(f"<text {middle}>{room['name']}</text>")
        top += TITLE + BOX + GAP
    size = f'viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    return "\n".join([head, "<title>The rooms of resumable</title>", f"<style>\n{STYLE}\n</style>", *drawn, "</svg>\n"])


def table() -> str:
    """Return the table: a line for each room."""
    lines = ["| floor | room | files in `resumable/` | task |", "| --- | --- | --- | --- |"]
    for floor in floors():
        for number, room in enumerate(floor["rooms"]):
            files = ", ".join(f"`{part}`" for part in room["parts"])
            lines.append(f"| {'' if number else floor['name']} | **{room['name']}** | {files} | {room['says']} |")
    return "\n".join(lines)


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
    PAGE.write_text(TABLE.sub(lambda _: table(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
