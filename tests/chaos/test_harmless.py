"""Right scripts that look like wrong ones are blamed for nothing, and what was not tested is said to be so."""

from __future__ import annotations

import random
import sys
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import resumable
from resumable.chaos.campaign import survey
from resumable.chaos.launch.mirror import Mirror
from resumable.chaos.launch.preload import Preload
from resumable.chaos.launch.runner import Command, run_case
from resumable.chaos.ledger import Attempt, RankLog
from resumable.chaos.plan import Case, Fault, Launch
from resumable.chaos.report import Outcome, Report
from resumable.chaos.verify.baseline import drop_what_differs
from resumable.chaos.verify.checks import check
from resumable.chaos.verify.outcome import note_missed, note_uncompared
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOOP, LIGHTNING = (
    str(Path(__file__).parent / "scripts" / name) for name in ("harmless_loop.py", "harmless_lightning.py")
)
MODULES = {LOOP: ["torch", "torch._dynamo"], LIGHTNING: ["torch", "torch._dynamo", "pytorch_lightning"]}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def preloads() -> Iterator[Callable[[str], Preload]]:
    """Return what gives the process from which the starts of a script are forked."""
    with ExitStack() as stack:
        yield cache(lambda script: stack.enter_context(Preload(MODULES[script])))


@pytest.fixture
def run(tmp_path: Path, preloads: Callable[[str], Preload]) -> Callable[..., tuple[Outcome, Report]]:
    """Return what runs a script with options and one fault, and gives the outcome and the notes."""

    def run_one(choose: Callable[[Any], Fault], *options: str, script: str = LOOP) -> tuple[Outcome, Report]:
        command = Command(
            (sys.executable, script, *options), preload=preloads(script), mirror=Mirror(Path(script).parent)
        )
        baseline, seen, notes = survey(command, tmp_path / "baseline", (1,))
        case = Case((Launch(choose(seen)), Launch()))
        attempts = run_case(command, case, tmp_path / "case")
        outcome = Outcome.of(case, tmp_path / "case", attempts, check(case, baseline, attempts), baseline)
        return outcome, Report(command.words, 0, baseline, notes, [outcome])

    return run_one


def test_kill_between_saves_to_two_stores(run: Any) -> None:
    """A kill between the saves to two stores is no lost checkpoint.

    The best store has step 6, and the last one step 3, from which the script goes on.
    """
    found, report = run(lambda seen: Fault("kill", seen.saved[2] + 1), "--two-stores")
    assert [step for _, step in found.attempts[0].ranks[0].saved] == [3, 3, 6]
    assert [step for _, step in found.attempts[1].ranks[0].restored] == [3]
    assert found.ok, found.violations
    assert not report.notes


def test_checkpoints_by_the_clock_at_baseline_steps(run: Any) -> None:
    """Checkpoints by the clock are compared if the baseline has their step."""
    found, report = run(lambda seen: Fault("kill", seen.saved[0] + 1), "--clock")
    assert found.ok, found.violations
    assert not [note for note in report.notes if "between two baseline runs" in note]
    assert found.compared >= 1  # those of the steps 6 and 12
    told = [f"{found.uncompared} of {found.compared + found.uncompared} checkpoints w"]
    assert [note[: len(told[0])] for note in note_uncompared(report)] == told * (found.uncompared > 0)


def test_unreached_point_is_no_broken_promise(run: Any) -> None:
    """A point that does not come is not reached, and no broken promise."""
    found, report = run(lambda seen: Fault("kill", len(seen.points) - 1), "--fewer")
    assert found.ok, found.violations
    assert not found.reached
    assert "1 of 1 case did not reach the fault, which proves nothing. Seed 0, 0 s.\n" in str(report)
    with pytest.raises(ConfigurationError, match=r"no fault happened: the first was due as kill at point .*\nNothing"):
        note_missed(report)
    report.outcomes.append(
        Outcome.of(Case((Launch(Fault("kill", 3)), Launch())), Path("2"), [Attempt(0, fired=True)], {})
    )
    (note,) = note_missed(report)
    assert note.startswith("not reached in 1 of 2 cases, which prove nothing: case (kill at point ")
    assert report.as_dict()["cases"][0]["reached"] is False


# ---------------------------------------------------------------------- right programs, ten runs of each

PROGRAMS: dict[str, tuple[str, ...]] = {
    "last and best": (LOOP, "--two-stores"),
    "by the time": (LOOP, "--clock"),
    "infinity": (LOOP, "--infinite"),
    "training and validation": (LOOP, "--validation"),
    "thread in the background": (LOOP, "--thread"),
    "workers that read ahead": (LOOP, "--workers"),
    "logs": (LOOP, "--logs"),
    "all of these": (LOOP, "--two-stores", "--clock", "--infinite", "--validation", "--thread", "--workers", "--logs"),
    "Lightning": (LIGHTNING,),
    "Lightning with workers": (LIGHTNING, "--workers"),
}
SAMPLE = {("all of these", 0), ("logs", 6), ("Lightning", 0)}


@pytest.mark.parametrize(
    ("name", "number"),
    [
        pytest.param(name, number, marks=[pytest.mark.long] * ((name, number) not in SAMPLE))
        for name in PROGRAMS
        for number in range(10)
    ],
)
def test_a_right_program_is_blamed_for_nothing(name: str, number: int, run: Any) -> None:
    """Each of the ten is killed in a tenth of its run of its own."""
    script, *options = PROGRAMS[name]
    dice = random.Random(number)
    found, report = run(
        lambda seen: Fault("kill", int((number + dice.random()) * len(seen.points) / 10) + 1), *options, script=script
    )
    assert found.ok, (found.violations, found.diagnosis)
    assert found.fired or not found.reached
    harmless = (
        *("saved at a step at which", "the weights of", "two baseline runs saved"),
        *("two baseline runs left", "files from a different step", "files that the baseline run does not have"),
        "files that were opened to append only record",
    )
    assert not [note for note in report.notes if not any(words in note for words in harmless)], report.notes


# ---------------------------------------------------------------------- two baseline runs


def baseline(*saves: tuple[int, dict[str, str]]) -> Attempt:
    log = RankLog(0, 1)
    for step, parts in saves:
        log.add({"time": 1.0, "kind": "saving", "root": "store", "step": step, "places": [], "parts": parts})
    return Attempt(0, {0: log}, status=0)


def parts(step: int, **more: str) -> dict[str, str]:
    return {"model.weight": f"w{step}", "step": str(step), **more}


def test_steps_of_one_baseline_run() -> None:
    """Steps that one baseline run saved are expected if both runs are otherwise alike."""
    first = baseline((6, parts(6, time="1")), (7, parts(7, time="2")))
    assert drop_what_differs(first, baseline((6, parts(6, time="3")), (9, parts(9, time="4")))) == [
        "'time' in the checkpoints differs between two baseline runs, and is not compared"
    ]
    assert first.ranks[0].parts == {("store", step): [parts(step)] for step in (6, 7, 9)}


def test_without_a_step_in_common_nothing_is_known_to_be_alike() -> None:
    first = baseline((7, parts(7)))
    assert drop_what_differs(first, baseline((8, parts(8)))) == [
        "two baseline runs saved no common step to store, so its content is not compared"
    ]
    assert not first.ranks[0].parts


def test_lost_part_of_a_checkpoint_differs() -> None:
    """A part that is lost from a checkpoint differs, and one that only one save had does not."""
    first = baseline((6, parts(6)), (6, parts(6, extra="1")))
    for found, right in ((parts(6), True), (parts(6, extra="1"), True), ({"step": "6"}, False)):
        assert (check(Case((Launch(),)), first, [first, baseline((6, found))]).get("same checkpoints") is None) is right


def test_a_campaign_ends_well_where_some_points_were_not_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = Path(LOOP).with_name("small_loop.py").read_text()
    less = 'if step % 2 == 0 and (step < 4 or "baseline" in Path.cwd().parts):'
    Path("train.py").write_text(text.replace("if step % 2 == 0:", less))
    found = resumable.chaos.run([sys.executable, "train.py"], points=10, jobs=2)
    assert found.ok
    missed = [outcome.name for outcome in found.outcomes if not outcome.reached]
    assert 0 < len(missed) < 10
    begin = f"not reached in {len(missed)} of 10 cases, which prove nothing: {missed[0]}"
    assert any(note.startswith(begin) for note in found.notes)


@pytest.mark.slow
def test_pickles_and_a_loader_without_a_place_break_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storages in a pickle stand under addresses, and a validation set is read from its beginning in each start."""
    monkeypatch.chdir(tmp_path)
    words = [sys.executable, str(Path(__file__).parent / "scripts" / "pickling_loop.py")]
    found = resumable.chaos.run(words, points=2, preload=["torch", "torch._dynamo"])
    assert found.ok, found.timeline()
    assert any(outcome.resumed for outcome in found.outcomes)
    assert not found.notes
    assert "3 files at the end" in str(found.coverage)
