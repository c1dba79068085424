"""What a chaos run says of the cause: of bugs that are planted into a script, killed by SIGKILL, and resumed."""

from __future__ import annotations

import shutil
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import resumable
from resumable.chaos.campaign import survey
from resumable.chaos.launch.preload import Preload
from resumable.chaos.launch.runner import Command, run_case
from resumable.chaos.plan import Case, Fault, Leg
from resumable.chaos.recorder.logs import Attempt, RankLog
from resumable.chaos.report import Outcome
from resumable.chaos.report.text import describe_violations
from resumable.chaos.verify.causes import CAUSES, Cause, find_cause
from resumable.chaos.verify.checks import check
from resumable.chaos.verify.diagnosis import Diagnosis, diagnose
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SCRIPTS = Path(__file__).parent / "scripts"
LOOP = str(SCRIPTS / "planted_loop.py")
TORCH = ["torch", "torch._dynamo"]
pytestmark = pytest.mark.slow

# The cause that is to be named, by the bug; the baseline run of a bug in the resume is that of the right script.
IN_RESUMES = {
    "optimizer not restored": "optimizer not restored",
    "scheduler not restored": "scheduler not restored",
    "scaler not restored": "GradScaler not restored",
    "torch not restored": "generators not restored",
    "numpy not restored": "generators not restored",
    "python not restored": "generators not restored",
    "step not restored": "step counter not restored",
    "model not restored": "model not restored",
    "average not restored": "a part not restored",
    "loader not loaded": "loader not loaded",
    "unsorted after a crash": "order of the source",
}
IN_SAVES = {
    "saved before the step": "saved before the step",
    "old copy": "saved before the step",
    "one batch early": "loader one batch early",
    "one batch late": "loader one batch late",
    "average not saved": "in no checkpoint",
    "loader not saved": "loader not saved",
    "evaluation skipped": "evaluation skipped",
    "own generator": "generator of the dataset",
    "counts backwards": "step counter not restored",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Outcome]]:
    """Return what runs a bug once, killed after the fourth checkpoint; bugs in the resume share a baseline run."""
    root = tmp_path_factory.mktemp("chaos")
    with Preload(TORCH) as preload:

        def command(bug: str) -> Command:
            return Command((sys.executable, LOOP, "--bug", bug), preload=preload)

        @cache
        def baseline(bug: str) -> Any:
            return survey(command(bug), root / f"baseline {bug}", (1,))

        @cache
        def run_one(bug: str) -> Outcome:
            attempt, seen, notes = baseline("" if bug in IN_RESUMES or not bug else bug)
            assert not notes
            place = root / f"case {bug}"
            case = Case((Leg(Fault("kill", seen.saved[3] + 2 * (bug != "evaluation skipped"))), Leg()))
            attempts = run_case(command(bug), case, place)
            return Outcome.of(case, place, attempts, check(case, attempt, attempts), attempt)

        yield run_one
    shutil.rmtree(root)


def test_the_right_script_is_blamed_for_nothing(run: Callable[[str], Outcome]) -> None:
    found = run("")
    assert found.ok, found.violations
    assert found.compared > 5
    assert not found.diagnosis.text


NAMED = {**IN_RESUMES, **IN_SAVES}
QUICK = {
    "optimizer not restored",
    "scheduler not restored",
    "torch not restored",
    "saved before the step",
    "one batch late",
}


@pytest.mark.parametrize("bug", [pytest.param(bug, marks=[pytest.mark.long] * (bug not in QUICK)) for bug in NAMED])
def test_a_planted_bug_is_named(bug: str, run: Callable[[str], Outcome]) -> None:
    found = run(bug)
    assert not found.ok
    assert found.diagnosis.cause == NAMED[bug], (found.violations, found.diagnosis)
    assert found.diagnosis.text in describe_violations(found)
    shown = found.diagnosis.as_dict()
    assert not [path for path in shown["equal"] if path in shown["differing"]]
    if found.diagnosis.cause == "generators not restored":
        assert f"the generator of {bug.split(maxsplit=1)[0]} is elsewhere" in found.diagnosis.text


def test_what_differs_is_listed_with_its_values_and_first_steps(run: Callable[[str], Outcome]) -> None:
    found = run("scheduler not restored")
    text = describe_violations(found)
    assert "likely cause: data equal; " in text
    assert "scheduler.last_epoch differs first: the scheduler is probably not restored\n" in text
    assert "scheduler.last_epoch (2, and 10 in the baseline run)" in text
    assert "scheduler.gamma" in found.diagnosis.equal
    assert "rng" in found.diagnosis.equal
    assert min(found.diagnosis.differing.values()) == found.diagnosis.differing["scheduler.last_epoch"] == 10


def test_files_in_another_order_in_each_run_are_refused_by_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"the same samples come in another order, as with os\.listdir, a set"):
        resumable.chaos.run([sys.executable, LOOP, "--bug", "unsorted files"], points=1, preload=TORCH)


# ---------------------------------------------------------------------- the table


def test_each_cause_has_a_planted_bug_and_stands_in_the_reference() -> None:
    assert {cause.name for cause in CAUSES} == set(NAMED.values())
    page = (Path(__file__).parents[2] / "docs/reference/chaos.md").read_text(encoding="utf-8")
    for cause in CAUSES:
        row = f"| `{cause.name}` | {', '.join(f'`{sign}`' for sign in sorted(cause.signs))} |"
        assert row in page, row
    for sign in {sign for cause in CAUSES for sign in cause.signs}:
        assert f"- `{sign}`: " in page


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: "-".join(sorted(cause.signs)).replace(" ", "_"))
def test_a_cause_is_found_by_its_signs_alone(cause: Cause) -> None:
    signs = dict.fromkeys(cause.signs, "<seen>")
    found = find_cause(signs)
    assert found is not None
    assert found.name == cause.name
    assert "{" not in found.text


def test_no_sign_is_no_cause() -> None:
    assert find_cause({}) is None
    assert find_cause({"compared": "8", "tensors": "differ"}) is None
    assert find_cause(dict.fromkeys(("scheduler", "generators", "first part"), "x")) == find_cause({"scheduler": "x"})


def test_without_a_checkpoint_of_a_store_nothing_is_said_of_a_cause() -> None:
    attempt = Attempt(0, {0: RankLog(0, 1)}, status=0)
    assert diagnose(attempt, [attempt, attempt], {"same weights": "final weights differ"}) == Diagnosis()
