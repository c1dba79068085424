"""The report: the table, the timeline in words, JSON, and the page."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from resumable.chaos.ledger import Attempt, Batch, RankLog, StepRef
from resumable.chaos.plan import Case, Fault, Launch
from resumable.chaos.report import Outcome, Report
from resumable.chaos.report.text import as_ranges, make_rows, tell
from resumable.chaos.verify.checks import from_the_newest
from resumable.chaos.verify.diagnosis import Diagnosis

EPOCH = 6  # steps
KILL = Fault("kill", 17)


def log(first: int, last: int, *, rank: int = 0, world: int = 1, save: int | None = None) -> RankLog:
    """Make what a rank did: it trained on the steps from `first` to before `last`."""
    found = RankLog(rank, world)
    for number in range(first, last):
        place = StepRef(number // EPOCH, number % EPOCH + 1)
        found.batches[0, place] = Batch((str(number),), (f"digest {number}",))
        found.acked[0] = place
        found.points.append("loader.handed")
        if number == save:
            found.points.append("store.saved")
    return found


def attempt(number: int, *logs: RankLog, status: int = 0, fired: bool = False, output: str = "") -> Attempt:
    return Attempt(number, {one.rank: one for one in logs}, fired=fired, status=status, output=output)


def outcome(number: int, *, ok: bool, fault: Fault = KILL, text: str = "2 steps are lost") -> Outcome:
    attempts = [attempt(0, log(0, 5, save=2), status=-9, fired=True), attempt(1, log(3, 12))]
    violations = {} if ok else {"whole history": text}
    return Outcome.of(
        Case((Launch(fault), Launch())), Path("runs", "chaos", f"{number:04}").absolute(), attempts, violations
    )


def report(*outcomes: Outcome, notes: tuple[str, ...] = ()) -> Report:
    made = Report(("python", "train.py", "--name", "<b>"), 7, attempt(0, log(0, 12)), list(notes))
    made.options = {"faults": ["kill", "torn-write"], "points": 2}
    assert list(made.environment)[:4] == ["date", "platform", "python", "resumable"]
    made.environment = {"date": "2026-11-26", "torch": "<2.13>"}
    for one in outcomes:
        made.add(one)
    return made


def test_an_outcome_counts() -> None:
    found = outcome(1, ok=True)
    assert (found.starts, found.fired, found.retrained, found.ok) == (2, 1, 2, True)
    assert found.reproduction == "resumable chaos replay runs/chaos/0001"


def test_the_table_has_a_row_for_each_kind_and_one_for_all() -> None:
    torn = Fault("torn-write", 3)
    rows = make_rows(report(outcome(1, ok=True), outcome(2, ok=False), outcome(3, ok=True, fault=torn)))
    assert [tuple(row) for row in rows] == [
        ("kill", 2, "2 of 2", 4, 4, 1),
        ("torn-write", 1, "1 of 1", 2, 2, 0),
        ("all", 3, "3 of 3", 6, 6, 1),
    ]


def test_report_of_an_empty_kind_and_many_faults() -> None:
    """The report shows a kind without a case, and more faults than one have rows for each."""
    two = Outcome.of(Case((Launch(KILL), Launch(KILL), Launch())), Path("1"), [], {})
    clock = Outcome.of(Case((Launch(Fault("kill", 0, after=2.0)), Launch())), Path("2"), [], {})
    rows = make_rows(report(two, clock))
    assert [(row.fault, row.cases) for row in rows] == [
        ("kill", 0), ("torn-write", 0), ("kill and more", 1), ("by the clock", 1), ("all", 2),
    ]  # fmt: skip


def test_the_summary_names_what_broke_and_how_to_see_it_again() -> None:
    text = str(report(outcome(1, ok=True), outcome(7, ok=False), notes=("the weights are not compared",)))
    assert "case 0007: kill at point 17\n  whole history: 2 steps are lost\n" in text
    assert "again: resumable chaos replay runs/chaos/0007" in text
    assert "Note: the weights are not compared" in text
    compared = "\nCompared: order and batches of 1 loader."
    assert text.startswith(f"FAILED: a promise was broken in 1 of 2 cases. Seed 7, 0 s.{compared}")
    assert str(report(outcome(1, ok=True))).startswith(
        f"PASSED: every promise was kept in 1 case. Seed 7, 0 s.{compared}"
    )


def test_report_without_a_model_is_not_green() -> None:
    """A report that compared nothing of the model is not green."""
    made = report(outcome(1, ok=True))
    made.baseline.ranks[0].trains = 128
    assert (made.ok, made.status, made.failed) == (False, 3, [])
    assert "WARNING: every promise that could be compared was kept in 1 case. Seed 7" in str(made)
    assert made.timeline().startswith("Nothing of the model was compared. Compared: order and batches of 1 loader. Not")
    assert "Chaos: WARNING: every promise that could be compared was kept" in made.html()
    assert (made.as_dict()["ok"], made.as_dict()["status"]) == (False, 3)


def test_the_columns_of_the_table_are_aligned() -> None:
    first, *lines = report(outcome(1, ok=False)).table().split("\n")
    assert len({len(line) for line in lines}) == 1
    assert len(first) < len(lines[0])


def test_the_timeline_tells_what_each_start_did() -> None:
    text = report(outcome(1, ok=True), outcome(7, ok=False)).timeline()
    assert text.startswith("1 case FAILED.")
    assert "0001" not in text
    assert "launch 0, rank 0 of 1  trained 0.0-0.4; saved at 0.2; kill at point 17" in text
    assert "launch 1, rank 0 of 1  trained again 0.3-0.4; trained 0.5, 1.0-1.5; finished" in text
    assert "  whole history: 2 steps are lost" in text


def test_without_failures_the_timeline_tells_of_the_first_cases() -> None:
    text = report(outcome(1, ok=True)).timeline()
    assert text.startswith("1 case, which passed.")
    assert "case 0001: kill at point 17" in text


def test_timeline_of_ranks() -> None:
    """The timeline has a line for each rank and says who was hit and resized."""
    logs = [log(0, 4, rank=rank, world=2) for rank in range(2)]
    attempts = [attempt(0, *logs, status=1, fired=True), attempt(1, log(2, 12))]
    lines = tell(Case((Launch(Fault("kill", 9, rank=1), 2), Launch(None, 1))), attempts)
    assert [(line.start, line.rank, line.world, line.resized, line.struck) for line in lines] == [
        (0, 0, 2, None, False), (0, 1, 2, None, True), (1, 0, 1, 2, False),
    ]  # fmt: skip
    assert [line.end for line in lines] == [
        "the fault hit another rank", "kill at point 9 of rank 1", "finished",
    ]  # fmt: skip


def test_evaluation_loader_trains_nothing() -> None:
    """A loader of an evaluation trains nothing, and nothing of it is trained again."""
    logs = [log(0, 5, save=2), log(3, 12)]
    for one in logs:
        one.evaluating = {1}
        one.batches |= {(1, StepRef(0, number)): Batch((str(number),), ("x",)) for number in (1, 2)}
        one.acked[1] = StepRef(0, 2)
    attempts = [attempt(0, logs[0], status=-9, fired=True), attempt(1, logs[1])]
    found = Outcome.of(Case((Launch(KILL), Launch())), Path("0001"), attempts, {})
    assert found.retrained == 2
    text = report(found).timeline()
    assert "trained 0.0-0.4; evaluated 0.0-0.1 of loader 1; saved at 0.2; kill at point 17" in text
    assert "trained again 0.3-0.4; trained 0.5, 1.0-1.5; evaluated 0.0-0.1 of loader 1; finished" in text


@pytest.mark.parametrize("kind", ["kill", "worker-raise"])
def test_the_table_has_at_most_80_columns(kind: str) -> None:
    one = outcome(1, ok=False, fault=Fault(kind, 3))
    two = Outcome.of(Case((Launch(Fault(kind, 3)), Launch(KILL), Launch())), Path("2"), [], {})
    made = report(*[one] * 99, two)
    lines = made.table().split("\n")
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["faults", "steps"]
    assert lines[1].split() == ["fault", "cases", "fired", "launches", "retrained", "violations"]


def test_a_start_that_trained_nothing_has_a_line() -> None:
    attempts = [attempt(0, log(0, 4), status=-9, fired=True), attempt(1, status=3)]
    found = Outcome.of(Case((Launch(KILL), Launch())), Path("0001"), attempts, {"comes to its end": "it failed"})
    assert "launch 1, rank 0 of 1  trained nothing; failed with status 3" in report(found).timeline()


def test_of_what_a_process_printed_the_end_is_shown() -> None:
    printed = "start 1 failed with status 1:\n" + "\n".join(f"line {number}" for number in range(99))
    text = report(outcome(1, ok=False, text=printed)).timeline()
    assert "start 1 failed" in text
    assert "line 98" in text
    assert "line 80" not in text


def test_ranges_end_where_steps_or_epochs_or_loaders_do() -> None:
    keys = [(0, StepRef(0, 1)), (0, StepRef(0, 2)), (0, StepRef(0, 4)), (0, StepRef(1, 5)), (1, StepRef(1, 6))]
    assert [(first[1].step, last[1].step) for first, last in as_ranges(keys)] == [(1, 2), (4, 4), (5, 5), (6, 6)]
    assert as_ranges([]) == []


def test_damaged_checkpoint_is_not_expected() -> None:
    """No later start is expected to load a damaged checkpoint.

    Not even where the start right after the damage ended before it had loaded anything.
    """
    saved, last = log(0, 5), log(3, 12)
    saved.saved, last.restored = [("store", 6), ("store", 9)], [("store", 6)]
    attempts = [attempt(0, saved, fired=True), attempt(1, log(0, 0), fired=True), attempt(2, last)]
    other = attempt(1, log(3, 12))
    other.ranks[0].restored = [("best", 3)]
    assert from_the_newest(Case((Launch(KILL), Launch())), attempts[0], [attempts[0], other]) == ""  # of another store
    truncated = Case((Launch(Fault("truncate", 9)), Launch(KILL), Launch()))
    assert from_the_newest(truncated, attempts[0], attempts) == ""
    killed = Case((Launch(KILL), Launch(KILL), Launch()))
    assert "launch 2 resumed from step 6, but step 9" in from_the_newest(killed, attempts[0], attempts)


def test_large_campaign_keeps_its_figures() -> None:
    """A large campaign keeps the figures of all cases and the story of some."""
    large = report(*(outcome(number, ok=True) for number in range(50)))
    assert sum(bool(one.attempts) for one in large.outcomes) == 20
    assert make_rows(large)[-1].starts == 100


def test_the_json_is_complete_and_leads_back_to_the_case(tmp_path: Path) -> None:
    report(outcome(1, ok=True), outcome(7, ok=False)).save(tmp_path)
    values = json.loads((tmp_path / "report.json").read_text())
    assert (values["format"], values["ok"], values["seed"], values["steps"]) == (1, False, 7, 12)
    passed, failed = values["cases"]
    assert passed["ok"]
    assert failed["violations"] == {"whole history": "2 steps are lost"}
    assert failed["reproduction"] == "resumable chaos replay runs/chaos/0007"
    assert len(failed["timeline"]) == 2
    assert Case.from_dict(failed) == outcome(7, ok=False).case
    assert values["table"][0] == {
        "fault": "kill", "cases": 2, "fired": "2 of 2", "starts": 4, "retrained": 4, "violations": 1,
    }  # fmt: skip


class Links(HTMLParser):
    """Collects what a page would load, and sees that its elements are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in {"src", "href", "xlink:href"}]
        if tag not in {"meta", "br", "input"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def failing() -> list[Outcome]:
    """Return three failed cases: two with the same cause, and one of two ranks without a known cause."""
    cause = Diagnosis(text="The loader's state is not in the checkpoint.", differing={"model": 3})
    resized = Outcome.of(
        Case((Launch(KILL, 2), Launch(None, 1))),
        Path("0009"),
        [
            attempt(0, *(log(0, 4, rank=rank, world=2) for rank in range(2)), status=1, fired=True),
            attempt(1, log(2, 12)),
        ],
        {"same content": "row 1 & 2 differ"},
    )
    return [replace(outcome(number, ok=False), diagnosis=cause) for number in (7, 8)] + [resized]


def test_the_page_is_one_file_with_the_causes_first_and_a_timeline_per_case() -> None:
    text = report(*failing(), outcome(10, ok=True), notes=("a <note>",)).html()
    links = Links()
    links.feed(text)
    assert not links.open
    assert set(links.found) == {"#case-0007", "#case-0008", "#case-0009"}
    assert not re.search(r"url\(|@import|<script|<link|<img", text)
    places = [text.index(part) for part in ("FAILED: a promise", "Likely causes", 'id="case-0007"', "All cases")]
    assert places == sorted(places)
    causes = text[places[1] : places[2]]
    assert causes.count("state is not in the checkpoint") == 1, "a cause is listed once, with its cases"
    assert 'href="#case-0007"' in causes
    assert 'href="#case-0008"' in causes
    cases = re.findall(r'<section class="case" id="case-(\d+)">(.*?)</section>', text, re.DOTALL)
    assert [name for name, _ in cases] == ["0007", "0008", "0009"]
    for name, case in cases:
        assert case.count('class="launch"') == (2 if name != "0009" else 3)
        assert case.index("Likely cause:" if name != "0009" else "launch") < case.index("FAILED")
    for part in ("Case 0009: kill at point 17, ranks 2 to 1", "resized from 2; finished", "trained again", "Seed 7"):
        assert part in text
    for part in (
        "row 1 &amp; 2 differ",
        "a &lt;note&gt;",
        "date 2026-11-26, torch &lt;2.13&gt;",
        "'&lt;b&gt;'",
        "resumable chaos replay runs/chaos/0007",
    ):
        assert part in text.replace("&#x27;", "'")
    assert "date 2026-11-26, torch &lt;2.13&gt;</p>" in text
    assert text == report(*failing(), outcome(10, ok=True), notes=("a <note>",)).html()


def test_the_page_says_what_a_case_did_and_leads_to_its_output() -> None:
    """A case names its point, has a command that one click selects, and links to what it printed, if it is there."""
    made = report(outcome(7, ok=False), outcome(8, ok=True))
    made.baseline.ranks[0].points = [*["loader.handed"] * 16, "store.half"]
    made.directory = Path("runs/chaos").absolute()
    text = made.html()
    case = re.findall(r'<section class="case" id="case-0007">.*?</section>', text, re.DOTALL)[0]
    assert "Point 17: part of a checkpoint&#x27;s data was written" in case
    assert '<code class="command">resumable chaos replay runs/chaos/0007</code>' in case
    assert re.findall(r'href="([^#].*?)"', text) == [f"0007/attempt-{launch}/output.txt" for launch in (0, 1)]
    made.directory = Path("runs/chaos/0007/replay").absolute()
    assert re.findall(r'href="([^#].*?)"', made.html()) == [f"attempt-{launch}/output.txt" for launch in (0, 1)]


def test_the_page_lists_every_case_and_hides_those_that_nobody_asked_for() -> None:
    """Without scripts, which some CI systems block."""
    missed = replace(outcome(9, ok=True), fired=0)
    text = report(outcome(7, ok=False), outcome(8, ok=True), missed).html()
    rows = re.findall(r'<tr class="([a-z ]*)"><td>(.*?)</td><td class="(\w+)">', text)
    linked = '<a href="#case-0007">0007</a>'
    assert rows == [("", linked, "FAILED"), ("ok", "0008", "PASSED"), ("ok missed", "0009", "WARNING")]
    assert re.findall(r'id="only-(\w+)"(?: checked)?> (.*?)</label>', text) == [
        ("all", "all (3)"), ("failed", "failed (1)"), ("missed", "not reached (1)"),
    ]  # fmt: skip
    hidden = re.findall(r"body:has\(#only-(\w+):checked\) (tr[^ ,(]*(?:\(.*?\))?)", text)
    assert hidden == [("failed", "tr.ok"), ("missed", "tr:not(.missed, .head)")]
    assert "only-failed" not in report(outcome(8, ok=True)).html().split("<body>")[1]


def test_the_timeline_of_the_page_shows_steps_saves_epochs_and_the_fault() -> None:
    text = report(outcome(7, ok=False)).html()
    first, second = re.findall(r'<div class="track">(.*?)</div>', text)
    share = 100 / 12  # steps
    assert re.findall(r'class="(trained|again)".*?left:([\d.]+)%;width:([\d.]+)%', first + second) == [
        ("trained", "0.00", f"{5 * share:.2f}"),
        ("again", f"{3 * share:.2f}", f"{2 * share:.2f}"),
        ("trained", f"{5 * share:.2f}", f"{7 * share:.2f}"),
    ]
    assert f'title="checkpoint at 0.2" style="left:{3 * share:.1f}%">' in first
    assert f'class="mark fault" title="kill at point 17" style="left:{5 * share:.2f}%">' in first
    assert "fault" not in second
    assert f'<span style="left:{EPOCH * share:.2f}%">epoch 1</span>' in text


def test_the_page_is_legible_in_light_and_dark_and_every_line_wraps() -> None:
    text = report(*failing()).html()
    light, dark = (
        dict(re.findall(r"--(\w+): (#\w+)", block)) for block in re.findall(r":root \{(.*?)\}", text, re.DOTALL)
    )
    assert light.keys() == dark.keys()
    for colors in (light, dark):
        for name in ("text", "dim", "ok", "failed", "warning"):
            for behind in ("page", "box"):
                assert contrast(colors[name], colors[behind]) >= 4.5, (name, behind)  # WCAG AA
    assert "white-space: pre-wrap" in text
    assert "overflow-wrap: anywhere" in text
    assert "nowrap" not in text


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colors, as WCAG defines it."""
    lights = sorted((_luminance(color) for color in (one, other)), reverse=True)
    return (lights[0] + 0.05) / (lights[1] + 0.05)


def _luminance(color: str) -> float:
    digits = color[1:] if len(color) == 7 else "".join(digit * 2 for digit in color[1:])
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
