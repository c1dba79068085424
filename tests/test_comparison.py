"""The comparison of libraries: its verdicts are right, and its page is of its results."""

from __future__ import annotations

import json
import random
from functools import partial
from itertools import product

import pytest

from benchmarks.compare import page
from benchmarks.compare.judge import Verdict, compare, failed, same_draws
from benchmarks.compare.peers import PEERS
from benchmarks.compare.processes import Batch, Failure, Run
from benchmarks.compare.situations import SITUATIONS
from benchmarks.page import RESULTS as MEASURED
from benchmarks.page import tables

LENGTH, SIZE = 4, 2  # batches of an epoch, samples of a batch


def epoch(number: int) -> list[Batch]:
    order = list(range(LENGTH * SIZE))
    random.Random(number).shuffle(order)
    return [[[float(sample), 0.5] for sample in order[at : at + SIZE]] for at in range(0, len(order), SIZE)]


WHOLE = Run([epoch(0), epoch(1), epoch(2)])
READ = LENGTH + 1  # one batch of epoch 1
REST = epoch(1)[1:]


@pytest.fixture(name="prose")
def _prose() -> str:
    return " ".join(page.PAGE.read_text(encoding="utf-8").split())


@pytest.fixture(name="results")
def _results() -> page.Results:
    found: page.Results = json.loads(page.RESULTS.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize(
    ("loops", "text"),
    [
        ([REST, epoch(2)], "exact"),
        ([[*REST, *epoch(2)]], "exact"),
        ([epoch(1), epoch(2)], "repeats 2"),
        ([REST[1:], epoch(2)], "loses 2"),
        ([[*REST[1:], epoch(1)[0]], epoch(2)], "repeats 2, loses 2"),
        ([REST[::-1], epoch(2)], "different order"),
        ([REST, epoch(3)], "later epochs differ"),
        ([REST, epoch(2), epoch(3)], "an epoch too many"),
        ([REST], "skips an epoch"),
        ([[], epoch(2)], "loses 6"),
    ],
)
def test_a_verdict_describes_the_difference_in_the_batches(loops: list[list[Batch]], text: str) -> None:
    assert compare(WHOLE, READ, Run(loops)) == Verdict(text, "good" if text == "exact" else "silent")


@pytest.mark.parametrize(
    ("loops", "text"),
    [
        ([epoch(1), epoch(2)], "exact"),
        ([[], epoch(1), epoch(2)], "exact"),  # epoch 0 has no batches left
        ([epoch(1), epoch(2), epoch(3)], "an epoch too many"),
        ([epoch(2)], "skips an epoch"),
        ([epoch(1)], "an epoch too few"),
        ([epoch(3), epoch(2)], "later epochs differ"),
    ],
)
def test_a_verdict_describes_the_difference_in_the_epochs(loops: list[list[Batch]], text: str) -> None:
    assert compare(WHOLE, LENGTH, Run(loops)).text == text


def test_an_error_is_wanted_only_if_it_explains_a_mistake() -> None:
    clear, bare = Failure("ValueError", "the seed differs: 0 and 1"), Failure("AssertionError", "")
    assert failed(clear, wanted=True) == Verdict("rejected: `ValueError`", "good")
    assert failed(clear) == Verdict("fails: `ValueError`", "error")
    assert failed(bare, wanted=True) == Verdict("fails: `AssertionError`", "error")
    raised = "Caught {0} in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n{0}: {1}".format
    for error in (clear, bare):
        assert failed(Failure(error.kind, raised(*error)), wanted=True) == failed(error, wanted=True)


def test_different_numbers_are_seen() -> None:
    other = Run([[[[sample, 0.6] for sample, _ in batch] for batch in loop] for loop in WHOLE.loops])
    assert same_draws(WHOLE, 0, WHOLE, slice(1, 2))
    assert not same_draws(WHOLE, 0, other, slice(1, 2))


def test_the_page_the_tables_and_the_picture_are_of_the_results(results: page.Results) -> None:
    assert list(results["peers"]) == list(PEERS)
    for name, workers, row in product(PEERS, "02", SITUATIONS):
        assert results["peers"][name]["cells"][workers][row][0], (name, workers, row)
    for path in (page.PAGE, *page.README):
        text = path.read_text(encoding="utf-8")
        assert page.filled(text, results) == text, f"{path}: run `python -m benchmarks.compare.page`"
    assert page.PICTURE.read_text(encoding="utf-8") == page.picture(results)


def test_the_prose_says_what_the_cells_say(prose: str, results: page.Results) -> None:
    def peers(row: str, text: str) -> list[str]:
        return [peer for peer in PEERS if page.cell(results, peer, row)[0] == text]

    assert f"{len(page.GRADED)} situations, {len(PEERS)} loaders" in prose
    ours = {page.cell(results, peer, row)[1] for peer in ("wrap", "drop-in") for row in page.GRADED}
    assert ours == {"good", "none"}
    assert peers("own-generator", "exact") == ["grain"]
    assert peers("batch-size", "exact") == ["stateful", "streaming"]
    assert "**torchdata and MosaicML Streaming** continue with a different batch size" in prose
    sizes = {peer: found["bytes"]["0"] for peer, found in results["peers"].items() if found["bytes"]["0"]}
    assert min(sizes, key=sizes.__getitem__) == "grain"


def test_the_prose_says_what_the_benchmarks_say(prose: str) -> None:
    measured = tables(MEASURED.read_text(encoding="utf-8"))

    def value(title: str, column: str, **row: str) -> float:
        rows = next(rows for name, rows in measured.items() if name.startswith(title))
        (found,) = [one for one in rows if row.items() <= one.items()]
        return float(found[column].split()[0])

    first = partial(value, "Peers: time to the first batch", "ms resumed", workers="0")
    ours, grain = first(loader="resumable (off)"), first(loader="Grain Dataset")
    assert f"resumes in {grain:.0f} ms instead of {ours:.0f} ms without workers" in prose
    free = {"workers": "0", "us per item": "0", "randomness": "sample"}  # samples that cost nothing
    assert value("Throughput of wrap(DataLoader)", "ratio", **free) < 1
    assert value("Batches from workers", "ratio", batch="1024 kB", randomness="sample") < 1


def test_the_pages_say_what_the_benchmarks_say_of_the_drop_in() -> None:
    measured = tables(MEASURED.read_text(encoding="utf-8"))
    docs = MEASURED.parent.parent / "docs"
    speed = " ".join((docs / "frameworks/stateful-dataloader.md").read_text(encoding="utf-8").split())
    page_text = " ".join((docs / "reference/benchmarks.md").read_text(encoding="utf-8").split())

    def value(title: str, column: str, loader: str, workers: str, cost: str | None = None) -> float:
        row = {"loader": loader, "workers": workers} | ({"us per item": cost} if cost else {})
        (found,) = [one for one in measured[title] if row.items() <= one.items()]
        return float(found[column].split()[0].replace(",", ""))

    ours, theirs = "resumable StatefulDataLoader", "torchdata StatefulDataLoader"
    items = partial(value, "Peers: throughput", "items/s")
    first = partial(value, "Peers: time to the first batch after a resume", "ms resumed")
    size = partial(value, "Peers: time to the first batch after a resume", "bytes")
    assert f"it is {items(ours, '2', '20') / items(theirs, '2', '20'):.1f} times as fast" in speed
    assert f"it is {1 - items(ours, '0', '20') / items(theirs, '0', '20'):.0%} slower".replace("%", " %") in speed
    assert round(items(theirs, "0", "0") / items(ours, "0", "0")) == 3, "it reaches a third of torchdata's speed"
    assert f"after {first(ours, '0'):.0f} ms instead of {first(theirs, '0'):.0f} ms" in speed
    assert f"or {first(ours, '2'):.0f} ms instead of {first(theirs, '2'):.0f} ms with two workers" in speed
    assert f"has {size(ours, '0') / 1e3:.1f} kB instead of {size(theirs, '0') / 1e3:.1f} kB" in speed
    rows = [row for row in measured["Peers: throughput"] if (row["workers"], row["us per item"]) == ("2", "20")]
    factors = [float(row["resumable is faster by"].split()[0]) for row in rows if not row["loader"].startswith("resum")]
    assert f"{min(factors):.1f} to {max(factors):.0f} times as fast" in page_text
