"""The picture: a row per launch and rank, with the steps it trained on, its checkpoints, and its fault."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from resumable.chaos.plan import main_loader
from resumable.chaos.report.text import tell
from resumable.chaos.verify.history import steps_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matplotlib.axes import Axes

    from resumable.chaos.recorder.ledger import Attempt
    from resumable.chaos.report.outcome import Outcome
    from resumable.chaos.report.text import Line
    from resumable.chaos.verify.history import Key

__all__ = ["draw"]

_TRAINED, _AGAIN, _STRUCK, _SAVED, _RESIZED = "#4477aa", "#eebb55", "#cc3344", "#222222", "#228833"
_BAR = 0.5  # of a row's height
_WIDTH, _LEFT, _RIGHT = 10.0, 1.3, 0.2  # inches: the picture, and the margins of its panels
_ROW, _AROUND, _BELOW, _LEGEND = 0.28, 0.75, 0.35, 0.5  # inches: a row, the margins of a panel, below it, the legend
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "resumable",
    "font.family": "sans-serif",
    "font.size": 9,
}


def draw(outcomes: Sequence[Outcome], baseline: Attempt) -> str:
    """Draw one panel per case.

    Args:
        outcomes: the cases, with the records of their launches.
        baseline: the run without faults, whose steps are the axis.

    Returns:
        An SVG element.
    """
    stories = [tell(outcome.case, outcome.attempts, outcome.evaluating) for outcome in outcomes]
    height = _LEGEND + sum(_AROUND + _ROW * len(story) for story in stories)
    with mpl.rc_context(_STYLE):
        figure, top = Figure(figsize=(_WIDTH, height)), height
        for outcome, story in zip(outcomes, stories, strict=True):
            top -= _AROUND + _ROW * len(story)
            place = (_LEFT / _WIDTH, (top + _BELOW) / height, 1 - (_LEFT + _RIGHT) / _WIDTH, _ROW * len(story) / height)
            _draw_panel(figure.add_axes(place), outcome, story, _order(baseline))
        figure.legend(handles=_legend(), loc="lower center", ncols=3, frameon=False)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Creator": None, "Date": None, "Format": None, "Type": None})
    return file.getvalue()[file.getvalue().index("<svg") :]


def _order(baseline: Attempt) -> dict[Key, int]:
    """Number the steps of the main loader."""
    keys = sorted(steps_of(baseline))
    main = main_loader(loader for loader, _ in keys)
    return {key: number for number, key in enumerate(key for key in keys if key[0] == main)}


def _draw_panel(panel: Axes, outcome: Outcome, story: Sequence[Line], order: dict[Key, int]) -> None:
    panel.set_title(f"case {outcome.name}: {outcome.case}", loc="left", fontsize=9, parse_math=False)
    words, color = ("passed", _RESIZED) if outcome.ok else (", ".join(outcome.violations), _STRUCK)
    panel.set_title(words, loc="right", fontsize=9, color=color, parse_math=False)
    for row, line in enumerate(story):
        _draw_line(panel, row, line, order)
    for key, number in order.items():
        if key[1].step == 1 and number:
            panel.axvline(number, color="#999999", linewidth=0.8, linestyle=":")
    panel.set_yticks(range(len(story)), [f"launch {line.start}, rank {line.rank}/{line.world}" for line in story])
    panel.set_ylim(len(story) - 0.4, -0.6)
    panel.set_xlim(0, max(len(order), 1))
    panel.spines[["top", "right"]].set_visible(False)


def _draw_line(panel: Axes, row: int, line: Line, order: dict[Key, int]) -> None:
    for keys, color in ((line.again, _AGAIN), (line.trained, _TRAINED)):
        panel.broken_barh(_bars(keys, order), (row - _BAR / 2, _BAR), facecolors=color)
    saves = [_behind(key, order) for key in line.saves]
    panel.plot(saves, [row + 0.37] * len(saves), "^", color=_SAVED, markersize=3.5, clip_on=False)
    if line.resized:
        place = min((order[key] for key in (*line.again, *line.trained) if key in order), default=0)
        panel.plot([place], [row], "D", color=_RESIZED, markersize=6, clip_on=False)
    if line.struck:
        last = max((_behind(key, order) for key in (*line.again, *line.trained)), default=0)
        panel.plot([last], [row], "x", color=_STRUCK, markersize=9, markeredgewidth=2.5, clip_on=False)


def _bars(keys: Iterable[Key], order: dict[Key, int]) -> list[tuple[float, float]]:
    """Combine consecutive steps into bars: the start and the width of each."""
    bars: list[tuple[float, float]] = []
    for number in sorted(order[key] for key in keys if key in order):
        if bars and sum(bars[-1]) == number:
            bars[-1] = (bars[-1][0], bars[-1][1] + 1)
        else:
            bars.append((number, 1))
    return bars


def _behind(key: Key | None, order: dict[Key, int]) -> int:
    return order[key] + 1 if key in order else 0


def _legend() -> list[Patch | Line2D]:
    nothing: list[float] = []
    return [
        Patch(color=_TRAINED, label="trained"),
        Patch(color=_AGAIN, label="trained again"),
        Line2D(nothing, nothing, color="#999999", linestyle=":", label="start of an epoch"),
        Line2D(nothing, nothing, color=_SAVED, marker="^", linestyle="", label="checkpoint saved"),
        Line2D(nothing, nothing, color=_STRUCK, marker="x", linestyle="", markeredgewidth=2.5, label="fault"),
        Line2D(nothing, nothing, color=_RESIZED, marker="D", linestyle="", label="changed number of ranks"),
    ]
