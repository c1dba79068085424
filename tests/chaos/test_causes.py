"""What a chaos run says of the cause: of bugs that are planted into a script, killed by SIGKILL, and resumed."""

from __future__ import annotations

import shutil
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from resumable.chaos.campaign import survey
from resumable.chaos.launch.preload import Preload
from resumable.chaos.launch.runner import Command, run_case
from resumable.chaos.plan import Case, Fault, Leg
from resumable.chaos.report import Outcome
from resumable.chaos.verify.checks import check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SCRIPTS = Path(__file__).parent / "scripts"
LOOP = str(SCRIPTS / "planted_loop.py")
TORCH = ["torch", "torch._dynamo"]
LONG, SLOW = [pytest.mark.slow, pytest.mark.long], [pytest.mark.slow]

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


@pytest.mark.parametrize("bug", [*IN_RESUMES, *IN_SAVES])
def test_a_planted_bug_is_named(bug: str, run: Callable[[str], Outcome]) -> None:
    found = run(bug)
    assert not found.ok
    assert found.diagnosis.cause == {**IN_RESUMES, **IN_SAVES}[bug], (found.violations, found.diagnosis)
