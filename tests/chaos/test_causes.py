"""What a chaos run says of the cause: of bugs that are planted into a script, killed by SIGKILL, and resumed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from planted_programs import BEGIN, BUGS, END, EXPECTED, LOOP, REFUSED, RIGHT, TORCH, TWO, UNSORTED, programs, tabulate

import resumable
from resumable.chaos.ledger import Attempt, RankLog
from resumable.chaos.report.text import describe_violations
from resumable.chaos.verify.causes import CAUSES, Cause, find_cause
from resumable.chaos.verify.diagnosis import Diagnosis, diagnose
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resumable.chaos.report import Outcome

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Outcome]]:
    """Return what runs a bug once."""
    with programs(tmp_path_factory.mktemp("chaos")) as run_one:
        yield run_one


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * ("drop" in name)) for name in RIGHT])
def test_a_right_script_is_blamed_for_nothing(name: str, run: Callable[[str], Outcome]) -> None:
    found = run(name)
    assert found.ok, found.violations
    assert found.compared > 5
    assert not found.diagnosis.text


RESTORED = "weights and optimizer are equal at the first step after the resume, so restored; the later differences of "
ALONE = "everything is equal from step 10 on: only {0} differs from the baseline run"
# What is said of a comparison without the blamed part; nothing where the cause is in the data or in the save.
TRIED = {
    "optimizer not restored": "without optimizer, weights are equal at the first step after the resume, so restored; ",
    "scheduler not restored": f"without scheduler, {RESTORED}",
    "scaler not restored": f"without scaler, {ALONE.format('scaler')}",
    "torch not restored": f"without rng, {RESTORED}",
    "numpy not restored": f"without rng, {RESTORED}",
    "python not restored": f"without rng, {RESTORED}",
    "step not restored": f"without step, {ALONE.format('step')}",
    "model not restored": "without the model, optimizer is equal at the first step after the resume, so restored; ",
    "average not restored": f"without average, {RESTORED}scores may result from average",
    "evaluation skipped": "without scores, everything is equal from step 8 on: only scores",
    "evaluates on a resume": "without scores, everything is equal from step 10 on: only scores",
    "saved before the average": f"without average, {RESTORED}scores may result from average",
    TWO: "without optimizer, something still differs: scheduler.last_epoch differs first: the scheduler is probably",
}
QUICK = {
    "optimizer not restored",
    "scheduler not restored",
    TWO,
    "torch not restored",
    "saved before the step",
    "one batch late",
    "one batch early with global_step",
    "fetches ahead, drop-in, with torch.save, one batch late",
    "enumerate",
    "second loop",
    "saved before the scheduler",
}


@pytest.mark.parametrize("bug", [pytest.param(bug, marks=[pytest.mark.long] * (bug not in QUICK)) for bug in BUGS])
def test_a_planted_bug_is_named(bug: str, run: Callable[[str], Outcome]) -> None:
    found = run(bug)
    assert not found.ok
    assert found.diagnosis.cause == BUGS[bug].cause, (found.violations, found.diagnosis)
    assert found.diagnosis.text in describe_violations(found)
    shown = found.diagnosis.as_dict()
    assert not [path for path in shown["equal"] if path in shown["differing"]]
    assert TRIED.get(bug, "") in found.diagnosis.trial
    assert bool(found.diagnosis.trial) is (bug in TRIED), found.diagnosis.trial
    assert not found.diagnosis.trial or f"tried: {found.diagnosis.trial}" in describe_violations(found)
    if found.diagnosis.cause == "generators not restored":
        assert f"the state of the RNG {bug.split(maxsplit=1)[0]} differs" in found.diagnosis.text


def test_what_differs_is_listed_with_its_values_and_first_steps(run: Callable[[str], Outcome]) -> None:
    found = run("scheduler not restored")
    text = describe_violations(found)
    assert "likely cause: data equal; " in text
    assert "scheduler.last_epoch differs first: the scheduler is probably not restored\n" in text
    assert "scheduler.last_epoch (2, but 10 in the baseline run)" in text
    assert "scheduler.gamma" in found.diagnosis.equal
    assert "rng" in found.diagnosis.equal
    assert min(found.diagnosis.differing.values()) == found.diagnosis.differing["scheduler.last_epoch"] == 10


@pytest.mark.parametrize("bug", [pytest.param(bug, marks=[pytest.mark.long] * (bug != UNSORTED)) for bug in REFUSED])
def test_another_order_in_each_run_is_named(bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A different order of samples in each run is rejected by that name."""
    monkeypatch.chdir(tmp_path)
    match = r"the same samples arrive in a different order, as with os\.listdir, a set"
    with pytest.raises(ConfigurationError, match=match):
        resumable.chaos.run([sys.executable, LOOP, "--bug", bug], points=1, preload=TORCH)


# ---------------------------------------------------------------------- the table


def test_each_cause_has_a_planted_bug() -> None:
    """Each cause has a planted bug and is in the reference."""
    # as in test_checks.py and test_chaos_ranks.py
    elsewhere = {"non-atomic save", "ranks resume apart", "loader from elsewhere", "generators of other ranks"}
    assert {cause.name for cause in CAUSES} == {*(bug.cause for bug in BUGS.values()), *elsewhere}
    page = (Path(__file__).parents[2] / "docs/reference/chaos-results.md").read_text(encoding="utf-8")
    for cause in CAUSES:
        row = f"| `{cause.name}` | {', '.join(f'`{sign}`' for sign in sorted(cause.signs))} |"
        assert row in page, row
    for sign in {sign for cause in CAUSES for sign in cause.signs}:
        assert f"- `{sign}`: " in page


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: "-".join(sorted(cause.signs)).replace(" ", "_"))
@pytest.mark.every_cell
def test_a_cause_is_found_by_its_signs_alone(cause: Cause) -> None:
    signs = dict.fromkeys(cause.signs, "<seen>")
    found = find_cause(signs)
    assert found is not None
    assert found.name == cause.name
    assert "{" not in found.text


def test_each_planted_program_was_caught() -> None:
    """The table is written by `python tests/chaos/planted_programs.py docs/reference/chaos-results.md`."""
    page = (Path(__file__).parents[2] / "docs/reference/chaos-results.md").read_text(encoding="utf-8")
    table = page.partition(BEGIN)[2].partition(END)[0].strip().splitlines()
    assert table == tabulate({name: cause for name, (_, cause) in EXPECTED.items()})


def test_no_sign_is_no_cause() -> None:
    assert find_cause({}) is None
    assert find_cause({"compared": "8", "tensors": "differ"}) is None
    assert find_cause(dict.fromkeys(("scheduler", "generators", "first part"), "x")) == find_cause({"scheduler": "x"})


def test_no_cause_without_a_checkpoint() -> None:
    """Without a checkpoint of a store, nothing is said of a cause."""
    attempt = Attempt(0, {0: RankLog(0, 1)}, status=0)
    assert diagnose(attempt, [attempt, attempt], {"same weights": "final weights differ"}) == Diagnosis()
