"""Make `assets/scale-*.svg`: how costs grow, from `benchmarks/results.md`. `python docs/draw_scale.py`."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from drawing import framed, label

from benchmarks.page import RESULTS, Row, tables

__all__ = ["PICTURES", "picture"]

ASSETS = Path(__file__).parent / "assets"
PICTURES = {
    ASSETS / "scale-samples.svg": "As the dataset grows",
    ASSETS / "scale-workers.svg": "As the workers grow",
    ASSETS / "scale-ranks.svg": "As the ranks grow",
}
# A panel per column of the table: its corner, and the area of its curve inside.
PANEL, GAP, LEFT, TOP, WIDE, HIGH, TITLE = (200, 138), 10, 48, 42, 136, 62, 26
SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
DIGITS = 4
LOGARITHMIC = 100  # a larger number than this is on an axis of powers of ten


def picture(title: str) -> str:
    """Return the picture of a table: the first column is below every panel, and each other column has one."""
    rows = tables(RESULTS.read_text(encoding="utf-8"))[title]
    below, *columns = rows[0]
    shapes = []
    for number, column in enumerate(columns):
        corner = (PANEL[0] * (number % 2), GAP + PANEL[1] * (number // 2))
        shapes += _panel(corner, rows, below, column)
    return framed(GAP + PANEL[1] * ((len(columns) + 1) // 2), shapes)


def _panel(corner: tuple[int, int], rows: list[Row], below: str, column: str) -> list[str]:
    """Draw a column as a curve over an axis from zero: a constant cost is a flat line."""
    points = [(float(row[below]), float(row[column])) for row in rows if row[column]]
    end = points[-1][0]
    places = range(len(points)) if end > LOGARITHMIC else [place / end * (len(points) - 1) for place, _ in points]
    top = max(height for _, height in points) * 1.3
    x, y = corner[0] + LEFT, corner[1] + TOP
    curve = [
        (x + WIDE * place / (len(points) - 1), y + HIGH * (1 - height / top))
        for place, (_, height) in zip(places, points, strict=True)
    ]
    first, last, highest = (_number(value) for value in (points[0][0], end, max(height for _, height in points)))
    joined = "L".join(f"{left:.1f} {high:.1f}" for left, high in curve)
    title = textwrap.wrap(column.replace("us ", "µs "), TITLE)
    return [
        *(label(corner[0] + 10, corner[1] + 14 + 15 * line, text, "bold") for line, text in enumerate(title)),
        f'<path class="line" d="M{x} {y}V{y + HIGH}H{x + WIDE}"/>',
        label(x - 6, y + HIGH + 4, "0", "note", "end"),
        label(x - 6, y + HIGH * (1 - 1 / 1.3) + 4, highest, "note", "end"),
        f'<path fill="none" stroke="#3377bb" stroke-width="1.5" d="M{joined}"/>',
        *(f'<circle class="a" cx="{left:.1f}" cy="{high:.1f}" r="3"/>' for left, high in curve),
        label(curve[0][0], y + HIGH + 18, first, "note", "middle"),
        label(x + WIDE / 2, y + HIGH + 18, below, "note", "middle"),
        label(x + WIDE, y + HIGH + 18, last, "note", "middle"),
    ]


def _number(value: float) -> str:
    """Write a number with up to four digits; longer ones are powers of ten."""
    exponent = len(f"{value:.0f}") - 1
    if exponent >= DIGITS:
        return f"10{str(exponent).translate(SUPERSCRIPTS)}"
    return f"{value:g}" if exponent == 0 else f"{value:.0f}"


def main() -> None:
    """Write all pictures."""
    for path, title in PICTURES.items():
        path.write_text(picture(title), encoding="utf-8")


if __name__ == "__main__":
    main()
