"""Pictures of the documentation show what the library does today, and what a recorded run printed."""

from __future__ import annotations

import json
import sys
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

import draw_chaos
import draw_counting
import draw_ranks
import draw_recording
import draw_scale

import resumable
from resumable.chaos.verify.causes import CAUSES
from resumable.failpoints import POINTS


def runs() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(draw_recording.DATA.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("script", [draw_ranks, draw_counting])
def test_a_picture_shows_what_loaders_do(script: Any) -> None:
    drawn = script.PICTURE.read_text(encoding="utf-8")
    assert drawn == script.picture(), f"run `python docs/{script.__name__}.py`"


def test_the_picture_of_ranks_has_the_global_batches_of_one_rank() -> None:
    shown = [[*chain.from_iterable(shares)] for shares in draw_ranks.batches()]
    options: dict[str, Any] = {"batch_size": draw_ranks.GLOBAL, "shuffle": True, "seed": 0}
    alone = list(resumable.wrap(list(range(draw_ranks.SAMPLES)), name="alone", **options))
    assert shown == list(resumable.wrap(list(range(draw_ranks.SAMPLES)), **options))
    assert shown != alone  # the order depends on the seed and the name
    assert Counter(chain.from_iterable(shown)) == Counter(range(draw_ranks.SAMPLES))


@pytest.mark.parametrize("path", draw_scale.PICTURES, ids=lambda path: path.stem)
def test_a_picture_of_scale_shows_the_recorded_table(path: Path) -> None:
    drawn = draw_scale.picture(draw_scale.PICTURES[path])
    assert path.read_text(encoding="utf-8") == drawn, "run `python docs/draw_scale.py`"


def test_the_picture_of_the_terminal_shows_its_recording() -> None:
    drawn = draw_recording.PICTURE.read_text(encoding="utf-8")
    assert drawn == draw_recording.picture(runs()), "run `python docs/draw_recording.py`"


def test_the_recorded_run_repeats_its_steps_and_ends_with_the_same_weights() -> None:
    first, resumed, other = ([text for _, text in one["lines"]] for one in runs())
    assert len(first) == draw_recording.KILLED_AFTER
    assert resumed[0] == "resumed after step 30"
    assert resumed[1:8] == first[30:]
    assert [*first, *resumed[8:]] == other
    assert other[-1].startswith("weights: ")


def test_the_picture_of_the_report_shows_a_case_of_the_tutorial() -> None:
    """Its cause, its point and its kill are those that the library and the tutorial name today."""
    shown = json.loads(draw_chaos.DATA.read_text(encoding="utf-8"))
    drawn = draw_chaos.PICTURE.read_text(encoding="utf-8")
    assert drawn == draw_chaos.picture(shown), "run `python docs/draw_chaos.py`"
    page = draw_chaos.PAGE.read_text(encoding="utf-8")
    assert f"$ {draw_chaos.COMMAND}\n" in page
    assert shown["case"].replace("Case", "\ncase") in page
    assert shown["again"] in page
    assert shown["point"].partition(": ")[2] in POINTS.values()
    cause = next(one for one in CAUSES if one.name == "loader not saved")
    assert cause.text.replace("{no place}", "1") in shown["cause"], "run `python docs/draw_chaos.py --run`"
    first, again = shown["launches"]
    ((trained, _, killed_at),) = first["bars"]
    assert (trained, [killed_at]) == ("trained", first["fault"])
    assert again["bars"] == [["again", "0.00", killed_at], ["trained", killed_at, f"{100 - float(killed_at):.2f}"]]
    assert again["saves"][: len(first["saves"])] == first["saves"]
