"""Common parts of the pictures: 400 pixels of width, and colors for light and dark screens."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["WIDTH", "box", "framed", "label"]

WIDTH = 400  # text is as large as it says on a narrow screen
STYLE = """\
text { font: 12px system-ui, sans-serif; fill: #1f2328 }
.note { font-size: 11px; fill: #59636e }
.bold { font-weight: 600 }
.inside { fill: #ffffff }
.page { fill: #ffffff }
.line { stroke: #8c959f; fill: none }
.mark { stroke: #cc3344; stroke-width: 2; fill: none }
.red { fill: #cc3344 }
.a { fill: #225588 }
.b { fill: #996600 }
.c { fill: #117755 }
.d { fill: #aa3377 }
.pale { fill: #d1d9e0 }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc }
  .note { fill: #9198a1 }
  .page { fill: #0d1117 }
  .mark { stroke: #ff7b72 }
  .red { fill: #ff7b72 }
  .a { fill: #3377bb }
  .pale { fill: #3d444d }
}"""


def framed(height: int, shapes: Iterable[str], style: str = STYLE) -> str:
    """Return a picture."""
    size = f'width="{WIDTH}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {size}>'
    page = f'<rect class="page" {size} rx="6"/>'
    return "\n".join([head, f"<style>\n{style}\n</style>", page, *shapes, "</svg>\n"])


def label(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    """Return a line of text."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def box(x: float, y: float, size: tuple[float, float], kind: str, text: object = "") -> str:
    """Return a box with a text in its middle."""
    wide, high = size
    inside = label(x + wide / 2, y + high / 2 + 4, str(text), "" if kind == "pale" else "inside", "middle")
    shape = f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}" rx="2"/>'
    return shape + (inside if text != "" else "")
