"""What scripts save by `torch.save`, safetensors and Lightning is compared as the checkpoints of a store are."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from resumable.chaos.campaign import survey
from resumable.chaos.launch.mirror import Mirror
from resumable.chaos.launch.preload import Preload
from resumable.chaos.launch.runner import Command, run_case
from resumable.chaos.ledger import Attempt, InPlace, RankLog, StepRef, Writer, series_of
from resumable.chaos.plan import Case, Fault, Launch
from resumable.chaos.recorder.saves import Saves
from resumable.chaos.report import Outcome, Report
from resumable.chaos.report.text import describe_violations
from resumable.chaos.verify.checks import check
from resumable.chaos.verify.files import find_survived
from resumable.chaos.verify.outcome import note_in_place, settle_in_place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SCRIPTS = Path(__file__).parent / "scripts"
pytestmark = pytest.mark.slow

# The cause that is to be named, by the bug; the baseline run of a bug in the resume is that of the right script.
IN_RESUMES = {
    "scheduler not restored": "scheduler not restored",
    "optimizer not restored": "optimizer not restored",
    "average not restored": "a part not restored",
    "model not restored": "model not restored",
    "torch not restored": "generators not restored",
    "step not restored": "step counter not restored",
    "loader not loaded": "loader not loaded",
}
IN_SAVES = {
    "written in place": "non-atomic save",
    "saved before the step": "saved before the step",
    "one batch early": "loader one batch early",
    "one batch late": "loader one batch late",
    "loader not saved": "loader not saved",
    "average not saved": "in no checkpoint",
}
CALLBACK = "callback of Lightning not restored"
NAMED = {**IN_RESUMES, **IN_SAVES, CALLBACK: "a part not restored"}
QUICK = {"scheduler not restored"}


class Runs:
    """Runs a script with a bug once, killed after its fourth save; bugs in the resume share a baseline run."""

    def __init__(self, root: Path, preload: Preload) -> None:
        self.root, self.preload = root, preload
        self.baseline = cache(self._baseline)
        self.run = cache(self._run)

    def _command(self, script: str, options: tuple[str, ...]) -> Command:
        return Command((sys.executable, str(SCRIPTS / script), *options), preload=self.preload, mirror=Mirror(SCRIPTS))

    def _baseline(self, script: str, options: tuple[str, ...]) -> Any:
        return survey(self._command(script, options), self.root / f"baseline {script} {options}", (1,))

    def _run(self, script: str, *options: str, point: str = "torch.save.written", number: int = 4) -> Outcome:
        shared = tuple(option for option in options if option not in {"--bug", *IN_RESUMES})
        attempt, _, notes = self.baseline(script, shared if IN_RESUMES.keys() & set(options) else options)
        assert not notes, notes
        place = self.root / f"{script} {options} {point}"
        # By name: where the points of a second thread are among the others depends on the load of the machine.
        case = Case((Launch(Fault("kill", number, point)), Launch()))
        attempts = run_case(self._command(script, options), case, place)
        return Outcome.of(case, place, attempts, check(case, attempt, attempts), attempt)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Outcome]]:
    """Return what runs the loop with options, among them one of the ways to save."""
    root = tmp_path_factory.mktemp("chaos")
    with Preload(["torch", "torch._dynamo"]) as preload:
        yield partial(Runs(root, preload).run, "planted_loop.py")
    shutil.rmtree(root)


@pytest.fixture(scope="module")
def loop(many: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """Return what runs the loop with options."""
    return partial(many, "--torch")


def test_a_right_script_is_blamed_for_nothing(loop: Callable[..., Outcome]) -> None:
    found = loop()
    assert found.ok, describe_violations(found)
    assert found.compared > 5
    assert not found.uncompared
    names = ("last.pt", "best.pt", "step_6.pt", "step_12.pt", "step_18.pt")
    assert found.files == {**dict.fromkeys((*names, "aside.pt", "<memory>"), True), "model.pt": False}
    assert found.unnamed == 2  # one of another thread, and one to memory, without the state of a loader
    assert not found.in_place


@pytest.mark.parametrize("bug", [pytest.param(bug, marks=[pytest.mark.long] * (bug not in QUICK)) for bug in NAMED])
def test_a_planted_bug_is_named(bug: str, loop: Callable[..., Outcome], tmp_path: Path) -> None:
    found = forget_callback(tmp_path) if bug == CALLBACK else loop("--bug", bug)
    assert not found.ok
    assert found.diagnosis.cause == NAMED[bug], (found.violations, found.diagnosis)


@pytest.mark.parametrize(
    ("way", "bug"),
    [
        ("--thread", ""),
        ("--memory", "scheduler not restored"),
        *(
            pytest.param(way, bug, marks=pytest.mark.long)
            for way in ("--memory", "--thread")
            for bug in (
                "",
                "optimizer not restored",
                "scheduler not restored",
                "loader not loaded",
                "model not restored",
            )
            if (way, bug) not in {("--thread", ""), ("--memory", "scheduler not restored")}
        ),
    ],
)
def test_what_is_saved_to_memory_or_by_a_thread_is_compared(way: str, bug: str, many: Callable[..., Outcome]) -> None:
    found = many(way, *(["--bug", bug] if bug else []))
    assert found.fired == 1
    assert found.compared > 5
    assert not found.unnamed
    assert set(found.files) == {"<memory>" if way == "--memory" else "last.pt"}
    assert found.ok is not bool(bug), describe_violations(found)
    blind = way == "--thread" and bug in {"optimizer not restored", "model not restored"}  # no step follows such a save
    assert found.diagnosis.cause == ("" if blind else bug), describe_violations(found)


@pytest.mark.parametrize(("aside", "step"), [(True, 8), (False, 6)])
def test_what_a_thread_has_saved_is_known_by_what_is_in_it(aside: bool, step: int, tmp_path: Path) -> None:
    """A kill may come between what it does and the word of it; of what the loop saves, the word is first."""
    agent, name = Listener(), str(tmp_path / "last.pt")
    (tmp_path / "attempt-0").mkdir()
    writer = Writer(tmp_path / "attempt-0", "events")
    for number in (4, 6):
        writer.write("wrote", name=f"{name}.tmp", store=series_of(f"{name}.tmp"), step=number, aside=aside)
        writer.write("renamed", old=f"{name}.tmp", name=name, store=series_of(name), step=number, aside=aside)
    state = {"format": 2, "cursor": {}, "global_batch": 4, "global_step": 8}
    Saves(agent, tmp_path / "attempt-1").loaded(name, {"model": {}, "loader": state})
    assert agent.told == [("restored", {"root": series_of(name), "store": series_of(name), "step": step})]


class Listener:
    """Stands for what watches a process that has made a loader and fetched no batch yet."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []

    def has_loader(self) -> bool:
        return True

    def has_begun(self) -> bool:
        return False

    def tell(self, kind: str, **fields: Any) -> None:
        self.told.append((kind, fields))


def forget_callback(place: Path) -> Outcome:
    """Run a Trainer with a callback that saves its state and does not load it."""
    with Preload(["torch", "torch._dynamo", "pytorch_lightning"]) as preload:
        found = Runs(place, preload).run("lightning_loop.py", "--average", "--forgetful", number=2)
    assert "same checkpoints" in found.violations, describe_violations(found)
    assert found.violations.keys() <= {"same checkpoints", "same files"}, describe_violations(found)
    assert found.diagnosis.differing == {"callbacks.Average": 6}
    assert found.files == {f"checkpoints/{name}.ckpt": True for name in ("last", "epoch=1-step=6", "epoch=0-step=3")}
    return found


@pytest.mark.parametrize("bug", ["written in place", pytest.param("falls back", marks=pytest.mark.long)])
def test_a_kill_within_a_save_leaves_half_a_file(bug: str, loop: Callable[..., Outcome]) -> None:
    found = loop("--bug", bug, point="torch.save.half")
    assert found.fired == 1
    if bug == "falls back":
        assert found.ok, describe_violations(found)
        assert found.in_place == {"last.pt": False}
        assert found.survived == {"last.pt"}
        return
    assert "torch/serialization.py" in found.violations["comes to its end"]
    assert found.violations["atomic saves"] == "last.pt is overwritten in place, and the next launch reads it"
    assert found.diagnosis.cause == "non-atomic save"


# ---------------------------------------------------------------------- files that are written in place


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Report]]:
    """Return what runs a loop without torch, killed in its second epoch, and reports it."""
    root = tmp_path_factory.mktemp("chaos")
    with Preload(["numpy"]) as preload:
        runs = Runs(root, preload)

        def run(*options: str) -> Report:
            found = runs.run("small_loop.py", "--show-weights", *options, point="loader.handed", number=8)
            report = Report(("python", "train.py"), 0, Attempt(0), outcomes=[found])
            report.notes += note_in_place(report)
            return report

        yield run
    shutil.rmtree(root)


def test_write_in_place_is_named_before_a_kill(
    small: Callable[..., Report],
) -> None:
    """A file of any kind that is written in place is named before a kill hits it."""
    (found,) = small("--in-place").outcomes
    assert found.violations == {"atomic saves": "checkpoint.json is overwritten in place, and the next launch reads it"}
    assert found.diagnosis.text == (
        "data equal; checkpoint.json is overwritten in place and read on startup, so a kill during a save destroys the "
        "only copy; write to a temporary file, then os.replace() it"
    )


def test_a_file_with_a_name_of_its_own_is_a_note(small: Callable[..., Report]) -> None:
    report = small("--own-names")
    assert report.ok, str(report)
    assert [note[: note.index(":")] for note in report.notes] == [
        "step_*.json is written under the name that is read on startup"
    ]


@pytest.mark.parametrize("then", ["read", "written again", "neither"])
def test_half_a_file_may_be_read_or_written_again(then: str) -> None:
    """The next launch resumes from another checkpoint, and the half-written file has no effect."""
    broken = Attempt(0, ranks={0: RankLog(0, 1, half="model.pt")}, fired=True, status=-9)
    after = Attempt(1, ranks={0: RankLog(0, 1, loaded={0: StepRef(0, 4)})}, status=0)
    if then == "read":
        after.read_in_place["model.pt"] = 2.0
    elif then == "written again":
        after.in_place["model.pt"] = InPlace(2.0, over=True)
    assert find_survived([broken, after]) == (set() if then == "neither" else {"model.pt"})
    assert not find_survived([broken, replace(after, status=1)])


def test_half_a_file_clears_all_cases(tmp_path: Path) -> None:
    """Half a file that the next start ignores clears it in all cases.

    The case that shows it has a kill in the middle of the save; the others have one elsewhere.
    """
    blamed = Outcome(Case((Launch(), Launch())), tmp_path, [], {"atomic saves": "last.pt"}, in_place={"last.pt": True})
    other = replace(
        blamed, violations={"atomic saves": "last.pt, best.pt"}, in_place={"last.pt": True, "best.pt": True}
    )
    cleared = replace(blamed, violations={}, survived=frozenset({"last.pt"}))
    report = Report(("python", "train.py"), 0, Attempt(0), outcomes=[blamed, other, cleared])
    settle_in_place(report)
    assert [outcome.ok for outcome in report.outcomes] == [True, False, True]
    assert len(note_in_place(report)) == 1
