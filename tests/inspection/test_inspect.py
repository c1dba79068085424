"""`resumable.inspect` finds the loaders in every kind of checkpoint, and says where they stood."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import fsspec
import joblib
import numpy as np
import pytest
import safetensors.torch
import torch
from kept import FLAT, SAMPLES, of_store, of_torch, trained, wrapped
from kept_lightning import fit_and_save
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import resumable
from resumable.chaos.inventory import parts_of_file
from resumable.errors import (
    CheckpointNotFoundError,
    ConfigurationError,
    CorruptCheckpointError,
    MissingDependencyError,
)

RELEASED = Path(__file__).parents[1] / "state" / "states"


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    return trained()


@pytest.mark.parametrize("kind", FLAT)
def test_every_kind_says_where_the_data_stood(kind: str, tmp_path: Path, content: dict[str, Any]) -> None:
    found = resumable.inspect(FLAT[kind](tmp_path, content))
    assert found.kind == kind
    (state,) = found.states
    assert (state.where, state.source, state.kind) == ("data", "TensorDataset", "torch-map")
    assert (state.epoch, state.step, state.steps_in_epoch, state.percent) == (1, 3, 6, 50.0)
    assert (state.global_step, state.samples_seen, state.position) == (9, SAMPLES + 12, 12)
    assert (state.seed, state.name, state.world_size, state.global_batch) == (3, "train", 1, 4)
    assert (state.shuffle, state.order, state.length, state.problem) == (True, "shuffled", SAMPLES, "")
    assert state.fingerprint == content["data"]["fingerprint"]
    assert [(part.name, part.tensors) for part in found.parts] == [("model", 2), ("optimizer", 6), ("data", 0)]
    assert found.parts[0].bytes == (3 * 2 + 2) * 4


def test_a_store_lists_its_steps_and_shows_the_newest(tmp_path: Path, content: dict[str, Any]) -> None:
    found = resumable.inspect(of_store(tmp_path, content))
    (tmp_path / "store" / "step-000000000012").mkdir()  # of a save that crashed
    torn = tmp_path / "store" / "step-000000000003"
    next(torn.glob("*.pt")).write_bytes(b"cut")
    again = resumable.inspect(tmp_path / "store")
    assert ([one.step for one in found.steps], found.step) == ([3, 9], 9)
    assert [(one.step, one.size is None, bool(one.problem)) for one in again.steps] == [
        (3, False, True),
        (9, False, False),
        (12, True, True),
    ]
    assert again.step == 9


def test_a_checkpoint_of_a_trainer(tmp_path: Path) -> None:
    fit_and_save(tmp_path / "last.ckpt")
    found = resumable.inspect(tmp_path / "last.ckpt")
    assert found.kind == "Lightning checkpoint"
    (state,) = found.states
    assert "callbacks.ResumableCallback.ranks.0.loaders.0.state" in (state.where, *state.also)
    assert (state.epoch, state.step, state.percent, state.name) == (1, 3, 50.0, "train")
    assert {"state_dict", "optimizer_states", "callbacks"} <= {part.name for part in found.parts}
    assert resumable.samples(found.path, epoch=4, step=2).indices == tuple(wrapped().sample_indices(epoch=4, step=2))


def test_a_file_of_json(tmp_path: Path, content: dict[str, Any]) -> None:
    (tmp_path / "state.json").write_text(json.dumps(content["data"]))
    (state,) = resumable.inspect(tmp_path / "state.json").states
    assert (state.where, state.step) == ("", 3)


def test_a_log_with_json_in_each_line(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    log.write_text('{"step": 1, "loss": 0.5}\n\n{"step": 2, "loss": 0.25}\n')
    found = resumable.inspect(log)
    assert (found.kind, [(part.type, part.values) for part in found.parts]) == ("JSON, line by line", [("list", 4)])
    torch.save({"a": torch.ones(1)}, tmp_path / "a.pt")
    assert not resumable.inspect(tmp_path).notes
    log.write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "lo')
    with pytest.raises(CorruptCheckpointError, match="truncated or damaged"):
        resumable.inspect(log)


def test_files_of_numpy(tmp_path: Path, content: dict[str, Any]) -> None:
    """As a loop of NumPy writes them: weights, the number of a step, and the state as a text."""
    for name, bias in (("a.npz", 0.0), ("b.npz", 1.0)):
        weights, state, objects = np.ones((3, 2), ">f4"), np.array(json.dumps(content["data"])), np.array([None])
        np.savez(tmp_path / name, weights=weights, bias=np.full(2, bias), state=state, objects=objects)
    np.save(tmp_path / "a.npy", np.ones((3, 2), np.int16))
    found = resumable.inspect(tmp_path / "a.npz")
    assert found.kind == "file of NumPy"
    assert (found.states[0].where, found.states[0].step) == ("state", 3)
    kinds = {part.name: part.type for part in found.parts}
    assert kinds["weights"] == "float32 [3, 2]"
    assert kinds["objects"] == "array of objects"
    difference = resumable.diff(tmp_path / "a.npz", tmp_path / "b.npz")
    assert [one.where for one in difference.tensors] == ["bias"]
    (part,) = resumable.inspect(tmp_path / "a.npy").parts
    assert (part.type, part.bytes) == ("int16 [3, 2]", 12)
    for name, array in (("b.npy", np.array([None])), ("c.npy", np.zeros((0, 2)))):
        np.save(tmp_path / name, array, allow_pickle=True)
    shown = [resumable.inspect(tmp_path / name).parts[0].type for name in ("b.npy", "c.npy")]
    assert shown == ["array of objects", "float64 [0, 2]"]


def test_a_file_of_joblib(tmp_path: Path, content: dict[str, Any]) -> None:
    """As of scikit-learn's models: the numbers of arrays stand between the opcodes of the pickle."""
    for name, weight in (("a.joblib", 1.0), ("b.joblib", 2.0)):
        model = {"weights": np.full((2, 9), weight).T, "names": np.array(["a", None], object), "few": np.arange(3)}
        joblib.dump({"model": model, "data": content["data"]}, tmp_path / name)
    found = resumable.inspect(tmp_path / "a.joblib")
    assert (found.kind, found.states[0].where, found.states[0].step) == ("pickle", "data", 3)
    texts = [parts_of_file(tmp_path / name, tmp_path) for name in ("a.joblib", "b.joblib")]
    assert [path for path in texts[0] if texts[0][path] != texts[1][path]] == ["model.weights.numbers"]


def test_files_of_safetensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a local disk tensors are read when they are asked for; elsewhere the file is read whole."""
    kinds = (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.int64)
    for name, bias in (("a", 0), ("b", 1)):
        tensors = {str(kind).removeprefix("torch."): torch.full((2, 3), bias).to(kind) for kind in kinds}
        whole = safetensors.torch.save({**tensors, "scalar": torch.tensor(2.0).bfloat16(), "none": torch.zeros(0, 3)})
        (tmp_path / f"{name}.safetensors").write_bytes(whole)
        with fsspec.open(f"memory://{name}.safetensors", "wb") as file:
            file.write(whole)
    paths = [str(tmp_path / "a.safetensors"), "memory://a.safetensors"]
    one, other = map(resumable.inspect, paths)
    assert sorted(part.type for part in one.parts) == sorted(part.type for part in other.parts)
    shapes = {f"{name} [2, 3]" for name in tensors} | {"bfloat16 []", "float32 [0, 3]"}
    assert {part.type for part in one.parts} == shapes
    assert resumable.diff(*paths).is_equal
    for path in paths:
        found = resumable.diff(path, path.replace("a.safe", "b.safe"))
        assert {(each.where, each.differing, each.largest) for each in found.tensors} == {
            (name, 6, None if name.startswith("float8") else 1.0) for name in tensors
        }
        assert set(found.equal) == {"scalar", "none"}
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(MissingDependencyError, match=r"safetensors.*\nInstall it: pip install .*\[cli\]"):
        resumable.inspect(paths[0])
    (tmp_path / "trainer_state.json").write_text('{"epoch": 1}')
    assert "failed to import" in resumable.inspect(tmp_path).notes[0], "the other files are shown"


@pytest.mark.parametrize("protocol", ["memory://inspected", "file://"])
def test_urls(protocol: str, tmp_path: Path, content: dict[str, Any]) -> None:
    path = of_torch(tmp_path, content)
    root = protocol if protocol.startswith("memory") else f"file://{tmp_path}"
    if protocol.startswith("memory"):
        with fsspec.open(f"{root}/checkpoint.pt", "wb") as file:
            file.write(path.read_bytes())
        resumable.CheckpointStore(f"{root}/store").save(9, content)
        assert resumable.inspect(f"{root}/store").states[0].step == 3
    found = resumable.inspect(f"{root}/checkpoint.pt")
    assert found.states == resumable.inspect(path).states
    assert found.parts == resumable.inspect(path).parts
    with pytest.raises(CheckpointNotFoundError, match="does not exist"):
        resumable.inspect(f"{root}/other.pt")


def test_no_path_at_all_is_not_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an unset variable of the shell gives it."""
    torch.save({"data": 1}, tmp_path / "here.pt")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointNotFoundError, match="'' does not exist"):
        resumable.inspect("")


def test_urls_that_cannot_be_opened() -> None:
    with pytest.raises(ConfigurationError, match="cannot be opened"):
        resumable.inspect("nothing://here")
    with pytest.raises(MissingDependencyError, match="pip install 'fsspec"):
        resumable.inspect("dropbox://here")


def test_a_flight_recorders_folder_is_pointed_at(tmp_path: Path) -> None:
    loader = wrapped(flight_recorder=str(tmp_path / "flight"))
    next(iter(loader))
    loader.close()
    for path in (tmp_path / "flight", next((tmp_path / "flight").iterdir())):
        with pytest.raises(ConfigurationError, match="resumable flight"):
            resumable.inspect(path)


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(40))


def test_a_source_of_unknown_length_has_no_percent(tmp_path: Path) -> None:
    loader = resumable.wrap(DataLoader(Numbers(), batch_size=4), seed=0)
    for _ in loader.steps(3):
        pass
    torch.save(loader.state_dict(), tmp_path / "state.pt")
    (state,) = resumable.inspect(tmp_path / "state.pt").states
    assert (state.where, state.step, state.percent, state.shuffle) == ("", 3, None, None)
    assert state.problem == ""


def test_several_loaders_and_ranks(tmp_path: Path) -> None:
    train, other = trained(), trained(4, seed=8, name="other")
    torch.save(
        {"ranks": [train["data"], train["data"]], "other": other["data"], "copy": dict(train["data"])},
        tmp_path / "a.pt",
    )
    states = resumable.inspect(tmp_path / "a.pt").states
    assert [(state.where, state.also) for state in states] == [("ranks.0", ("ranks.1", "copy")), ("other", ())]


@pytest.mark.parametrize("encode", [json.dumps, lambda state: json.dumps(state).encode()], ids=["text", "bytes"])
def test_a_state_that_was_saved_as_text(tmp_path: Path, content: dict[str, Any], encode: Any) -> None:
    torch.save({"data": encode(content["data"]), "note": "{not JSON"}, tmp_path / "text.pt")
    torch.save({"data": content["data"]}, tmp_path / "plain.pt")
    (found,), (plain,) = (resumable.inspect(tmp_path / name).states for name in ("text.pt", "plain.pt"))
    assert found == plain


def test_a_state_that_would_be_refused_is_shown_with_the_reason(tmp_path: Path, content: dict[str, Any]) -> None:
    edited = {**content["data"], "global_step": 5}
    damaged = {key: value for key, value in content["data"].items() if key != "tail"}
    newer = {**content["data"], "format": 99}
    torch.save({"edited": edited, "damaged": damaged, "newer": newer}, tmp_path / "a.pt")
    problems = {state.where: state.problem for state in resumable.inspect(tmp_path / "a.pt").states}
    assert "edited by hand" in problems["edited"]
    assert "'tail' is missing" in problems["damaged"]
    assert "newer version" in problems["newer"]


def test_a_state_of_the_first_format(tmp_path: Path) -> None:
    kept = json.loads((RELEASED / "format1.json").read_text())
    (tmp_path / "kept.json").write_text(json.dumps(kept))
    states = resumable.inspect(tmp_path / "kept.json").states
    assert states
    assert {state.format for state in states} == {1}
    assert not any(state.problem for state in states)


def test_shapes_that_are_not_dicts(tmp_path: Path) -> None:
    torch.save(torch.ones(3, 2, dtype=torch.bfloat16), tmp_path / "tensor.pt")
    (part,) = resumable.inspect(tmp_path / "tensor.pt").parts
    assert (part.name, part.type, part.tensors, part.bytes) == ("", "bfloat16 [3, 2]", 1, 12)


def test_neighbour_of_a_checkpoint(tmp_path: Path) -> None:
    """A dataset beside a checkpoint is not searched."""
    for number in range(600):
        (tmp_path / f"{number}.txt").write_text("x")
    with pytest.raises(resumable.errors.CheckpointError, match="more than 500 files"):
        resumable.inspect(tmp_path)


def test_nothing_of_torch_is_needed_to_look(
    tmp_path: Path, content: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = of_torch(tmp_path, content)
    monkeypatch.setattr(torch, "load", None)
    assert resumable.inspect(path).states[0].step == 3


def test_tied_weights_and_parameters(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    torch.save({"model": {"a": weight, "b": weight}, "set": {1, 2}, "data": TensorDataset}, tmp_path / "a.pt")
    parts = {part.name: part for part in resumable.inspect(tmp_path / "a.pt").parts}
    assert (parts["model"].tensors, parts["model"].bytes) == (1, 16)


def test_tensors_in_a_pickle(tmp_path: Path) -> None:
    """Tensors in a pickle are read from the bytes of their storages.

    Whose key is an address, so that the bytes of equal ones differ.
    """
    one, other = ({"weight": torch.arange(6.0).reshape(2, 3).T, "steps": [torch.tensor(3)]} for _ in range(2))
    for name, content in (("a.pkl", one), ("b.pkl", other), ("c.pkl", {**one, "weight": torch.ones(3, 2)})):
        (tmp_path / name).write_bytes(pickle.dumps(content))
    assert resumable.diff(tmp_path / "a.pkl", tmp_path / "b.pkl").is_equal
    (found,) = resumable.diff(tmp_path / "a.pkl", tmp_path / "c.pkl").tensors
    assert found.differing == 5
