"""`resumable verify`: a state that belongs to a script, and one that does not."""

from __future__ import annotations

import argparse
import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import programs
import pytest
import torch
from torch.distributed import checkpoint as dcp

import resumable
from resumable._selfcheck.verify import _states_in
from resumable.cli import main


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")


SCRIPT = Path(programs.__file__)


@pytest.fixture
def state() -> Any:
    loader = programs.right()
    for _ in zip(range(3), loader, strict=False):
        taken = loader.state_dict()
    return taken


def saved(folder: Path, state: Any, kind: str) -> Path:
    path = folder / kind
    if kind == "json":
        path.write_text(json.dumps({"data": state}))
    elif kind == "text":
        content: dict[str, Any] = {"data": json.dumps(state)}
        torch.save({**content, "itself": content}, path)
    elif kind == "torch":
        torch.save({"model": {"w": torch.zeros(2)}, "loaders": [{"train": state}]}, path)
    else:
        resumable.CheckpointStore(path).save(3, {"data": state})
    return path / "step-000000000003" if kind == "step" else path


@pytest.mark.parametrize("kind", ["json", "text", "torch", "store", "step"])
def test_a_state_that_fits(kind: str, state: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, state, kind)
    assert main(["verify", str(path), f"{SCRIPT}:right"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("PASSED: state[")
    assert "epoch 0, 3 steps done; global step 3, 12 samples" in shown
    assert "0.index: " in shown


def test_a_state_of_other_data(state: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, state, "json")
    assert main(["verify", str(path), f"{SCRIPT}:counting"]) == 1
    shown = capsys.readouterr().out
    assert "FAILED: state['data'] does not fit" in shown
    assert "in the checkpoint: 'programs.Samples'" in shown or "'Samples'" in shown
    assert main(["verify", str(path), f"{SCRIPT}:plain_list", "--json"]) == 1
    verdict = json.loads(capsys.readouterr().out)["verdicts"][0]
    assert not verdict["fits"]
    assert "in this run:" in verdict["why"]


def test_states_of_several_loaders_are_found_by_their_keys(state: Any, tmp_path: Path) -> None:
    other = programs.plain_list().state_dict()
    path = saved(tmp_path, {"other": other, "train": state}, "json")
    assert main(["verify", str(path), f"{SCRIPT}:two"]) == 0


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "does not exist"),
        ("{}", "contains no state of a Loader"),
        ("text", "it is not a known kind of checkpoint"),
        ("", "it is empty"),
        ("PK\x03\x04", "it starts as a zip file, but is truncated or damaged"),
        ('{"a', "it starts as JSON, but is truncated or damaged"),
    ],
)
def test_what_cannot_be_verified(
    content: str | None, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_text(content)
    assert main(["verify", str(path), f"{SCRIPT}:right"]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_state_with_other_classes_is_told_in_our_own_words(
    protocol: int, state: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"options": argparse.Namespace(rate=1), "data": state}, tmp_path / "file", pickle_protocol=protocol)
    assert main(["verify", str(tmp_path / "file"), f"{SCRIPT}:right"]) == 0, "nothing but the state is loaded"
    state["source_state"] = argparse.Namespace(rate=1)
    torch.save({"data": state}, tmp_path / "file", pickle_protocol=protocol)
    assert main(["verify", str(tmp_path / "file"), f"{SCRIPT}:right"]) == 2
    said = capsys.readouterr().err
    assert "contains argparse.Namespace" in said
    assert "resumable inspect" in said
    assert "weights_only" not in said
    assert "\x1b" not in said


def test_tensors_of_a_state_are_what_was_saved(tmp_path: Path) -> None:
    """The readers of checkpoints give stand-ins, which a Loader could not load."""
    tensors = {
        str(kind): torch.arange(6).to(kind).reshape(2, 3).T for kind in (torch.bfloat16, torch.bool, torch.int16)
    }
    state: dict[str, Any] = {
        "format": 1,
        "cursor": [0, 0, 0],
        "tensors": [tensors, torch.tensor(3.5), torch.zeros(0, 2)],
    }
    torch.save({"data": state}, tmp_path / "file")
    (found,) = _states_in(tmp_path / "file").values()
    assert found["cursor"] == [0, 0, 0]
    (first, *others), expected = found["tensors"], state["tensors"]
    for one, other in zip([*first.values(), *others], [*tensors.values(), *expected[1:]], strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def test_it_reads_what_inspect_reads(state: Any, tmp_path: Path) -> None:
    content = {"model": {"w": torch.zeros(2)}, "data": state}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one process
        dcp.save(content, checkpoint_id=tmp_path / "dcp", no_dist=True)
    (tmp_path / "custom_checkpoint_0.pkl").write_bytes(pickle.dumps(state))
    np.savez(tmp_path / "numpy", data=np.array(json.dumps(state)))
    for name in ("dcp", "custom_checkpoint_0.pkl", "numpy.npz", ""):
        assert resumable.verify(f"file://{tmp_path}/{name}", programs.right).ok, name


def test_the_commands_are_functions_too(tmp_path: Path, state: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, state, "torch")
    found = resumable.verify(str(path), programs.right)
    assert found.ok
    assert main(["verify", str(path), f"{SCRIPT}:right", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(found.as_dict()))
    assert resumable.doctor().ok
    assert str(resumable.doctor()).startswith("PASSED: no problems found.")
