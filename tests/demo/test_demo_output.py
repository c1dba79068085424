"""The command line, and what the demo prints and draws."""

from __future__ import annotations

import io
import os
import re
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
from demo import catalogue, extras
from demo.__main__ import main
from demo.announcement import announce
from demo.attempt import Attempt, Place, Trained
from demo.catalogue import SOURCES, find_source
from demo.experiment import Comparison
from demo.options import parse_options
from demo.table import make_table
from demo.timeline import draw_timeline
from demo.verdict import compare
from rich.console import Console

from resumable.errors import MissingDependencyError, UnsupportedError

if TYPE_CHECKING:
    from pathlib import Path


def attempt(first: int, last: int, *, ended: bool) -> Attempt:
    """Make an attempt in epochs of 24 batches."""
    batches = {count: Trained(Place(*divmod(count - 1, 24)), "digest") for count in range(first + 1, last + 1)}
    return Attempt(
        resumed=first,
        begun=Place(*divmod(first, 24)),
        received=0.025,
        batches=batches,
        saves=[first + 6, last],
        state_bytes=321,
        epoch_ends=[count for count in (24, 48, 72) if first < count <= last],
        weights="weights" if ended else None,
    )


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing extra is named with the command that installs it."""
    monkeypatch.setattr(extras, "find_spec", lambda module: None if module in {"rich", "sklearn"} else object())
    with pytest.raises(MissingDependencyError, match=r"rich, scikit-learn.*\n.*pip install \"resumable-data\[demo\]\""):
        extras.check_extras()


def test_a_demo_that_cannot_run_exits_with_2_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["demo"])
    assert main() == 2
    assert capsys.readouterr().err.startswith(
        "MissingDependencyError: the demo needs matplotlib, pytorch-lightning, rich,"
    )


def test_a_system_without_fork_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    with pytest.raises(UnsupportedError, match="Linux or macOS"):
        extras.check_extras()


def test_nothing_is_missing_here() -> None:
    extras.check_extras()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--backends", "lists"], "unknown source: 'lists'"),
        (["--kills", "0"], "expected a whole number from 1"),
        (["--jobs", "two"], "got 'two'"),
    ],
)
def test_a_bad_option_is_refused(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_options(arguments)
    assert says in capsys.readouterr().err


HERE = [source for name, source in SOURCES.items() if name != "transformers"]  # which has an environment on top of this


def test_all_sources_are_run_unless_some_are_chosen() -> None:
    assert parse_options([]).sources == HERE
    assert parse_options(["--backends", "list", "a:b"]).sources == [SOURCES["list"], find_source("a:b")]


def hide(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """Make an environment of this one in which some modules are not installed."""
    monkeypatch.setattr(catalogue, "find_spec", lambda name: None if name in modules else find_spec(name))


def test_left_out_sources_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sources that are left out are named, with the command that installs their packages."""
    hide(monkeypatch, "nvidia.dali", "ffcv", "tensorflow", "tensorflow_datasets")
    options = parse_options([])
    said = announce(options)
    assert said.startswith("16 sources, each trained twice: a baseline run, and a run that is killed 3 times")
    left_out = dict(re.findall(r"^  (.*): (pip install .*)$", said, flags=re.MULTILINE))
    assert set(left_out) == {source.label for source in SOURCES.values()} - {source.label for source in options.sources}
    assert left_out["Lightning, FFCV"] == 'pip install "resumable-data[ffcv]"'
    assert left_out["tf.data, shuffle buffer"] == 'pip install "resumable-data[tf]"'
    assert left_out["transformers Trainer"] == 'pip install "resumable-data[transformers]"'
    assert "`make demo-all`" in said


def test_an_extra_is_named_for_every_module_that_a_source_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    for source in HERE:
        assert catalogue.missing_extras(source) == []
    monkeypatch.setattr(catalogue, "find_spec", lambda _: None)
    assert catalogue.missing_extras(SOURCES["lightning-dali"]) == ["torch", "lightning", "dali"]
    assert catalogue.missing_extras(SOURCES["tfds"]) == ["torch", "tfds"]
    assert catalogue.missing_extras(SOURCES["accelerate"]) == ["torch", "accelerate"]
    assert catalogue.missing_extras(SOURCES["hugging-face"]) == ["torch", "datasets"]
    for source in SOURCES.values():
        assert len(catalogue.missing_extras(source)) == len({module.partition(".")[0] for module in source.slow})


def test_nothing_is_left_out_where_sources_were_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "ffcv")
    said = announce(parse_options(["--backends", "list", "--kills", "1"]))
    assert said.startswith("1 source, each trained twice: a baseline run, and a run that is killed 1 time with")
    assert "Left out" not in said


def comparisons() -> list[Comparison]:
    baseline = attempt(0, 72, ended=True)
    attempts = [attempt(0, 10, ended=False), attempt(6, 30, ended=False), attempt(30, 72, ended=True)]
    other = [*attempts[:2], Attempt(resumed=30, weights="other")]
    return [
        Comparison(SOURCES["list"], baseline, attempts, compare(baseline, attempts, 2)),
        Comparison(SOURCES["stream"], baseline, other, compare(baseline, other, 2)),
    ]


def test_table_has_rows_and_lines() -> None:
    """The table has a row for each source and a line for each kill."""
    console = Console(width=110, file=io.StringIO())
    with console.capture() as capture:
        console.print(make_table(comparisons()))
    rows = [line.split() for line in capture.get().splitlines()]
    assert ["list", "0.09", "0.06", "4", "yes", "yes", "yes", "321", "25", "25"] in rows
    assert ["1.05", "1.06"] in rows
    assert any(row[-7:-3] == ["4", "no", "yes", "no"] for row in rows)


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    draw_timeline(comparisons(), tmp_path / "timeline.png")
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")
