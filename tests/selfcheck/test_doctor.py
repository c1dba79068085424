"""`resumable doctor`: what it shows, and each trap."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from resumable._selfcheck.doctor import doctor, packages, storage
from resumable.cli import main


@pytest.fixture(autouse=True)
def _a_plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_NTASKS", "PYTHONHASHSEED", "PL_GLOBAL_SEED", "RESUMABLE_CHAOS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "300")


def told(**options: Any) -> list[tuple[str, bool]]:
    return [(trap.what, trap.breaks) for trap in doctor(**options).traps]


def test_a_plain_machine(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["doctor", "--store", str(tmp_path / "new")]) == 0
    shown = capsys.readouterr().out
    for name in ("python", "resumable", "numpy", "torch", "rank", "start method", "store"):
        assert f"\n{name} " in f"\n{shown}"
    assert not list(tmp_path.iterdir())
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


def test_no_framework_is_imported() -> None:
    code = "import sys; from resumable.cli import main; main(['doctor']); print(*sys.modules)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(child.stdout.split("\n")[-2].split())
    assert not loaded & {"torch", "tensorflow", "lightning", "pytorch_lightning", "ffcv", "nvidia"}


@pytest.mark.parametrize(
    ("variables", "text", "breaks"),
    [
        ({"RANK": "0"}, "RANK is set and WORLD_SIZE is not", True),
        ({"RANK": "3"}, "RANK='3', and WORLD_SIZE, which would say of how many, is not set", True),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "Both must be integers", True),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "divided among 2 ranks", False),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, "mpirun has started 4 processes", True),
        ({"SLURM_NTASKS": "4"}, "not started by srun", False),
        ({"RESUMABLE_CHAOS": "/nowhere/plan"}, "a chaos run that is not there", False),
        ({"RESUMABLE_OTHER": "1"}, "RESUMABLE_OTHER is set, which nothing reads", False),
        ({"PYTHONHASHSEED": "0"}, "hides an order that comes out of a set", False),
        ({"PL_GLOBAL_SEED": "7"}, "PL_GLOBAL_SEED=7", False),
    ],
)
def test_traps_of_the_environment(
    variables: dict[str, str], text: str, breaks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert [what for what, one in told() if text in what and one is breaks]
    assert main(["doctor"]) == int(breaks)


@pytest.mark.parametrize(
    ("name", "version", "text"),
    [
        ("pytorch-lightning", "2.1.4", "too old"),
        ("resumable", "1.0", "another project"),
        ("numpy", "1.23.5", "too old"),
    ],
)
def test_traps_of_what_is_installed(name: str, version: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = packages._version
    monkeypatch.setattr(packages, "_version", lambda one: version if one == name else before(one))
    assert [what for what, breaks in told() if text in what and breaks]


@pytest.mark.parametrize(
    ("kind", "text", "breaks"),
    [("fuse.gcsfuse", "a bucket that is mounted", True), ("nfs4", "network", False), ("tmpfs", "in memory", False)],
)
def test_traps_of_a_file_system(
    kind: str, text: str, breaks: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(storage, "_file_system", lambda _: (kind, "some"))
    assert [what for what, one in told(store=str(tmp_path)) if text in what and one is breaks]


def test_a_store_in_which_nothing_is_renamed_or_synced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(Path, "replace", refuse)
    monkeypatch.setattr("os.fsync", refuse)
    found = [what for what, breaks in told(store=str(tmp_path)) if breaks]
    assert len(found) == 3
    assert any("cannot be renamed" in what for what in found)


def test_a_store_that_is_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["doctor", "--store", str(tmp_path / "file")]) == 2
    assert "is a file" in capsys.readouterr().err
