"""The benchmarks run, and their report is complete. What they measure is looked at by people, not by tests."""

from __future__ import annotations

import itertools
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from benchmarks import page as docs
from benchmarks.contenders import ENTRIES, OURS, PEERS
from benchmarks.ratios import Ratio, in_turns, ratio
from benchmarks.remote import NoAnswerError, Remote
from benchmarks.report import BEGIN, END, Table, write
from benchmarks.suites import SUITES

ROOT = Path(__file__).parent.parent


CORE = (
    *("throughput", "transport", "startup", "state", "guards", "resume", "restart", "memory", "memory_workers"),
    *("scale", "order", "lightning", "peers", "peers-resume", "formats"),
)


@pytest.fixture(scope="module", params=[CORE, pytest.param(tuple(SUITES), marks=pytest.mark.long)], ids=["core", "all"])
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a quick run: of the library and its peers, and in `make test-long` of every framework, too."""
    path = tmp_path_factory.mktemp("benchmarks") / "page.md"
    old = "old figures\n" * (request.param != CORE)  # a run of some suites refuses to lose those of others
    path.write_text(f"# Before\n\n{BEGIN}\n{old}{END}\n\nafter\n")
    only = [word for name in request.param for word in ("--only", name)]
    command = [sys.executable, "-m", "benchmarks", "--quick", *only, "--markdown", str(path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=600)
    return path.read_text()


def section(page: str, title: str) -> list[list[str]]:
    """Return the body of a table."""
    lines = page.partition(f"### {title}\n\n")[2].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


class TestAProcessThatDoesNotAnswer:
    """torchdata's nodes wait forever if their workers crash; a benchmark of an hour must not."""

    def test_is_replaced_and_asked_again(self) -> None:
        with Remote() as remote:
            remote.make("threading:Semaphore", value=1)
            assert remote.call("acquire") is True
            remote.limit = 2.0
            assert remote.call("acquire") is True, "a new semaphore, because the first one waits forever"
            assert remote.unanswered == 1

    def test_fails_after_three_tries(self) -> None:
        with Remote() as remote:
            remote.make("threading:Event")
            remote.limit = 0.5
            with pytest.raises(NoAnswerError, match=r"no answer within 0.5 s, 3 times"):
                remote.call("wait")
            remote.limit = None
            remote.make("threading:Event")
            assert remote.call("is_set") is False, "the new process answers"


@pytest.mark.slow
@pytest.mark.long  # every benchmark takes minutes, even a quick one
class TestAQuickRun:
    def test_rewrites_its_part_of_the_page_and_nothing_else(self, page: str) -> None:
        assert page.startswith(f"# Before\n\n{BEGIN}")
        assert page.endswith(f"{END}\n\nafter\n")
        assert "old figures" not in page

    def test_compares_every_mode_with_the_plain_loader(self, page: str) -> None:
        rows = section(page, "Throughput of wrap(DataLoader) against the DataLoader")
        assert [row[:3] for row in rows] == [[mode, workers, "20"] for workers in "02" for mode in OURS]

    def test_measures_batches_by_their_size(self, page: str) -> None:
        rows = section(page, "Batches from workers, by their size")
        assert [row[:3] for row in rows][:2] == [["64 kB", "0", mode] for mode in ("off", "sample")]

    def test_measures_the_start(self, page: str) -> None:
        rows = section(page, "Start-up: time to the first batch")
        assert [row[:2] for row in rows] == [[mode, workers] for workers in "02" for mode in ("off", "sample")]

    def test_measures_the_state_of_every_length(self, page: str) -> None:
        rows = section(page, "State: time and bytes")
        assert [row[0] for row in rows] == ["1e+03", "1e+06", "1e+09", "1e+12"]

    def test_measures_the_resume(self, page: str) -> None:
        assert [row[0] for row in section(page, "Resume: time to the first batch at 90 % of an epoch")][-1] == "1e+09"

    def test_measures_the_checks(self, page: str) -> None:
        rows = section(page, 'Cost of checks="all"')
        assert [(row[0], row[1]) for row in rows[:3]] == [("list", "0"), ("DataLoader", "0"), ("DataLoader", "2")]
        assert len(rows) == 5

    def test_measures_the_memory(self, page: str) -> None:
        rows = section(page, "Memory of the order")
        assert [row[0] for row in rows] == [ENTRIES["sample"].label] * 3 + [ENTRIES["plain"].label]

    def test_measures_the_restart_as_a_whole(self, page: str) -> None:
        rows = section(page, "A restart as a whole")
        assert [row[0] for row in rows][:1] == ["list"]
        for row in rows:
            parts = [float(cell) for cell in row[4:]]
            assert abs(sum(parts) - float(row[2])) < 0.05 + 0.02 * len(parts), (
                "the parts are the whole, but for medians"
            )

    def test_measures_the_memory_of_workers(self, page: str) -> None:
        rows = section(page, "Memory with workers")
        assert {row[2] for row in rows} <= {"0", "2", "16"}
        ours = [float(row[6]) for row in rows if row[0] == ENTRIES["sample"].label]
        assert max(ours) < 20, "it does not grow with the data"

    def test_measures_costs_as_work_grows(self, page: str) -> None:
        samples, ranks = (section(page, f"As the {name} grow{end}") for name, end in (("dataset", "s"), ("ranks", "")))
        assert [samples[0][0], samples[-1][0]] == ["1e+04", "1e+12"]
        assert max(float(row[3]) for row in [*samples, *ranks]) < 1000, "the state stays small"
        assert max(float(row[4]) for row in samples) < 20, "so does the memory"

    def test_measures_the_callback_alone(self, page: str) -> None:
        rows = section(page, "Lightning: the callback's part of a step")
        assert [row[0] for row in rows] == ["0", "200"]

    def test_measures_the_orders_alone(self, page: str) -> None:
        rows = section(page, "Orders alone: items per second and memory")
        assert [row[0].partition(",")[0] for row in rows[1:4]] == ["Blocks", "Shuffle", "torch's RandomSampler"]
        even = section(page, "Orders alone: how even batches are")
        assert all(float(row[2]) < float(row[3]) * 1.2 for row in even[:2])

    @pytest.mark.parametrize("title", ["Peers: throughput", "Peers: time to the first batch after a resume"])
    def test_names_every_peer_whether_it_is_installed_or_not(self, page: str, title: str) -> None:
        named = {row[0] for row in section(page, title)}
        assert {ENTRIES[name].label for name in ("sample", *PEERS)} <= named

    def test_measures_every_format_beside_the_libraries_that_have_it(self, page: str) -> None:
        formats = ("tar, 1 kB of bytes", "tar, JPEG decoded", "Parquet", "documents of tokens", "windows of tokens")
        for title in ("throughput", "time to the first batch after a resume", "memory and shuffle"):
            rows = section(page, f"Formats: {title}")
            assert list(dict.fromkeys(row[1] for row in rows)) == list(formats)
            ours = [row for row in rows if row[0].startswith(("Tars", "Parquet", "Packed", "Tokens"))]
            assert len(ours) == 7
            assert all(float(row[2].replace(",", "")) >= 0 for row in ours)
        even = {row[0]: row[3] for row in section(page, "Formats: memory and shuffle") if row[3]}
        assert 0.8 < float(even["Tars, full shuffle"]) < 1.2
        built = section(page, "Formats: building an index")
        assert [row[0] for row in built[:3]] == ["Tars", "Packed, concat", "Packed, fit"]
        assert int(built[1][3].replace(",", "")) < 16 * 1024, "16 bytes for 4096 documents"

    def test_has_the_tables_of_the_documentation(self, page: str) -> None:
        frameworks = ("DALI", "FFCV", "TensorFlow", "tf.data")  # whose suites the quick run leaves out
        titles = {source.title for source in docs.SOURCES.values() if not source.title.startswith(frameworks)}
        assert titles <= set(docs.tables(page))

    def test_fills_every_row(self, page: str) -> None:
        tables = [line for line in page.splitlines() if line.startswith("|")]
        assert len(tables) > 100
        assert all(row.count("|") > 2 for row in tables)


def test_the_documentation_shows_the_results() -> None:
    stale = "run `python -m benchmarks.page`"
    page, results = (path.read_text(encoding="utf-8") for path in (docs.PAGE, docs.RESULTS))
    assert docs.filled(page, results) == page, stale
    assert docs.CHART.read_text(encoding="utf-8") == docs.chart(results), stale
    assert set(docs.MARKS.findall(page)) == {(f"<!-- table: {name} -->\n\n", name) for name in docs.SOURCES}


def test_a_page_without_marks_gets_them(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("text\n")
    for _ in range(2):
        write(path, {"one": [Table("Title", ("a", "b"), [("1", "2")], "Note.")]}, ["one"])
        text = path.read_text()
        assert text.startswith("text\n")
        assert text.count(BEGIN) == text.count(END) == text.count("### Title") == 1
        assert "| a | b |\n| --- | ---: |\n| 1 | 2 |\n\nNote." in text


def test_a_suite_is_written_in_its_place_and_the_others_are_left(tmp_path: Path) -> None:
    path, order = tmp_path / "page.md", ["one", "two", "three"]
    for suite, cell in (("three", "3"), ("one", "old"), ("gone", "0"), ("one", "1")):
        write(path, {suite: [Table(suite, ("a",), [(cell,)])]}, [*order, "gone"])
    before = path.read_text()
    write(path, {"two": [Table("two", ("a",), [("2",)])]}, order)
    text = path.read_text()
    shown = [line for line in text.splitlines() if line.startswith(("### ", "| "))]
    wanted = [(f"### {suite}", "| a |", "| --- |", f"| {cell} |") for suite, cell in zip(order, "123", strict=True)]
    assert shown == list(itertools.chain(*wanted))
    third = before.partition("<!-- suite: three -->")[2].partition("<!--")[0]
    assert third in text
    assert "old" not in text


def test_measurements_are_taken_in_turns() -> None:
    clock = itertools.count()
    assert in_turns(2, {name: partial(next, clock) for name in "ab"}) == {"a": [0, 2], "b": [1, 3]}


def test_a_ratio_is_that_of_pairs() -> None:
    assert ratio([1.0, 20.0, 3.0], [2.0, 10.0, 3.0]) == Ratio(1.0, 0.5, 2.0)


@pytest.mark.parametrize(
    ("measured", "said"),
    [(Ratio(1.0, 0.9, 1.1), "yes"), (Ratio(0.98, 0.9, 1.0), "within the spread"), (Ratio(0.9, 0.8, 0.95), "**no**")],
)
def test_a_target_is_judged_with_the_spread(measured: Ratio, said: str) -> None:
    assert measured.at_least(1.0) == said
