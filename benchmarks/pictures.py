"""Pictures of the tables of the suite `scale`, for the page about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from benchmarks.report import Table

__all__ = ["draw"]

_BLUE, _GREY = "#2563eb", "#9ca3af"


def draw(folder: Path, tables: Sequence[Table]) -> list[Path]:
    """Draw each table as a picture, `scale-samples.png` and so on: one panel per column, and return their paths."""
    return [_picture(folder / f"scale-{table.columns[0]}.png", table) for table in tables]


def _picture(path: Path, table: Table) -> Path:
    figure = Figure(figsize=(3.1 * (len(table.columns) - 1), 2.7), layout="constrained")
    axes = figure.subplots(1, len(table.columns) - 1, squeeze=False)[0]
    for number, ax in enumerate(axes, start=1):
        points = [(float(row[0]), float(row[number])) for row in table.rows if row[number]]
        _panel(ax, table.columns[0], table.columns[number], points)
    figure.savefig(path, dpi=110)
    return path


def _panel(ax: Axes, below: str, title: str, points: list[tuple[float, float]]) -> None:
    places, heights = [place for place, _ in points], [height for _, height in points]
    ax.plot(places, heights, "o-", color=_BLUE, linewidth=1.5, markersize=4)
    if max(places) > 100:
        ax.set_xscale("log")
    ax.set_ylim(0, max(*heights, 1e-9) * 1.6)
    ax.set_title(title, fontsize=9)
    ax.set_xlabel(below, fontsize=9)
    ax.tick_params(labelsize=8)
    ax.grid(color=_GREY, alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)
