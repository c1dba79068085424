"""`resumable.check` and `resumable check`: right programs pass, wrong ones are caught, each with its cause."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import programs
import pytest
import pytorch_lightning
import torch
from torch.utils.data import DataLoader

import resumable
from resumable._selfcheck import fresh
from resumable._selfcheck.streams import first_difference, take_apart
from resumable.cli import main
from resumable.errors import ConfigurationError, UnsupportedError


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")


if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.process import BaseProcess

SCRIPT = Path(programs.__file__)
NEEDS = """import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
given = parser.parse_args()
def make(): return [given.data] * 9
"""
SHADOWS = """import multiprocessing, os, subprocess, sys
class Data(list):
    pass
def work(data):
    assert data == [7] and __file__.endswith("colorsys.py")
def make():
    worker = multiprocessing.get_context("spawn").Process(target=work, args=(Data([7]),))
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    os.write(1, b"noise")
    subprocess.run(["echo", "noise"])
    sys.__stdout__.write("noise")
    return Data(range(3))
"""


def checked(make: Callable[[], Any], **options: Any) -> Any:
    """Check in this process alone: a function inside of another one cannot be found by a fresh one."""
    return resumable.check(lambda: make(), **options)  # noqa: PLW0108  # a lambda is inside of another function


def broken(report: Any) -> dict[str, Any]:
    return {trial.name: trial for one in report.loaders for trial in one.trials if trial.kept is False}


@pytest.mark.parametrize(
    "make",
    [
        programs.right,
        programs.plain_list,
        programs.arrays,
        programs.generator,
        programs.stateful,
        programs.manual,
        programs.two,
    ],
)
def test_a_right_program_passes(make: Callable[[], Any]) -> None:
    report = checked(make)
    assert not broken(report), str(report)
    assert report.ok
    assert report.complete
    assert report.status == 0
    names = [trial.name for trial in report.loaders[0].trials]
    assert "stopped before the first batch" in names
    assert "stopped after the last batch of epoch 0" in names
    assert "close() leaves no workers" in names


@pytest.mark.parametrize(
    ("make", "name", "cause"),
    [
        (programs.system, "two runs of fresh loaders", "use an unseeded RNG"),
        (programs.unseeded, "two runs of fresh loaders", "use an unseeded RNG"),
        (programs.unseeded_stream, "two runs of fresh loaders", "use an unseeded RNG"),
        (programs.outside, "two runs of fresh loaders", "use an unseeded RNG"),
        (programs.trainers, "two runs of fresh loaders", "random numbers that the trainer uses"),
        (programs.hidden, "stopped after the first batch", "a counter of the dataset"),
        (programs.counting, "stopped after the first batch", "a counter of the dataset"),
        (programs.forgetting, "stopped after the first batch", "leaves out"),
    ],
)
def test_a_wrong_program_is_caught_with_its_cause(make: Callable[[], Any], name: str, cause: str) -> None:
    report = checked(make)
    assert report.status == 1
    assert not report
    trial = next(trial for trial in broken(report).values() if trial.name.startswith(name))
    assert cause in trial.cause
    assert trial.difference is not None
    assert trial.difference.expected != trial.difference.found
    assert f"epoch {trial.difference.epoch}, step {trial.difference.step}" in str(report)


def test_the_part_that_differs_is_named() -> None:
    (trial, *_) = broken(checked(programs.unseeded)).values()
    assert (trial.difference.epoch, trial.difference.step, trial.difference.part) == (0, 0, "0.x")


def test_a_guard_of_the_loader_is_told_as_the_cause() -> None:
    def make() -> Any:
        return resumable.wrap(programs.Stream(forgets=True), batch_size=4)

    causes = [trial.cause for trial in broken(checked(make)).values()]
    assert any("StateMismatchError" in cause and "restored from its own state" in cause for cause in causes)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "cause"), [("of_a_set", "PYTHONHASHSEED"), ("unseeded_list", "the system seeds")])
def test_what_differs_between_processes_is_caught_by_a_fresh_one(
    name: str, cause: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", f"{SCRIPT}:{name}", "--json"]) == 1
    (report,) = json.loads(capsys.readouterr().out)["loaders"]
    (trial,) = [trial for trial in report["trials"] if trial["kept"] is False]
    assert trial["name"] == "a fresh process reads the same"
    assert cause in trial["cause"]


def test_a_function_of_a_file_is_found_by_a_fresh_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{SCRIPT}:two"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("a fresh process reads the same") == 2
    assert "a fresh process resumes after" in shown
    assert "FAILED" not in shown
    assert "PASSED: " in shown
    own = resumable.check(programs.unseeded_list)  # the seed of this process goes along
    assert own.ok, str(own)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_dataloaders_of_torch(workers: int, own_children: Callable[[], list[BaseProcess]]) -> None:
    def make() -> Any:
        return DataLoader(programs.Samples(), batch_size=4, shuffle=True, num_workers=workers)  # type: ignore[arg-type]

    def wrong() -> Any:
        return DataLoader(programs.Counts(), batch_size=4, shuffle=True, num_workers=workers)  # type: ignore[arg-type]

    assert checked(make, seconds=300).ok
    if not workers:  # starting workers a dozen times is what takes time
        assert "stopped after the first batch" in broken(checked(wrong, seconds=300))
    assert not own_children()


@pytest.mark.slow
def test_a_data_module_of_lightning() -> None:
    class Module(pytorch_lightning.LightningDataModule):
        def setup(self, stage: str) -> None:
            assert stage == "fit"
            self.samples: Any = programs.Samples()

        def train_dataloader(self) -> Any:
            return DataLoader(self.samples, batch_size=4, shuffle=True)

    report = resumable.check(Module)
    assert report.ok
    assert report.loaders[0].source == "Loader of torch-map, batches of 4"


def test_a_state_that_changes_while_its_run_goes_on_is_told() -> None:
    loader = programs.aliasing()
    stepped = iter(loader)
    next(stepped)
    state = loader.state_dict()
    before = json.dumps(state)
    next(stepped)
    changes = json.dumps(state) != before  # where the loader copies what a source gives, there is nothing to tell
    assert ("a saved state stays unchanged" in broken(checked(programs.aliasing))) == changes


def test_generators_that_are_moved_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def moves(*batch: Any) -> Any:
        random.random()  # no source of this package does, so it is planted where batches are read
        return take_apart(*batch)

    monkeypatch.setattr("resumable._selfcheck.streams.take_apart", moves)
    found = broken(checked(programs.plain_list))
    assert "epoch 0, step 0" in found["the global RNGs are unchanged"].cause


def test_workers_that_are_left_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resumable._selfcheck.trials.living_workers", lambda before: ["Worker-1 (pid 4711)"])
    assert "Worker-1 (pid 4711)" in broken(checked(programs.plain_list))["close() leaves no workers"].cause


def test_the_time_is_a_bound_and_what_it_left_out_is_told() -> None:
    report = checked(programs.right, seconds=1e-9)
    assert not report.complete
    assert "SKIPPED" in str(report)
    assert "Allow more time with seconds=" in " ".join(str(report).split())
    assert report.status == 2
    assert not report.ok


@pytest.mark.slow
def test_a_check_without_a_cut_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{SCRIPT}:slow", "--seconds", "0.2", "--json"]) == 2
    said = capsys.readouterr()
    assert json.loads(said.out)["ok"] is False
    assert "no resume was compared in" in said.err
    assert "Allow more time with --seconds N" in said.err


def test_the_middle_is_cut_right_after_two_runs() -> None:
    for one in checked(programs.two).loaders:
        names = [trial.name for trial in one.trials]
        assert names[0] == "two runs of fresh loaders are the same"
        assert re.fullmatch(r"stopped after \d+ batches", names[1]) or not any(trial.is_cut for trial in one.trials)


def test_the_trainers_generators_are_put_back() -> None:
    random.seed(3)
    before = random.getstate()
    checked(programs.unseeded_list)
    assert random.getstate() == before


def test_a_report_is_json() -> None:
    report = checked(programs.counting)
    values = json.loads(json.dumps(report.as_dict()))
    assert values["status"] == 1
    assert values["loaders"][0]["kept"] is False


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (programs.fails, ConfigurationError, "raised KeyError(?s:.*)programs.py(?s:.*)no such folder"),
        (programs.needs, ConfigurationError, "needs the arguments folder, but a check passes none"),
        (programs.nothing, UnsupportedError, "returned None"),
        (programs.text, UnsupportedError, "cannot wrap an object of type builtins.str"),
        (programs.number, ConfigurationError, "is a int, not a function"),
        (programs.the_same, ConfigurationError, "returned the same loader twice"),
    ],
)
def test_what_cannot_be_checked_is_refused(make: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        resumable.check(make)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("train.py", "does not identify a function of a script"),
        ("nowhere.py:make", "the file nowhere.py does not exist"),
        ("no_such.module:make", "there is no module 'no_such'"),
        ("script.py:missing", "script.py has no attribute 'missing'(?s:.*)It has make"),
        ("bad.py:make", r"exited while it was imported \(status 3\)(?s:.*)__main__"),
        ("needs.py:make", r"exited while it was imported \(status 2\)\.\nhint: Nothing was checked(?s:.*) -- "),
        ("package/train.py:make", "Pass its module instead: package.train:make"),
        ("late.py:make", "raised SystemExit"),
    ],
)
def test_a_function_that_is_not_there_is_named(
    spec: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text("def make(): return [1]\nif __name__ == '__main__': raise AssertionError\n")
    Path("bad.py").write_text("import sys\nsys.exit(3)\n")
    Path("needs.py").write_text(NEEDS)
    Path("late.py").write_text("import sys\ndef make(): return sys.exit\n")
    Path("package").mkdir()
    Path("package/__init__.py").write_text("")
    Path("package/train.py").write_text("from .util import N\n")
    path = list(sys.path)
    assert main(["check", spec]) == 2
    assert re.search(told, capsys.readouterr().err)
    assert sys.path == path


def test_words_after_two_dashes_are_those_of_the_script(tmp_path: Path) -> None:
    path = tmp_path / "needs.py"
    path.write_text(NEEDS)
    assert main(["check", f"{path}:make", "--", "--data", "x"]) == 0


@pytest.mark.slow
def test_script_named_like_a_module(tmp_path: Path) -> None:
    """A script that is named like a module and writes past Python is checked.

    Its classes reach spawned workers, its name hides no module here, and the output is one document.
    """
    path = tmp_path / "colorsys.py"
    path.write_text(SHADOWS)
    command = [sys.executable, "-m", "resumable", "check", f"{path}:make", "--json", "--seconds", "2"]
    child = subprocess.run(command, capture_output=True, text=True, check=False, cwd=SCRIPT.parent)
    assert json.loads(child.stdout)["loaders"], child.stderr
    assert child.returncode in {0, 2}, child.stderr  # 2 s may be too short for a cut
    assert "noise" in child.stderr


def test_a_check_inside_of_a_check_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh, "_inside", True)
    with pytest.raises(ConfigurationError, match="Each check would start a further one"):
        resumable.check(programs.right)


def test_batches_are_compared_by_content() -> None:
    class Odd:
        """Its repr has its address."""

        def __init__(self, value: int) -> None:
            self.value = value

    def batch(value: float) -> Any:
        return [{"a": torch.full((2,), value, dtype=torch.bfloat16)}, ("text", {3, 1}), Odd(4)]

    one, same, other = (take_apart(batch(value), 0, 0) for value in (1.0, 1.0, 2.0))
    assert first_difference([one], [same]) is None
    found = first_difference([one], [other])
    assert found is not None
    assert found.part == "0.a"
    many = [take_apart([*range(1000), end], 0, 0) for end in (1, 2)]
    assert first_difference(many[:1], many[1:]) is not None


def test_a_flight_recorder_is_left_out(tmp_path: Path) -> None:
    def make() -> resumable.Loader:
        return resumable.wrap(list(range(24)), batch_size=4, flight_recorder=tmp_path)

    assert resumable.check(make).ok
    assert list(tmp_path.iterdir()) == [], "the record of the real run would be replaced"
