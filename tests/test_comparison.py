"""The comparison of libraries: its verdicts are right, and its page is of its results."""

from __future__ import annotations

import json
import random
from itertools import product

import pytest

from benchmarks.compare import page
from benchmarks.compare.judge import Verdict, compare, failed, same_draws
from benchmarks.compare.peers import PEERS
from benchmarks.compare.processes import Batch, Failure, Run
from benchmarks.compare.situations import SITUATIONS

LENGTH, SIZE = 4, 2  # batches of an epoch, samples of a batch


def epoch(number: int) -> list[Batch]:
    order = list(range(LENGTH * SIZE))
    random.Random(number).shuffle(order)
    return [[[float(sample), 0.5] for sample in order[at : at + SIZE]] for at in range(0, len(order), SIZE)]


WHOLE = Run([epoch(0), epoch(1), epoch(2)])
READ = LENGTH + 1  # one batch of epoch 1
REST = epoch(1)[1:]


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


def test_different_numbers_are_seen() -> None:
    other = Run([[[[sample, 0.6] for sample, _ in batch] for batch in loop] for loop in WHOLE.loops])
    assert same_draws(WHOLE, 0, WHOLE, slice(1, 2))
    assert not same_draws(WHOLE, 0, other, slice(1, 2))


def test_the_page_the_tables_and_the_picture_are_of_the_results() -> None:
    results = json.loads(page.RESULTS.read_text(encoding="utf-8"))
    assert list(results["peers"]) == list(PEERS)
    for name, row in product(PEERS, SITUATIONS):
        assert set(results["peers"][name]["cells"]["0"][row][0]), (name, row)
    for path in (page.PAGE, *page.README):
        text = path.read_text(encoding="utf-8")
        assert page.filled(text, results) == text, f"{path}: run `python -m benchmarks.compare.page`"
    assert page.PICTURE.read_text(encoding="utf-8") == page.picture(results)
