"""The picture: what each process trained on, where it saved, and where it was killed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from .attempt import Attempt
    from .experiment import Comparison

__all__ = ["draw_timeline"]

_TRAINED, _RETRAINED, _KILLED, _SAVED, _IDENTICAL = "#4477aa", "#eebb55", "#cc3344", "#222222", "#228833"
_COLUMNS = 3
_BAR = 0.5  # of a row's height


def draw_timeline(comparisons: Sequence[Comparison], path: Path) -> None:
    """Draw a panel per source with a row per process, and write the picture.

    Args:
        comparisons: the results.
        path: of the file; its suffix determines the format.
    """
    columns = min(_COLUMNS, len(comparisons))
    rows = -(-len(comparisons) // columns)
    figure = Figure(figsize=(max(8, 4.8 * columns), 0.8 + 1.4 * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel, comparison in zip(panels, comparisons, strict=False):
        _draw_panel(panel, comparison)
    for panel in panels[len(comparisons) :]:
        panel.set_axis_off()
    for panel in panels[max(0, len(comparisons) - columns) : len(comparisons)]:
        panel.set_xlabel("batches in the weights", fontsize=8)
    figure.legend(handles=_legend(), loc="outside lower center", ncols=2 * columns, frameon=False)
    figure.savefig(path, dpi=120)


def _draw_panel(panel: Axes, comparison: Comparison) -> None:
    identical = comparison.verdict.identical
    panel.set_title(comparison.source.label, loc="left", fontsize=9)
    words, color = ("identical", _IDENTICAL) if identical else ("DIFFERS", _KILLED)
    panel.set_title(words, loc="right", fontsize=9, color=color)
    seen = 0
    for row, attempt in enumerate(comparison.attempts):
        _draw_attempt(panel, row, attempt, seen)
        seen = max(seen, attempt.last)
    for end in comparison.baseline.epoch_ends:
        panel.axvline(end, color="#999999", linewidth=0.8, linestyle=":")
    _draw_axes(panel, len(comparison.attempts), comparison.baseline.last)


def _draw_axes(panel: Axes, rows: int, batches: int) -> None:
    panel.set_yticks(range(rows), [f"process {row + 1}" for row in range(rows)], fontsize=8)
    panel.set_ylim(rows - 0.4, -0.6)
    panel.set_xlim(0, batches)
    panel.tick_params(axis="x", labelsize=8)
    panel.spines[["top", "right"]].set_visible(False)


def _draw_attempt(panel: Axes, row: int, attempt: Attempt, seen: int) -> None:
    """Draw a process; earlier ones had trained on `seen` batches."""
    again = min(max(seen, attempt.resumed), attempt.last)
    panel.barh(row, again - attempt.resumed, _BAR, attempt.resumed, color=_RETRAINED)
    panel.barh(row, attempt.last - again, _BAR, again, color=_TRAINED)
    panel.plot(attempt.saves, [row + 0.4] * len(attempt.saves), "^", color=_SAVED, markersize=2.5)
    if not attempt.ended:
        panel.plot([attempt.last], [row], "x", color=_KILLED, markersize=9, markeredgewidth=2.5, clip_on=False)


def _legend() -> list[Patch | Line2D]:
    nothing: list[float] = []
    return [
        Patch(color=_TRAINED, label="trained"),
        Patch(color=_RETRAINED, label="trained again"),
        Line2D(nothing, nothing, color=_SAVED, marker="^", linestyle="", markersize=4, label="checkpoint saved"),
        Line2D(nothing, nothing, color=_KILLED, marker="x", linestyle="", markeredgewidth=2.5, label="killed"),
        Line2D(nothing, nothing, color="#999999", linestyle=":", label="end of an epoch, evaluation"),
        Line2D(nothing, nothing, linestyle="", label="identical: to the baseline run"),
    ]
