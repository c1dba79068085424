"""The comparison of a killed run with a baseline run: it says nothing where all is well, and where each fault is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from demo.attempt import Attempt, Place, Trained, make_attempt
from demo.verdict import compare, count_retrained, effective_history

STEPS = 10  # per epoch
TOTAL = 20


def batch(count: int) -> Trained:
    return Trained(Place((count - 1) // STEPS, (count - 1) % STEPS + 1), f"digest {count}")


def score(epoch: int) -> dict[str, float]:
    return {"epoch": epoch, "loss": 1.0 / (1 + epoch)}


def attempt(first: int, last: int, *, saves: tuple[int, ...] = (), ended: bool = False) -> Attempt:
    """Make an attempt that resumed after batch `first` and was killed, or ended, after batch `last`."""
    evaluated = [epoch for epoch in range(TOTAL // STEPS) if first < (epoch + 1) * STEPS <= last - (not ended)]
    return Attempt(
        resumed=first,
        batches={count: batch(count) for count in range(first + 1, last + 1)},
        saves=list(saves),
        evaluations=[score(epoch) for epoch in evaluated],
        scores=[score(0), score(1)] if ended else [],
        weights="the weights" if ended else None,
    )


def baseline() -> Attempt:
    return attempt(0, TOTAL, ended=True)


def killed_twice() -> list[Attempt]:
    return [
        attempt(0, 7, saves=(3, 6)),
        attempt(6, 13, saves=(9, 12)),
        attempt(12, TOTAL, saves=(15, 18), ended=True),
    ]


def test_says_nothing_where_the_runs_are_the_same() -> None:
    verdict = compare(baseline(), killed_twice(), planned=2)
    assert verdict.identical
    assert verdict.differences() == []


def test_counts_what_was_trained_on_again() -> None:
    assert count_retrained(killed_twice()) == 2
    assert count_retrained([baseline()]) == 0


def test_batch_counts_again_after_an_attempt() -> None:
    """A batch counts again if an attempt in between never reached it."""
    assert count_retrained([attempt(0, 7), attempt(3, 3), attempt(3, TOTAL, ended=True)]) == 4


def test_attempt_behind_the_checkpoint_is_undone() -> None:
    """An earlier attempt's work behind the checkpoint is undone."""
    history = effective_history([attempt(0, 7), attempt(6, 6)])
    assert sorted(history) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_finds_another_batch_in_any_attempt(number: int) -> None:
    attempts = killed_twice()
    at = attempts[number].last
    attempts[number].batches[at] = Trained(batch(at).place, "another digest")
    verdict = compare(baseline(), attempts, planned=2)
    assert f"batch {at} is the first of 1 that differ" in verdict.stream
    assert "another digest" in verdict.stream
    assert not verdict.identical


def test_finds_a_batch_that_came_at_another_place() -> None:
    attempts = killed_twice()
    attempts[2].batches[13] = Trained(Place(1, 4), "digest 13")
    verdict = compare(baseline(), attempts, planned=2)
    assert "batch 13" in verdict.stream
    assert "digest 13 at 1.04 in the resumed run, but digest 13 at 1.03 in the baseline run" in verdict.stream


def test_finds_a_lost_batch() -> None:
    attempts = killed_twice()
    del attempts[2].batches[15]
    assert "batch 15" in compare(baseline(), attempts, planned=2).stream
    assert "missing in the resumed run" in compare(baseline(), attempts, planned=2).stream


def test_finds_a_batch_too_many() -> None:
    attempts = killed_twice()
    attempts[2].batches[TOTAL + 1] = batch(TOTAL + 1)
    assert "missing in the baseline run" in compare(baseline(), attempts, planned=2).stream


def test_finds_an_evaluation_that_gave_something_else() -> None:
    attempts = killed_twice()
    attempts[1].evaluations[0]["loss"] = 2.0
    assert "epoch 0" in compare(baseline(), attempts, planned=2).evaluations


@pytest.mark.parametrize("epochs", [[0], [1], [0, 0, 1], [1, 0], []])
def test_finds_a_skipped_and_a_doubled_evaluation(epochs: list[int]) -> None:
    attempts = killed_twice()
    attempts[2].scores = [score(epoch) for epoch in epochs]
    verdict = compare(baseline(), attempts, planned=2)
    assert f"of the epochs {epochs} in the resumed run, but of [0, 1] in the baseline run" in verdict.evaluations


def test_repeated_evaluation_in_one_checkpoint() -> None:
    """A resume may repeat an evaluation as long as the checkpoint has it once."""
    attempts = killed_twice()
    attempts[2].evaluations.insert(0, score(0))
    assert compare(baseline(), attempts, planned=2).identical


def test_finds_other_weights() -> None:
    attempts = killed_twice()
    attempts[2].weights = "other weights"
    verdict = compare(baseline(), attempts, planned=2)
    assert verdict.weights == "weights: other weights in the resumed run, but the weights in the baseline run"


def test_no_weights_at_all_are_not_the_same_weights() -> None:
    endless = replace(baseline(), weights=None)
    assert compare(endless, [endless], planned=1).weights


def test_a_kill_that_did_not_fire_is_no_success() -> None:
    verdict = compare(baseline(), killed_twice(), planned=3)
    assert "3 were planned, but only 2 happened" in verdict.kills
    assert not verdict.identical


def test_a_run_that_began_anew_after_a_kill_is_no_resume() -> None:
    attempts = [attempt(0, 7, saves=(3, 6)), attempt(0, TOTAL, ended=True)]
    verdict = compare(baseline(), attempts, planned=1)
    assert not verdict.stream
    assert "started after batch 0, but batch 6 had been saved" in verdict.kills


def test_a_checkpoint_may_be_newer_than_its_line_in_the_ledger() -> None:
    attempts = [attempt(0, 6, saves=(3,)), attempt(6, TOTAL, ended=True)]
    assert compare(baseline(), attempts, planned=1).identical


def test_gathers_an_attempt_from_its_events() -> None:
    gathered = make_attempt(
        [
            {"kind": "start", "count": 0, "time": 1.0},
            {"kind": "begin", "count": 6, "time": 1.1, "epoch": 0, "step": 6},
            {"kind": "received", "count": 6, "time": 1.25},
            {"kind": "batch", "count": 7, "time": 1.3, "epoch": 0, "step": 7, "digest": "digest 7"},
            {"kind": "save", "count": 7, "time": 1.4, "state_bytes": 300},
            {"kind": "received", "count": 7, "time": 9.0},
            {"kind": "save", "count": 8, "time": 9.1, "state_bytes": 200},
            {"kind": "epoch-end", "count": 8, "time": 9.2},
            {"kind": "evaluation", "count": 8, "time": 9.3, "score": score(0)},
        ]
    )
    assert (gathered.resumed, gathered.begun, gathered.last, gathered.stopped) == (6, Place(0, 6), 7, Place(0, 7))
    assert gathered.batches == {7: batch(7)}
    assert (gathered.saves, gathered.state_bytes, gathered.epoch_ends) == ([7, 8], 300, [8])
    assert gathered.milliseconds == pytest.approx(250.0)
    assert gathered.evaluations == [score(0)]
    assert not gathered.ended


def test_attempt_killed_before_its_first_batch() -> None:
    """An attempt that was killed before its first batch stands at its beginning."""
    gathered = make_attempt([{"kind": "begin", "count": 6, "time": 1.1, "epoch": 0, "step": 6}])
    assert (gathered.last, gathered.stopped, gathered.milliseconds) == (6, Place(0, 6), None)
