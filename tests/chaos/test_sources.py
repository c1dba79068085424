"""`make chaos`: the catalogue has every backend in it, and each of its sources goes through every kind of fault."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from demo.catalogue import SOURCES, Source
from demo.chaos import main
from demo.digits import Digits
from demo.matrix import Row
from demo.page import BEGIN, END, make_tables, write_page

import resumable
from resumable._fetch import IndexedFetcher
from resumable.chaos import Case, Fault, Launch, Outcome, Report
from resumable.chaos.ledger import Attempt
from resumable.loader import registry
from resumable.loader import wrap as _wrap

REPOSITORY = Path(__file__).parents[2]


def wrap(source: Source) -> resumable.Loader:
    """Make the loader of a source, or wrap what its training program does."""
    module, _, function = source.make.partition(":")
    images = np.random.default_rng(0).random((200, 8, 8), dtype=np.float32)
    made = getattr(import_module(module), function)(Digits(images, np.arange(200, dtype=np.int64) % 10))
    return made if isinstance(made, resumable.Loader) else resumable.wrap(made)


def kind_of(loader: resumable.Loader) -> str:
    if isinstance(loader._fetcher, IndexedFetcher):
        return "indexed"
    next(iter(loader))
    return "snapshot" if loader.state_dict()["source_state"] else "replay"


@pytest.mark.slow
def test_every_adapter_and_every_kind_of_backend_has_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever registers a backend has to give the demo a source of it, and so chaos."""
    asked: set[str] = set()
    load = registry.load

    def note(entry: registry.Entry) -> Any:
        asked.add(entry.path)
        return load(entry)

    monkeypatch.setattr(_wrap, "load", note)
    kinds = {kind_of(wrap(source)) for source in SOURCES.values()}
    known = {entry.path for entry in registry._adapters.values()} | {registry._SEQUENCE.path, registry._ITERABLE.path}
    known = {path for path in known if ":refuse" not in path}  # what only tells that something cannot be wrapped
    known.remove("resumable.backends.ray:adapt")  # an iterable by another name; Ray has an environment of its own
    missed = sorted(known - asked)
    assert not missed, "no source of the demo's catalogue uses these adapters, so chaos does not reach them"
    assert kinds == {"indexed", "snapshot", "replay"}


@pytest.mark.slow
@pytest.mark.long  # `make chaos` runs this for all sources
def test_a_source_goes_through_faults_by_the_entry_of_make_chaos(tmp_path: Path) -> None:
    faults = ["kill", "torn-write", "flip", "worker-raise"]
    words = ["--sources=list,stream", f"--faults={','.join(faults)}", "--points=1", f"--directory={tmp_path / 'runs'}"]
    found = subprocess.run(
        [sys.executable, "-m", "examples.demo.chaos", *words],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert "**7 of 7 cases passed**, with 2 sources and 1 case per source and kind of fault." in found.stdout
    assert "7 of 7 faults fired, in 14 launches." in found.stdout
    assert re.search(r"^\| `worker-raise` \| `list` \| \w", found.stdout, re.MULTILINE)
    assert "Failed" not in found.stdout
    assert str(tmp_path) not in found.stdout


def rows() -> list[Row]:
    """One source that passed, one that broke a promise, and one that could not be tested."""
    outcomes = [
        Outcome.of(
            Case((Launch(Fault("kill", 7)), Launch())), Path("0001"), [Attempt(0, fired=True), Attempt(1)], found
        )
        for found in ({}, {"same weights": "they differ"})
    ]
    reports = [Report(("python",), 0, Attempt(0), outcomes=[outcome]) for outcome in outcomes]
    return [
        Row("good", "a good one", reports[0], impossible={"stale": "it saves nothing"}),
        Row("bad", "a bad one", reports[1], impossible={"stale": "it saves nothing"}),
        Row("gone", "one without its framework", error="pip install something"),
    ]


def test_the_page_hides_nothing() -> None:
    text = make_tables(rows(), ["kill", "stale"], 3)
    assert "**1 of 2 cases passed**, with 3 sources and 3 cases per source and kind of fault. 2 of 2 faults" in text
    assert "| `bad` | kill at point 7 | same weights |" in text
    assert "| `gone` | all: it could not be tested | unknown |" in text
    assert "| `stale` | `good`, `bad` | it saves nothing |" in text
    assert "| `gone` | one without its framework |" in text
    assert [row.ok for row in rows()] == [True, False, False]


def test_the_tables_stand_between_the_marks_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{BEGIN}\noutdated\n{END}\n\nbehind\n")
    for _ in range(2):
        write_page(page, rows(), ["kill"], 3)
    text = page.read_text()
    assert text.startswith(f"# Title\n\n{BEGIN}\n\n**1 of 2 cases passed**")
    assert text.endswith(f"{END}\n\nbehind\n")
    assert "outdated" not in text


def test_a_part_of_the_sources_is_no_page(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--sources=list"], ["--faults=kill"]):
        with pytest.raises(SystemExit):
            main([*words, "--page=page.md"])
        assert "it needs a run of all sources and faults" in capsys.readouterr().err
    for words, message in ((["--sources=lost"], "unknown source: 'lost'"), (["--faults=rain"], "unknown fault")):
        with pytest.raises(SystemExit):
            main(words)
        assert message in capsys.readouterr().err
