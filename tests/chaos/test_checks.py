"""The checks, on ledgers that are made here and on scripts with a bug."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import resumable
from resumable.chaos.digests import is_lost
from resumable.chaos.ledger import Attempt, Batch, RankLog, StepRef
from resumable.chaos.plan import Case, Launch
from resumable.chaos.verify.checks import (
    each_sample_once,
    same_checkpoints,
    same_place,
    same_steps,
    same_weights,
    true_states,
    whole_history,
)
from resumable.chaos.verify.history import count_compared
from resumable.errors import ConfigurationError

SCRIPTS = Path(__file__).parent / "scripts"
SMALL, HAND = ([sys.executable, str(SCRIPTS / name)] for name in ("small_loop.py", "hand_loop.py"))
PEACE = Case((Launch(),))


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def place(step: int, epoch: int = 0) -> dict[str, int]:
    return {"epoch": epoch, "position": 4 * step, "step": step}


def log(*events: dict[str, Any]) -> RankLog:
    """Read the events of a process."""
    made = RankLog(0, 1)
    for number, event in enumerate(events, start=1):
        made.add({"time": 1.0, "number": number, "loader": 0, **event})
    return made


def batch(step: int, *digests: str, indices: list[str] | None = None) -> dict[str, Any]:
    return {"kind": "batch", **place(step), "acked": True, "indices": indices, "digests": list(digests)}


def attempt(number: int, *events: dict[str, Any]) -> Attempt:
    return Attempt(number, {0: log(*events)}, status=0)


# ---------------------------------------------------------------------- states


def test_a_state_that_names_another_place_is_found() -> None:
    true = attempt(0, {"kind": "state", **place(2), "says": place(2)})
    ahead = attempt(0, {"kind": "state", **place(2), "says": place(3)})
    assert true_states(PEACE, true, [true]) == ""
    assert true_states(PEACE, true, [true, ahead]) == (
        "in launch 0, loader 0 was at epoch 0, step 2 (sample 8), but its state says epoch 0, step 3 (sample 12)"
    )


def test_loader_elsewhere_than_its_state() -> None:
    """A loader that continues elsewhere than its state says is found.

    Nothing else shows it where the step between was trained on before, and is lost with the weights.
    """
    first = [batch(1, "a"), batch(2, "b"), batch(3, "c")]
    loads: list[dict[str, Any]] = [{"kind": "load", "says": place(1)}, {"kind": "loaded", **place(2)}]
    baseline, attempts = attempt(0, *first), [attempt(0, *first[:2]), attempt(1, *loads, first[2])]
    assert whole_history(PEACE, baseline, attempts) == ""
    assert "was sent to epoch 0, step 1 (sample 4), but is at" in true_states(PEACE, baseline, attempts)
    honest: list[dict[str, Any]] = [{"kind": "load", "says": place(1)}, {"kind": "loaded", **place(1)}, first[2]]
    skipping = [attempt(0, *first[:2]), attempt(1, *honest)]
    assert true_states(PEACE, baseline, skipping) == ""
    assert "1 steps of the baseline run are not in the weights, the first in epoch 0, step 1" in whole_history(
        PEACE, baseline, skipping
    )


def test_what_is_no_state_is_left_to_the_loader() -> None:
    refused = attempt(0, {"kind": "load", "says": None}, {"kind": "load", "says": place(1)})
    assert true_states(PEACE, refused, [refused]) == ""


def saving(step: int, at: int) -> dict[str, Any]:
    return {"kind": "saving", "root": "store", "step": step, "places": [place(at)], "parts": {"model": f"m{at}"}}


def test_a_loader_goes_on_where_the_weights_do() -> None:
    restored = {"kind": "restored", "root": "store", "step": 6}
    first = attempt(0, saving(3, at=3), saving(6, at=6), saving(6, at=7))
    for at, right in ((6, True), (7, True), (3, False), (8, False)):
        attempts = [first, attempt(1, restored, {"kind": "loaded", **place(at)})]
        assert (same_place(PEACE, first, attempts) == "") is right
    text = "loader 0 of launch 1 resumed at epoch 0, step 8, but the loaded checkpoint"
    assert text in same_place(PEACE, first, attempts)
    other = {"kind": "restored", "root": "another", "step": 6}
    assert same_place(PEACE, first, [first, attempt(1, other, {"kind": "loaded", **place(3)})]) == ""


def step(after: str, number: int, weights: str) -> list[dict[str, Any]]:
    """Return the first step of an optimizer after a checkpoint."""
    about = {"store": "store", "step": number, "optimizer": 0, "weights": {"0": weights}, "optimizer_parts": {}}
    return [STEPPED, {"kind": "update", "after": after, **about, "stands": [place(number + 1)]}]


STEPPED = {"kind": "stepped"}
RESTORED = {"kind": "restored", "root": "store", "step": 3}


@pytest.mark.parametrize(
    ("launch", "found"),
    [
        ([RESTORED, *step("restored", 3, "w3"), STEPPED, STEPPED], None),
        ([RESTORED, *step("restored", 3, "w3"), STEPPED], 2),
        ([RESTORED, STEPPED, *step("restored", 3, "w3"), STEPPED, STEPPED, STEPPED], 4),
        ([RESTORED], 0),
        ([RESTORED, *step("restored", 3, "other"), STEPPED], None),  # it continued from elsewhere
        ([{**RESTORED, "step": 6}], None),  # nothing is left
        ([RESTORED, {**RESTORED, "step": 6}], None),
        ([{**RESTORED, "step": 5}, *step("restored", 5, "w5")], None),  # the baseline run has no such checkpoint
    ],
)
def test_no_step_of_an_optimizer_is_lost(launch: list[dict[str, Any]], found: int | None) -> None:
    """A step that is lost or added is found, although the data and all checkpoints are equal."""
    first = [STEPPED] * 3 + [saving(3, at=3), *step("saved", 3, "w3"), STEPPED, STEPPED, saving(6, at=6)]
    baseline = attempt(0, *first)
    text = same_steps(PEACE, baseline, [attempt(0, *first[:6]), attempt(1, *launch)])
    words = f"in launch 1, the checkpoint of step 3 was followed by {found} steps of the optimizers, but by 3 in the "
    assert text == ("" if found is None else f"{words}baseline run")


def test_a_file_that_is_saved_twice_at_a_position() -> None:
    """A loop that fetches ahead is at the same position before and after the last step of an epoch."""
    twice = [saving(3, at=3), *step("saved", 3, "w3"), saving(3, at=3), *step("saved", 3, "w4")]
    baseline = attempt(0, *twice)
    for weights, right in (("w3", 2), ("w4", 1)):
        for found in (1, 2):
            launch = attempt(1, RESTORED, *step("restored", 3, weights), *[STEPPED] * (found - 1))
            assert (same_steps(PEACE, baseline, [attempt(0), launch]) == "") is (found == right)
    assert same_steps(PEACE, attempt(0, *twice[:4]), [attempt(0), attempt(1, RESTORED)]) == ""


def test_a_step_that_is_saved_twice_may_hold_either() -> None:
    baseline = attempt(0, saving(6, at=6), saving(6, at=7))
    assert same_checkpoints(PEACE, baseline, [attempt(0, saving(6, at=6))]) == ""
    assert same_checkpoints(PEACE, baseline, [attempt(0, saving(6, at=6), saving(6, at=8))]) == (
        "'model' in the checkpoint of step 6 of launch 0 differs"
    )


def test_save_behind_an_epochs_end() -> None:
    """A save behind an epoch's end is not compared with one before it.

    As Lightning saves at a fit's end where the start went on from the last step, and the baseline run did not.
    """
    steps = [batch(1, "a"), batch(2, "b"), batch(3, "c")]

    def saved(number: int, at: dict[str, int], part: str) -> Attempt:
        event = {"kind": "saving", "root": "store", "step": 3, "places": [at], "parts": {"loops.epochs": part}}
        return attempt(number, *steps, event)

    baseline = saved(0, place(3), "1")
    for at, part, right, counted in (
        (place(3), "1", True, (1, 0)),
        (place(3), "2", False, (1, 0)),
        ({"epoch": 1, "position": 0, "step": 0}, "2", True, (0, 1)),
        (place(2), "2", False, (1, 0)),
        (place(1, epoch=1), "2", False, (1, 0)),
    ):
        case = [saved(0, at, part)]
        assert (same_checkpoints(PEACE, baseline, case) == "") is right
        assert count_compared(baseline, case) == counted


@pytest.mark.slow
def test_loader_ahead_of_its_weights() -> None:
    """A script whose loader runs ahead of its weights is found."""
    found = resumable.chaos.run([*HAND, "--ahead"], points=3, preload=["torch", "torch._dynamo"], jobs=2)
    assert len(found.failed) == 3
    assert all("same place" in outcome.violations for outcome in found.failed)
    assert {outcome.diagnosis.cause for outcome in found.failed} == {"loader from elsewhere"}


# ---------------------------------------------------------------------- samples


@pytest.mark.parametrize("indices", [True, False])
def test_repeated_sample_by_index_or_content(indices: bool) -> None:
    """A sample that comes twice is found by its index or by its content.

    Over ranks: rank 0 gets in step 2 what rank 1 had in step 1.
    """

    def made(*rows: tuple[str, str]) -> Attempt:
        ranks = {}
        for rank in range(2):
            steps = [(step, row[rank]) for step, row in enumerate(rows, 1)]
            ranks[rank] = log(*(batch(step, name, indices=[name] if indices else None) for step, name in steps))
        for one in ranks.values():
            one.world = 2
        return Attempt(0, ranks, status=0)

    baseline, twice = made(("a", "b"), ("c", "d")), made(("a", "b"), ("b", "d"))
    assert each_sample_once(PEACE, baseline, [baseline]) == ""
    assert each_sample_once(PEACE, baseline, [twice]) == (
        "sample b was trained on 2 times, but 1 times in the baseline run, in epoch 0 of loader 0"
    )
    assert baseline.ranks[0].batches[0, StepRef(0, 1)] == Batch(("a",) if indices else None, ("a",))


# ---------------------------------------------------------------------- weights


def test_the_weights_that_were_shown_last_count() -> None:
    def showing(*digests: str) -> Attempt:
        return attempt(0, *({"kind": "weights", "digest": digest} for digest in digests))

    baseline, finished = showing("epoch 0", "epoch 1"), attempt(2)
    for attempts in ([showing("epoch 0"), showing("epoch 1")], [baseline, finished]):
        assert same_weights(PEACE, baseline, attempts) == ""
    assert "final weights" in same_weights(PEACE, baseline, [baseline, showing("epoch 0")])
    assert "final weights" in same_weights(PEACE, baseline, [finished])
    assert same_weights(PEACE, finished, [baseline]) == ""  # they were not the same in two baseline runs


@pytest.mark.slow
def test_weights_shown_and_weights_in_files() -> None:
    """Weights are compared in the script's output and in its files."""
    ignoring = resumable.chaos.run([*SMALL, "--lose-weights"], points=2, ignore="*.json")
    assert ignoring.ok
    assert any("record_weights(model)" in note for note in ignoring.notes)
    shown = resumable.chaos.run([*SMALL, "--lose-weights", "--show-weights"], points=2)
    assert [list(outcome.violations) for outcome in shown.failed] == [["same weights", "same files"]] * 2
    assert not any("record_weights" in note for note in shown.notes)
    assert resumable.chaos.run([*SMALL, "--show-weights"], points=2).ok


def test_showing_weights_costs_nothing_where_nobody_watches() -> None:
    resumable.chaos.record_weights(object())  # it is not even looked at


@pytest.mark.slow
def test_a_script_that_never_resumes_proves_nothing(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    loop = (
        "import resumable\nloader = resumable.wrap(list(range(6)))\n"
        "for epoch in loader.epochs(2):\n    for batch in epoch:\n        {}\n"
    )
    script.write_text(loop.format("pass"))
    with pytest.raises(ConfigurationError, match="never saves the state of its loader"):
        resumable.chaos.run([sys.executable, str(script)], points=2, directory=tmp_path / "chaos")
    script.write_text(loop.format("loader.state_dict()"))
    with pytest.raises(ConfigurationError, match="restarted 2 times, but never loaded the state of a loader"):
        resumable.chaos.run([sys.executable, str(script)], points=2, directory=tmp_path / "chaos")


@pytest.mark.slow
def test_weights_that_are_no_numbers_prove_nothing(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    text = (
        (SCRIPTS / "small_loop.py")
        .read_text()
        .replace('record_weights({"weights": weights})', 'record_weights([float("nan")])')
    )
    script.write_text(text)
    found = resumable.chaos.run([sys.executable, str(script), "--show-weights"], points=1, directory=tmp_path / "chaos")
    assert any("weights are entirely NaN" in note for note in found.notes)
    nan = float("nan")
    assert is_lost({"a": [1.0, np.array([nan, nan])], "b": torch.ones(2)})
    assert is_lost(torch.tensor([nan, nan], dtype=torch.bfloat16))
    assert is_lost([nan], plain=True)
    mask = torch.full((2, 2), float("-inf")).triu(1)
    for harmless in (mask, float("inf"), nan, torch.tensor(nan), np.float64(nan), [1, np.arange(3)], torch.empty(0)):
        assert not is_lost({"a": [1.0, harmless]})
