"""`resumable doctor`: what it shows, and each trap."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from resumable._selfcheck.doctor import doctor
from resumable.cli import main


@pytest.fixture(autouse=True)
def _a_plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_a_plain_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    for name in ("python", "resumable", "numpy", "torch", "rank", "start method"):
        assert f"\n{name} " in f"\n{shown}"
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True
    assert found["known"]["rank"].startswith("0 of 1")


def test_no_framework_is_imported() -> None:
    code = "import sys; from resumable.cli import main; main(['doctor']); print(*sys.modules)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(child.stdout.split("\n")[-2].split())
    assert not loaded & {"torch", "tensorflow", "lightning", "pytorch_lightning", "ffcv", "nvidia"}


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"RANK": "0"}, "RANK is set but WORLD_SIZE is not"),
        ({"RANK": "3"}, "RANK='3', but WORLD_SIZE, which says how many there are, is not set"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "Both must be integers"),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, "mpirun started 4 processes"),
    ],
)
def test_each_trap(variables: dict[str, str], text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert [trap for trap in doctor().traps if text in trap]
    assert main(["doctor"]) == 1


def test_a_rank_of_several_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("PMI_SIZE", "2")
    assert doctor().ok
    assert doctor().known["rank"].startswith("1 of 2")
