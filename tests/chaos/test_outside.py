"""A chaos run and the checkpoints of real runs: whatever it breaks, those keep their bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import resumable
from resumable.chaos.launch.runner import DAMAGES
from resumable.chaos.ledger import Attempt, RankLog
from resumable.chaos.plan import FAULTS
from resumable.chaos.verify.baseline import check_healthy
from resumable.errors import ConfigurationError
from resumable.failpoints import VARIABLE

SCRIPTS = Path(__file__).parent / "scripts"
LOOP, LIGHTNING, SMALL = (str(SCRIPTS / f"{name}.py") for name in ("outside_loop", "outside_lightning", "small_loop"))
TORCH = ["torch", "torch._dynamo"]


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def digest(root: Path) -> list[Any]:
    """Return all that is known of what is in a directory, without following links: bytes, modes, times."""
    found = []
    for path in sorted(root.rglob("*")):
        info = path.lstat()
        content = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found.append((str(path), info.st_mode, info.st_mtime_ns, info.st_ino, content))
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders with a real run that is over: two stores, one of them behind a link, and what `torch.save` wrote."""
    root = tmp_path_factory.mktemp("runs")
    real = root / "real"
    (real / "files").mkdir(parents=True)
    (root / "elsewhere").mkdir()
    (real / "link").symlink_to(root / "elsewhere")
    subprocess.run([sys.executable, LOOP, "--into", real], cwd=root, check=True)
    torch = import_module("torch")
    state = torch.load(real / "files" / "newest.pt")["loader"]
    (real / "files" / "loader.json").write_text(json.dumps(state))
    return root


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Trainer's folder with a real run that is over."""
    real = tmp_path_factory.mktemp("trainer") / "real"
    done = subprocess.run([sys.executable, LIGHTNING, "--into", real, "--load"], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in real.iterdir()} >= {"best", "logs", "last.ckpt", "step=6.ckpt"}
    return real


def run(
    script: str, *options: str, faults: list[str], preload: list[str] = TORCH, **more: Any
) -> resumable.chaos.Report:
    words = [sys.executable, script, *options]
    return resumable.chaos.run(
        words, faults=faults, points=1, jobs=2, preload=preload, patience=600.0, grace=1.0, **more
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(["kill", "torn-write", "truncate", "stale", "worker-kill"], marks=pytest.mark.long),
        pytest.param(list(FAULTS), marks=pytest.mark.long),
    ],
    ids=["some", "all"],
)
def test_no_kind_of_fault_changes_a_real_run(
    faults: list[str], finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store, one behind a link, and a folder of `torch.save` of an earlier run: all are written to, and pruned."""
    monkeypatch.chdir(finished)
    before = digest(finished)
    found = run(LOOP, "--into", "real", "--workers", "2", faults=faults, directory=tmp_path / "chaos")
    assert digest(finished) == before
    assert found.ok, found.timeline()
    assert not found.impossible
    assert [outcome.fired for outcome in found.outcomes] == [1] * len(faults)
    assert not found.read
    (note,) = [note for note in found.notes if note.startswith("of an earlier run, and not in the cases: ")]
    assert "real/files" in note


HERE = [kind for kind in FAULTS if not FAULTS[kind].in_worker]


@pytest.mark.slow
@pytest.mark.parametrize(
    "faults", [["truncate", "stale"], pytest.param(HERE, marks=pytest.mark.long)], ids=["some", "all"]
)
def test_no_kind_of_fault_changes_the_real_run_of_a_trainer(
    faults: list[str], trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained.parent)
    more: Any = {"preload": [*TORCH, "pytorch_lightning"], "directory": tmp_path / "chaos"}
    before = digest(trained)
    found = run(LIGHTNING, "--into", str(trained), faults=faults, **more)
    assert digest(trained) == before
    assert found.ok, found.timeline()
    assert not found.impossible


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("store", r"loads from .*/real/store, which contains a real run .*: 2 checkpoints, the newest of step 12\.\n"),
        pytest.param(
            "link",
            r"loads from .*/real/link, which contains a real run .*: 2 checkpoints, the newest of step 12\.\n",
            marks=pytest.mark.long,
        ),
        ("files", r"loads a loader's state in its first launch, .*\n(.*\n)*.*read .*: .*/files/newest\.pt"),
        pytest.param(
            "json",
            r"loads a loader's state in its first launch, .*\n(.*\n)*.*read .*: .*/files/loader\.json",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_script_that_goes_on_from_a_real_run_is_refused(kind: str, message: str, finished: Path) -> None:
    """Whether that is over or not: the real one is, and one more epoch is asked for in the last two cases."""
    before = digest(finished)
    epochs = "3" if kind in {"files", "json"} else "2"
    with pytest.raises(ConfigurationError, match=message) as caught:
        run(LOOP, "--into", str(finished / "real"), "--load", kind, "--epochs", epochs, faults=["stale"], preload=[])
    assert digest(finished) == before
    assert "use a relative checkpoint path, which leads into the case, or {dir}" in str(caught.value)
    assert "fails without faults" not in str(caught.value)
    (output,) = Path("runs/chaos/baseline/0").glob("attempt-0/output.txt")
    assert "resumable chaos: the command loads" in output.read_text()
    events = [path.read_text() for path in output.parent.glob("events-*.jsonl")]
    assert not any('"kind": "batch"' in text for text in events)


@pytest.mark.slow
def test_a_trainer_that_goes_on_from_a_real_run_is_refused(trained: Path) -> None:
    before = digest(trained)
    with pytest.raises(
        ConfigurationError, match=r"the Trainer resumes from .*/real/last\.ckpt, which belongs to a real run"
    ):
        run(LIGHTNING, "--into", str(trained), "--load", "--logs", "here", faults=["stale"], preload=[])
    assert digest(trained) == before


def script(text: str) -> list[str]:
    Path("train.py").write_text(f"import resumable\n{text}\n")
    return [sys.executable, "train.py"]


LOOPED = """
import json, os
loader = resumable.wrap(list(range(12)), batch_size=2, seed=0)
{load}
for epoch in loader.epochs(2):
    for batch in epoch:
        os.makedirs(os.path.dirname({path!r}) or ".", exist_ok=True)
        json.dump(loader.state_dict(), open({path!r} + ".tmp", "w"))
        os.replace({path!r} + ".tmp", {path!r})
"""
LOAD = "if os.path.exists({path!r}): loader.load_state_dict(json.load(open({path!r})))"


def looped(path: str) -> str:
    return LOOPED.format(path=path, load=LOAD.format(path=path))


@pytest.mark.slow
@pytest.mark.parametrize("path", ["{tmp_path}/here/state.json", "{tmp_path}/elsewhere/state.json"])
def test_script_with_absolute_paths(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are refused before the first byte, in the folder of the command and elsewhere."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    with pytest.raises(
        ConfigurationError, match=r"would have written to .*/(here|elsewhere), .*\(train\.py, line \d+\)"
    ):
        resumable.chaos.run(script(looped(path.format(tmp_path=tmp_path))), points=3)
    assert {entry.name for entry in tmp_path.iterdir()} == {"project"}


@pytest.mark.slow
def test_a_program_of_many_files_runs_as_it_is(tmp_path: Path) -> None:
    """A package with a configuration, data and an earlier run; the real tree keeps its bytes."""
    for name, text in {
        "cfg/small.json": '{"out": "out/state.json", "data": "data/numbers.txt"}',
        "data/numbers.txt": " ".join(map(str, range(12))),
        "pkg/__init__.py": "",
        "pkg/train.py": PACKAGE,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    words = [sys.executable, "-m", "pkg.train", "--config", "cfg/small.json"]
    subprocess.run(words, cwd=tmp_path, check=True)
    before = digest(tmp_path)
    found = resumable.chaos.run(words, points=3, jobs=2, directory=tmp_path / "runs" / "chaos")
    assert found.ok, found.timeline()
    assert any(outcome.resumed for outcome in found.outcomes)
    assert [one for one in digest(tmp_path) if "/runs" not in one[0]] == before
    assert "of an earlier run, and not in the cases: out" in found.notes


PACKAGE = """
import argparse, json, os
import resumable
parser = argparse.ArgumentParser()
parser.add_argument("--config")
config = json.load(open(parser.parse_args().config))
loader = resumable.wrap(open(config["data"]).read().split(), batch_size=2, shuffle=True, seed=0)
os.makedirs("out", exist_ok=True)
if os.path.exists(config["out"]):
    loader.load_state_dict(json.load(open(config["out"])))
for epoch in loader.epochs(2):
    for batch in epoch:
        with open("out/train_log", "a") as log:
            print(loader.global_step, batch, file=log)
        with open(config["out"] + ".tmp", "w") as file:
            json.dump(loader.state_dict(), file)
        os.replace(config["out"] + ".tmp", config["out"])
"""


@pytest.mark.slow
def test_finished_run_and_unused_loader(tmp_path: Path) -> None:
    """A finished run is told from no loader and from an unused one."""
    torch = import_module("torch")
    torch.save({"epoch": 2}, tmp_path / "last.pt")
    made = "loader = resumable.wrap([1, 2, 3], seed=0)\n"
    over = (
        f"{made}import torch\nfor epoch in range(torch.load({str(tmp_path / 'last.pt')!r})['epoch'], 2): next(loader)"
    )
    with pytest.raises(
        ConfigurationError, match=r"it resumed a finished run, from .*/last\.pt\.\n.*train for more epochs"
    ):
        resumable.chaos.run(script(over))
    with pytest.raises(ConfigurationError, match=r"no batch of a resumable loader\.\n.*Wrap its loader"):
        resumable.chaos.run(script("pass"))
    with pytest.raises(ConfigurationError, match=r"no batch of a resumable loader, although it created one\.\n"):
        resumable.chaos.run(script(made))


def test_a_state_at_the_end_of_the_run_is_a_finished_run() -> None:
    log = RankLog(0, 1)
    for event in ({"kind": "wrapped"}, {"kind": "loaded", "loader": 0, "epoch": 2, "position": 0, "step": 0}):
        log.add({"time": 1.0, **event})
    with pytest.raises(ConfigurationError, match="it resumed a finished run"):
        check_healthy(Attempt(0, {0: log}, status=0), Path("here"))


def test_a_store_elsewhere_is_refused() -> None:
    import_module("aiohttp")
    with pytest.raises(ConfigurationError, match=r"would have written to http://bucket/run, which is remote\."):
        resumable.chaos.run(script("resumable.CheckpointStore('http://bucket/run')"))


@pytest.mark.slow
def test_a_refusal_on_the_way_of_a_restart_ends_the_campaign_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").write_text("real")
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    again = f"if os.path.exists('state.json'): import io; io.FileIO({str(tmp_path / 'log')!r}, 'w')\n"
    path = "state.json"
    with pytest.raises(ConfigurationError, match="would have written to .*/log, which is outside its case"):
        resumable.chaos.run(script(LOOPED.format(path=path, load=again + LOAD.format(path=path))), points=2)
    assert (tmp_path / "log").read_text() == "real"


@pytest.mark.parametrize("damage", ["truncate", "flip", "stale", "lost-fsync"])
@pytest.mark.parametrize("way", ["root", "link to root", "link to step", "link to file", "hard link"])
def test_damage_touches_nothing_that_a_link_leads_to(damage: str, way: str, tmp_path: Path) -> None:
    torch = import_module("torch")
    real, case = tmp_path / "real", tmp_path / "case"
    store = resumable.CheckpointStore(real)
    for step in (3, 6):
        store.save(step, {"weights": torch.ones(8)})
    (newest,) = (real / "step-000000000006").glob("*.pt")
    root = make_way(way, real, newest, case)
    path = root / newest.relative_to(real)
    before = digest(real)
    log = RankLog(0, 1, saved=[(str(root), 6)], files=[("store.written", str(path))])
    DAMAGES[damage]([Attempt(0, {0: log})], case)
    after = digest(real)
    assert after == before


def make_way(way: str, real: Path, newest: Path, case: Path) -> Path:
    """Make a store in the case's directory by which a real one can be reached."""
    if way == "root":
        case.mkdir()
        return real
    if way == "link to root":
        case.mkdir()
        (case / "store").symlink_to(real)
        return case / "store"
    step = case / "store" / newest.parent.name
    if way == "link to step":
        step.parent.mkdir(parents=True)
        step.symlink_to(newest.parent)
        return step.parent
    step.mkdir(parents=True)
    (step / "COMMIT.json").write_bytes((newest.parent / "COMMIT.json").read_bytes())
    if way == "link to file":
        (step / newest.name).symlink_to(newest)
    else:
        os.link(newest, step / newest.name)
    return step.parent


def test_linked_trainer_checkpoint(tmp_path: Path) -> None:
    """A checkpoint of the trainer that is a link is left alone."""
    (tmp_path / "real.ckpt").write_bytes(b"0123")
    (tmp_path / "case").mkdir()
    (tmp_path / "case" / "last.ckpt").symlink_to(tmp_path / "real.ckpt")
    for damage in ("truncate", "flip", "stale"):
        assert not DAMAGES[damage]([], tmp_path / "case")
    assert (tmp_path / "real.ckpt").read_bytes() == b"0123"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("20240131", {"notes.txt": "mine"}),
        ("0001", {"weights.pt": "mine"}),
        ("0001", {"case.json": '{"of": "law"}'}),
        ("0001", {"case.json": "no JSON"}),
        ("baseline", {"0": "mine"}),
        ("baseline", {"notes.txt": "mine"}),
        ("report.json", "mine"),
        ("report.html", "mine"),
        ("campaign.json", '{"format": "mine"}'),
        ("campaign.lock", "mine"),
        ("thesis.tex", "mine"),
    ],
)
def test_a_directory_with_something_of_the_users_is_left_alone(name: str, content: Any, tmp_path: Path) -> None:
    """Also where it has a name that a chaos run gives."""
    root = tmp_path / "runs"
    if isinstance(content, dict):
        (root / name).mkdir(parents=True)
        for each, text in content.items():
            (root / name / each).write_text(text)
    else:
        root.mkdir()
        (root / name).write_text(content)
    before = digest(root)
    with pytest.raises(ConfigurationError, match=f"runs contains {name}, which no chaos run wrote"):
        resumable.chaos.run([sys.executable, SMALL], directory="runs", points=1)
    assert [one[:2] + one[4:] for one in digest(root) if "campaign.lock" not in one[0] or content == "mine"] == [
        one[:2] + one[4:] for one in before
    ]


@pytest.mark.slow
def test_a_link_in_the_directory_is_not_followed(tmp_path: Path) -> None:
    found = resumable.chaos.run([*[sys.executable, SMALL], "--other-data"], points=1)
    assert not found.ok
    case = found.failed[0].directory
    case.rename(tmp_path / "kept")
    case.symlink_to(tmp_path / "kept")
    with pytest.raises(ConfigurationError, match="contains 0001, which no chaos run wrote"):
        resumable.chaos.run([sys.executable, SMALL], points=1)
    assert (tmp_path / "kept" / "case.json").exists()


@pytest.mark.slow
def test_leftovers_of_campaigns_are_removed() -> None:
    """The next campaign removes the leftovers of the one before, and the next replay those of a replay."""
    words = [sys.executable, SMALL]
    place = resumable.chaos.run([*words, "--other-data"], points=1).failed[0].directory
    assert not resumable.chaos.replay(place).ok
    assert not resumable.chaos.replay(place).ok
    (place / "replay" / "case.json").unlink()
    with pytest.raises(ConfigurationError, match="0001 contains replay, which no chaos run wrote"):
        resumable.chaos.replay(place)
    assert resumable.chaos.run(words, points=1).ok
    assert not place.exists()


@pytest.mark.parametrize("content", [None, "", "[]", "{}", "no JSON"])
def test_a_variable_that_names_no_plan_does_no_harm(content: str | None, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    if content is not None:
        plan.write_text(content)
    code = "import resumable, os; print(len(list(resumable.wrap([1, 2], seed=0))), os.open, "
    code += "resumable.failpoints._observer)"
    environment = {**os.environ, VARIABLE: str(plan)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "2 <built-in function open> None\n"
    assert done.stderr.count("ChaosWarning") == 1
    assert f"{VARIABLE} is set to {plan}, which is not the plan of a chaos run" in done.stderr
    assert f"unset {VARIABLE}" in done.stderr


@pytest.mark.slow
def test_a_plan_is_gone_when_its_start_is_over() -> None:
    """A process that outlives it, with the variable in its environment, would else be refused what it writes."""
    place = resumable.chaos.run([sys.executable, SMALL, "--other-data"], points=1).failed[0].directory
    assert not list(place.glob("attempt-*/plan.json"))
    assert len(list(place.glob("attempt-*/plan.done.json"))) == 2
