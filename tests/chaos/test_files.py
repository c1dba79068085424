"""The files that a run leaves at its end: what they hold, what two baseline runs have in common, and what differs."""

from __future__ import annotations

import json
import pickle
import re
import sys
import time
from collections import OrderedDict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import resumable
from resumable.chaos import inventory as contents
from resumable.chaos.campaign import survey
from resumable.chaos.inventory import changed, parts_of_file, stamps, take_inventory
from resumable.chaos.launch.mirror import Mirror
from resumable.chaos.launch.runner import Command, run_case
from resumable.chaos.ledger import Attempt, Batch, Left, RankLog, StepRef
from resumable.chaos.plan import Case, Fault, Launch
from resumable.chaos.report import Outcome, Report
from resumable.chaos.report.text import describe_violations
from resumable.chaos.verify.baseline import cover
from resumable.chaos.verify.checks import check
from resumable.chaos.verify.files import drop_unlike_files, find_elsewhere, find_extra, same_files
from resumable.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable

SCRIPTS = Path(__file__).parent / "scripts"
LOOP = [sys.executable, str(SCRIPTS / "files_loop.py")]
PEACE = Case((Launch(),))


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# ---------------------------------------------------------------------- one file


def parts(name: str, write: Callable[[Path], Any]) -> dict[str, str]:
    """Write a file and read its parts."""
    write(Path(name))
    return parts_of_file(Path(name), Path.cwd())


class Own:
    """A class of the script, which nobody may import."""

    def __init__(self, value: object) -> None:
        self.value = value


def test_dotted_parts_and_contents() -> None:
    """Checkpoints have dotted parts, and objects have the parts in them."""

    def saved(value: float, scale: float) -> dict[str, str]:
        own = Own({"scale": scale})
        content = {"model": OrderedDict(weight=torch.full((2, 3), value)), "half": torch.ones(2).bfloat16(), "own": own}
        return parts("a.pt", lambda path: torch.save(content, path))

    one, same, other = saved(1.0, 2.0), saved(1.0, 2.0), saved(1.5, 3.0)
    assert one == same
    assert {path for path in one if one[path] != other[path]} == {"model.weight", "own.value.scale"}
    assert one["model.weight"].startswith("float32[2, 3]: ")
    assert other["own.value.scale"] == "3.0"


def test_what_lightning_says_of_its_own_files_is_not_looked_at() -> None:
    def saved(path: str, patience: int) -> dict[str, str]:
        states = {"ModelCheckpoint{}": {"best_model_path": path, "kth_best_model_path": "", "last_model_path": path}}
        content = {"callbacks": {**states, "EarlyStopping": {"wait_count": patience}}}
        return parts("a.ckpt", lambda file: torch.save(content, file))

    assert saved("a", 1) == saved("b", 1)
    assert saved("a", 1) != saved("a", 2)


def test_the_state_of_a_loader_is_its_place() -> None:
    loader = resumable.wrap([1, 2, 3, 4], batch_size=2, seed=0)
    next(iter(loader))
    found = parts("a.ckpt", lambda path: torch.save({"data": [loader.state_dict()]}, path))
    assert found == {"data.0.cursor.epoch": "0", "data.0.cursor.position": "2", "data.0.cursor.step": "1"}


def test_arrays_values_and_bytes() -> None:
    arrays = parts("a.npz", lambda path: np.savez(path, b=np.arange(3), c=np.float64(2)))
    assert arrays["c"] == "2.0 float64"
    assert arrays["b"].startswith("int64[3]: ")
    assert list(parts("a.npy", lambda path: np.save(path, np.ones(2)))) == ["content"]
    objects = np.array([Own(1)], dtype=object)
    assert list(parts("b.npy", lambda path: np.save(path, objects, allow_pickle=True))) == ["bytes"]
    text = json.dumps({"loss": 0.5, "file": f"{Path.cwd()}/logs/version_3/a", "of": [{"a": 1}]})
    assert parts("a.json", lambda path: path.write_text(text)) == {
        "loss": "0.5", "file": "'{dir}/logs/version_N/a'", "of.0.a": "1",
    }  # fmt: skip
    assert parts("a.yaml", lambda path: path.write_text("lr: 0.5\nof: {a: 1}\n")) == {"lr": "0.5", "of.a": "1"}
    for name, content in (("a.json", b"{cut"), ("a.pt", b"PK\x03\x04cut"), ("a.bin", b"\x80"), ("a", b""), ("b", b"x")):
        found = parts(name, lambda path, content=content: path.write_bytes(content))  # type: ignore[misc]
        assert found["bytes"].startswith(f"{len(content)} bytes: ")


@pytest.mark.parametrize(
    ("name", "text", "last"),
    [
        ("a.csv", "step,train,val\n1,0.5,\n2,,0.7\n", {"step": "2", "train": "0.5", "val": "0.7"}),
        ("a.csv", "step,loss\n1,0.5\nstep,loss\n2,0.4\n", {"step": "2", "loss": "0.4"}),
        ("a.csv", "1,0.5\n2,nan\n", {'"column 0"': "2", '"column 1"': "nan"}),
        ("a.jsonl", '{"step": 1, "loss": 0.5}\n{"step": 2, "lo\n{"step": 3}\n', {"step": "3", "loss": "0.5"}),
        ("a.json", '{"step": 1}\n{"step": 2}\n', {"step": "2"}),
        ("a.log", "begins\nstep 2\n\n", {'"last line, word 1"': "'step'", '"last line, word 2"': "'2'"}),
    ],
)
def test_of_logs_the_last_values_count(name: str, text: str, last: dict[str, str]) -> None:
    assert parts(name, lambda path: path.write_text(text)) == last


@pytest.mark.parametrize(
    ("name", "text", "since", "single"),
    [
        ("a.csv", "step,train,val\n1,0.5,\n2,,0.7\n3,0.4,\n", 0, ["val"]),
        ("a.csv", "step,train\n1,0.5\n2,0.7\n", 17, ["step", "train"]),
        ("a.jsonl", '{"loss": 1}\n{"loss": 2}\n{"loss": 3}\n', 12, []),
        ("a.txt", '{"loss": 1}\n{"loss": 2}\n', 12, ["loss"]),
        ("a.txt", "loss 1\nloss 2\n", 7, None),
        ("a.npy", "loss 1\nloss 2\n", 7, None),
    ],
)
def test_values_that_a_launch_wrote_once(name: str, text: str, since: int, single: Any, tmp_path: Path) -> None:
    (path := tmp_path / "work" / name).parent.mkdir()
    path.write_text(text)
    assert take_inventory(tmp_path, old={name: since}).single == ({} if single is None else {name: single})


def test_a_large_file_is_read_in_blocks_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "_LARGE", 1 << 22)

    def sparse(path: Path, *, at: int) -> None:
        with path.open("wb") as file:
            file.truncate(1 << 23)
            file.seek(at)
            file.write(b"x")

    found = [parts("a.bin", lambda path, at=at: sparse(path, at=at)) for at in (0, (1 << 23) - 1, 5)]  # type: ignore[misc]
    assert len({one["bytes of some blocks"] for one in found}) == 3
    covered = cover(leaving({"a.bin": found[0]}))
    assert covered.missing == ("most bytes of a.bin (larger than 1 GB)",)


# ---------------------------------------------------------------------- a folder


def written(case: Path, files: dict[str, str]) -> Path:
    """Write the files of a case."""
    for name, text in files.items():
        path = case / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return case


def test_an_inventory_has_the_runs_files_and_no_others(tmp_path: Path) -> None:
    case = written(
        tmp_path / "0001",
        {
            "work/a.json": '{"a": 1}',
            "work/store/step-000000000004/data.pt": "a CheckpointStore's",
            "work/flights/rank-00000.flight": "ours",
            "work/__pycache__/a.pyc": "Python's",
            "work/logs/version_0/metrics.csv": "step,epochs\n1,1\n",
            "work/logs/version_2/metrics.csv": "step\n2\n",
            "work/logs/version_10/metrics.csv": "step\n3\n",
            "work/logs/version_0/hparams": "old",
            "work/logs/version_10/hparams": "new",
            "work/cache/a/b.bin": "left out",
            "work/tmp.log": "left out",
        },
    )
    (case / "work/last.json").symlink_to("a.json")
    (case / "work/script").symlink_to(SCRIPTS / "files_loop.py")
    left = take_inventory(case, ["cache", "*.log"])
    assert sorted(left.files) == ["a.json", "last.json", "logs/version_N/hparams", "logs/version_N/metrics.csv"]
    assert left.files["logs/version_N/metrics.csv"] == {"step": "3", "epochs": "1"}
    assert left.files["logs/version_N/hparams"]["bytes"].startswith("3 bytes: 11507a0e2f5e69d5")
    assert left.ignored == ("cache/a/b.bin", "tmp.log")


def test_a_file_that_grows_during_a_campaign_is_an_input(tmp_path: Path) -> None:
    """Such as the output of the campaign itself, if the shell redirects it to the current folder."""
    project, case = tmp_path / "project", tmp_path / "0002"
    written(project, {"chaos.log": "case 1", "changed.txt": "before"})
    mirror = Mirror(project)
    written(project, {"chaos.log": "case 1\ncase 2"})
    case.mkdir()
    inputs = mirror.build(case / "work")
    written(case, {"work/changed.txt": "changed", "work/new.txt": "changed"})
    assert sorted(take_inventory(case, inputs=inputs).files) == ["changed.txt", "new.txt"]


def test_what_was_damaged_on_purpose_is_expected_of_nobody(tmp_path: Path) -> None:
    case = written(tmp_path, {"work/a": "a", "work/b": "b", "work/c": "c", "work/d": "d"})
    before = stamps(case)
    (case / "work/a").unlink()
    for name in "bc":
        (case / f"work/{name}").write_text("damaged")
    spoilt = changed(before, case)
    (case / "work/c").write_text("written again")
    left = take_inventory(case, damaged=spoilt)
    assert (sorted(left.files), left.damaged) == (["c", "d"], ("a", "b"))
    whole = leaving({name: {"bytes": name} for name in "abcd"})
    case_of_all = Attempt(1, status=0, left=left)
    assert same_files(PEACE, whole, [case_of_all]).startswith("'bytes' in c differs")


@pytest.mark.slow
def test_a_thousand_small_files_take_seconds(tmp_path: Path) -> None:
    for number in range(1000):
        written(tmp_path, {f"work/{number}.json": json.dumps({"number": number}), f"work/{number}.bin": str(number)})
    began = time.process_time()
    assert len(take_inventory(tmp_path).files) == 2000
    assert time.process_time() - began < 5


# ---------------------------------------------------------------------- two runs


def leaving(files: dict[str, dict[str, str]], *, trains: int | None = None, **more: Any) -> Attempt:
    """Make a run that has left files."""
    log = RankLog(0, 1, trains=trains, **more)
    log.batches[0, StepRef(0, 1)], log.acked[0] = Batch(("0",), ("digest",)), StepRef(0, 1)
    return Attempt(0, {0: log}, status=0, left=Left(files))


def test_saves_by_the_clock_at_other_steps() -> None:
    """A checkpoint saved by the clock is not missing if other steps were saved in its place.

    Two baseline runs that agree by chance, as they do on a machine with nothing else to do, change nothing.
    """

    def saved(*names: str) -> Attempt:
        return leaving({name: {"w": name} for name in names}, saves={name: (name, 1) for name in names})

    baseline = saved("a/step=4.ckpt", "last.ckpt")
    other = saved("a/step=5.ckpt", "last.ckpt")
    assert same_files(PEACE, baseline, [other]) == ""
    assert find_elsewhere(baseline, [other]) == {"a/step=4.ckpt"}
    removed = saved("last.ckpt")
    removed.ranks[0].saves["a/step=4.ckpt"] = ("a/step=4.ckpt", 1)
    for missing in (saved("last.ckpt"), removed):
        assert same_files(PEACE, baseline, [missing]) == (
            "a/step=4.ckpt is missing; if it may differ: --ignore a/step=4.ckpt"
        )
    assert same_files(PEACE, baseline, [saved("a/step=4.ckpt", "b/step=5.ckpt")]) == (
        "last.ckpt is missing; if it may differ: --ignore last.ckpt"
    )


def test_differing_baselines_are_left_out() -> None:
    """Differences between two baseline runs are left out and named."""
    first = leaving({"a.json": {"loss": "1", "time": "5"}, "b": {"bytes": "1"}, "events.17": {"bytes": "1"}})
    again = leaving({"a.json": {"loss": "1", "time": "6"}, "b": {"bytes": "2"}, "events.18": {"bytes": "1"}})
    assert drop_unlike_files(first, again) == [
        "'time' in the file a.json differs between two baseline runs, and is not compared",
        "only one of two baseline runs left events.17, events.18: the content of such files is not compared",
        "the file b differs between two baseline runs, and is not compared",
    ]
    assert first.left is not None
    assert first.left.files == {"a.json": {"loss": "1"}}
    late = leaving({"a.json": {"loss": "1", "time": "7"}, "b": {"bytes": "3"}, "events.19": {}, "c.tmp": {}})
    assert same_files(PEACE, first, [late]) == ""
    assert find_extra(first, [late]) == {"c.tmp"}


def test_a_checkpoint_of_another_step_is_compared_with_nothing() -> None:
    """As one that is saved by the time: it holds what belongs to its own step."""
    first = leaving({"a.pt": {"loader.cursor.step": "4", "weight": "float32[2]: a"}}, trains=2)
    other = leaving({"a.pt": {"loader.cursor.step": "6", "weight": "float32[2]: b"}}, trains=2)
    same = leaving({"a.pt": {"loader.cursor.step": "4", "weight": "float32[2]: b"}}, trains=2)
    assert same_files(PEACE, first, [other]) == ""
    assert same_files(PEACE, first, [same]).startswith("'weight' in a.pt differs")
    made = Report(("python",), 0, first)
    made.add(Outcome.of(PEACE, Path("0001"), [other], {}, first))
    assert (made.status, made.coverage.model) == (3, False)
    made.add(Outcome.of(PEACE, Path("0002"), [same], {}, first))
    assert made.status == 0
    drop_unlike_files(first, other)
    assert first.left is not None
    assert not first.left.files


# ---------------------------------------------------------------------- what was compared


@pytest.mark.parametrize(
    ("run", "model"),
    [
        (leaving({"a.json": {"weight": "0.5"}}), None),
        (leaving({}, trains=128), False),
        (leaving({"a.pt": {"generator": "uint8[5056]: a"}}, trains=128), False),
        (leaving({"a.pt": {"bias": "float32[10]: a"}}, trains=128), False),
        (leaving({"a.pt": {"weight": "float16[64, 1]: a"}}, trains=128), True),
        (leaving({"a.onnx": {"bytes": "600 bytes: a"}}, trains=128), True),
        (leaving({"a.log": {"last line, word 1": "'600'"}}, trains=128), False),
        (leaving({}, trains=128, weights="digest"), True),
        (leaving({}, trains=128, parts={("store", 1): [{"model.weight": "bfloat16[128]: a"}]}), True),
        (leaving({}, trains=128, parts={("store", 1): [{}]}), False),
    ],
)
def test_a_model_is_compared_where_its_numbers_are(run: Attempt, model: bool | None) -> None:
    assert cover(run).model is model
    made = Report(("python",), 0, run)
    assert (made.ok, made.status) == ((False, 3) if model is False else (True, 0))
    assert ("the weights (nothing that was compared contains them)" in made.coverage.missing) is (model is False)


def test_the_headline_says_what_was_compared_and_what_was_not() -> None:
    run = leaving({"a": {"bytes": "1"}, "b": {"bytes": "2"}}, trains=10, saved=[("of/best", 1), ("of/last", 1)])
    run.ranks[0].parts = {("last", 1): [{"step": "1"}]}
    assert str(cover(run, (3, 1))) == (
        "Compared: order and batches of 1 loader; checkpoints of 1 store; 2 files at the end. "
        "Not compared: the weights (nothing "
        "that was compared contains them); the checkpoints of 1 store (two baseline runs have no common step)."
    )
    run.ranks[0].saved.pop()
    assert "; 1 of 4 checkpoints (no baseline run saved at their step)." in str(cover(run, (3, 1)))


# ---------------------------------------------------------------------- real processes


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Outcome]:
    """Return what runs a bug once, killed in the second epoch; all bugs are in the resume, and share a baseline run."""
    root = tmp_path_factory.mktemp("chaos")
    baseline, seen, notes = survey(Command(tuple(LOOP)), root / "baseline", (1,))
    assert [note.partition(" differs between")[0].partition(" left ")[0] for note in notes] == [
        "'ended' in the file run.json",
        "only one of two baseline runs",
    ]
    case = Case((Launch(Fault("kill", len(seen.points) * 5 // 6)), Launch()))

    @cache
    def run_one(bug: str) -> Outcome:
        place = root / f"case {bug}"
        attempts = run_case(Command((*LOOP, "--bug", bug)), case, place)
        return Outcome.of(case, place, attempts, check(case, baseline, attempts), baseline)

    return run_one


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "words"),
    [
        ("", ""),
        ("average", r"'average' in checkpoint\.json differs: float64\[3\]: \w+, but float64\[3\]: \w+ in the baseline"),
        ("export", r"'weights' in export\.npz differs: float64\[3\]"),
        ("metrics", r"'total' in logs/version_N/metrics\.csv differs: \d\.\d+, but \d\.\d+ in the baseline run; if"),
        ("missing", r"DONE is missing; if it may differ: --ignore DONE$"),
    ],
)
def test_what_only_the_files_show_is_found(bug: str, words: str, run: Callable[[str], Outcome]) -> None:
    found = run(bug)
    assert list(found.violations) == ["same files"] * bool(bug)
    assert not found.extra
    assert found.single == {"'mean' in epochs.jsonl"}  # of the epoch in which the run was killed
    if bug:
        assert re.match(words, found.violations["same files"])
        assert "files that differ: " in describe_violations(found)
    if bug == "average":
        assert "average in checkpoint.json differs first: possibly, it is not restored" in found.diagnosis.text
        assert found.diagnosis.as_dict()["files"] == ["checkpoint.json (average)", "export.npz (average)"]


@pytest.mark.slow
def test_left_out_files_in_a_replay(capsys: pytest.CaptureFixture[str]) -> None:
    """Patterns leave files out, and a replay compares them again."""
    words = ["chaos", "run", "--points", "1", "--", *LOOP, "--bug", "metrics"]
    assert main(words) == 1
    assert main(["chaos", "replay", "runs/chaos/0001", "--yes"]) == 1
    assert "'total' in logs/version_N/metrics.csv differs" in capsys.readouterr().out
    assert main([*words[:4], "--ignore", "logs", "--ignore", "*.tmp", *words[4:]]) == 0
    printed = capsys.readouterr().out
    assert "Note: left out with --ignore logs --ignore *.tmp: logs/version_N/metrics.csv\n" in printed
    assert "Compared: order and batches of 1 loader; 5 files at the end.\n" in printed
    values = json.loads(Path("runs/chaos/report.json").read_text())
    assert (values["status"], values["compared"][-1], values["not_compared"]) == (0, "5 files at the end", [])


@pytest.mark.slow
def test_program_that_saves_no_model(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that saves no model has a separate exit status."""
    monkeypatch.setenv("COLUMNS", "300")
    words = [sys.executable, str(SCRIPTS / "data_state_loop.py")]
    assert main(["chaos", "run", "--points", "1", "--preload", "torch", "--", *words]) == 3
    printed = capsys.readouterr().out
    assert "WARNING: every promise that could be compared was kept in 1 case." in printed
    assert (
        "Compared: order and batches of 1 loader; every save to 1 file; 1 file at the end. Not compared: the" in printed
    )
    assert "Note: the weights are not compared: save them with CheckpointStore, leave a file with them" in printed


def test_a_pickle_that_cannot_be_read_is_not_compared_and_named(tmp_path: Path) -> None:
    """As one that joblib has compressed; equal objects may have other bytes in it."""
    (tmp_path / "model.joblib").write_bytes(pickle.dumps(["a", 1])[:-3] + bytes(range(64)))
    ((path, text),) = parts_of_file(tmp_path / "model.joblib", tmp_path).items()
    assert (path, text[:14]) == ("bytes", "not compared: ")
    baseline, again = (leaving({"model.joblib": {path: text}, "a.csv": {"loss": "1"}}) for _ in range(2))
    (note,) = drop_unlike_files(baseline, again)
    assert note.startswith("'bytes' in the file model.joblib is not compared: its parts cannot be read")
    assert baseline.left is not None
    assert list(baseline.left.files) == ["a.csv"]
