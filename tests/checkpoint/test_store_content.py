"""CheckpointStore: what goes in comes out, and the example runs."""

from __future__ import annotations

import json
import random
import runpy
import subprocess
import sys
import uuid
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from stores import CONTENT, PROJECT, assert_same, data_file, make_store, marker_file, new_root

from resumable import _durable, _storage
from resumable.checkpoint import CheckpointStore
from resumable.checkpoint.marker import MARKER
from resumable.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=["local", "file", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_root(request.param, tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return make_store(tmp_path / "run")


def test_a_new_store_has_no_checkpoints(root: str) -> None:
    store = CheckpointStore(root)
    assert (store.latest(), store.latest_step(), store.steps()) == (None, None, [])


def test_content_comes_back_as_it_was(root: str) -> None:
    CheckpointStore(root).save(5, CONTENT)
    store = CheckpointStore(root)
    assert_same(store.load(5), CONTENT)
    assert_same(store.latest(), CONTENT)
    assert (store.latest_step(), store.steps()) == (5, [5])


@pytest.mark.slow  # torch imports its compiler with the first optimizer
def test_training_state_comes_back(root: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    store = CheckpointStore(root)
    store.save(0, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()})
    found = store.load(0)
    optimizer.load_state_dict(found["optimizer"])
    for name, value in model.state_dict().items():
        assert torch.equal(found["model"][name], value)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3),
        torch.empty(0, 2),
        torch.tensor([True, False]),
        torch.randn(3).bfloat16(),
        torch.randn(3).to(torch.float8_e4m3fn),
        torch.randn(4, 4).T[1:],
        torch.eye(3).to_sparse(),
        torch.nn.Parameter(torch.randn(2)),
        torch.randn(2, requires_grad=True) * 2,
    ],
    ids=["scalar", "empty", "bool", "bfloat16", "float8", "view", "sparse", "parameter", "with a graph"],
)
def test_tensors_of_every_kind_come_back(tensor: torch.Tensor, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(0, {"tensor": tensor})
    assert_same(store.load(0)["tensor"], tensor)


class WarnsWhenLoaded:
    """As newer versions of PyTorch warn if a sparse tensor is loaded."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        warnings.warn("sparse tensors are unchecked", UserWarning, stacklevel=1)
        self.__dict__ = state


def test_a_warning_is_not_mistaken_for_content_that_cannot_be_loaded(tmp_path: Path) -> None:
    """Warnings are errors in these tests, as under `-W error`."""
    content, store = WarnsWhenLoaded(), CheckpointStore(tmp_path)
    content.number = 3  # type: ignore[attr-defined]  # an object without a state is not told of it
    with torch.serialization.safe_globals([WarnsWhenLoaded]):
        store.save(0, content)
        with pytest.warns(UserWarning, match="unchecked"):
            assert store.load(0).number == 3


def test_conjugate_views_and_tensor_attributes(tmp_path: Path) -> None:
    """A conjugate view and an attribute on a tensor are tried unchanged."""
    conjugate, labelled = torch.tensor([1 + 2j]).conj(), torch.ones(2)
    labelled.label = "mine"  # type: ignore[attr-defined]
    store = CheckpointStore(tmp_path)
    store.save(0, [conjugate, labelled])
    found = store.load(0)
    assert found[0].item() == 1 - 2j
    assert found[1].label == "mine"


def test_tied_tensors_stay_tied(tmp_path: Path) -> None:
    weight = torch.ones(3)
    store = CheckpointStore(tmp_path)
    store.save(0, {"in": weight, "out": weight})
    found = store.load(0)
    assert found["in"].data_ptr() == found["out"].data_ptr()


def test_map_location_is_torchs(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(0, CONTENT)
    assert store.load(0, map_location="meta")["model"]["weight"].is_meta
    latest = store.latest(map_location="meta")
    assert latest is not None
    assert latest["model"]["weight"].is_meta
    with pytest.raises(CheckpointError, match="nowhere"):
        store.load(0, map_location="nowhere")


def test_tensors_larger_than_a_chunk_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (_storage, _durable):
        monkeypatch.setattr(module, "CHUNK", 1000)
    for url in (str(tmp_path), f"memory://{uuid.uuid4()}"):
        store = CheckpointStore(url)
        store.save(0, {"tensor": torch.arange(12_345)})
        assert torch.equal(store.load(0)["tensor"], torch.arange(12_345))


def test_the_data_file_is_one_that_torch_and_sha256sum_know(store: CheckpointStore) -> None:
    marker = json.loads(marker_file(store, 3).read_bytes())
    path = data_file(store, 3)
    assert torch.load(path, weights_only=True)["step"] == 3
    digest = subprocess.run(["sha256sum", path], check=True, capture_output=True, text=True).stdout.split()[0]  # noqa: S607
    assert marker == {
        "format": 1,
        "step": 3,
        "file": path.name,
        "size": path.stat().st_size,
        "algorithm": "sha256",
        "digest": digest,
    }


def test_saving_leaves_random_generators_and_content_alone(tmp_path: Path) -> None:
    before = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().tolist()  # type: ignore[index]
    content = {"tensor": torch.ones(2, requires_grad=True)}
    CheckpointStore(tmp_path).save(0, content)
    after = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().tolist()  # type: ignore[index]
    assert before == after
    assert content["tensor"].requires_grad


def test_a_relative_root_is_the_one_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = CheckpointStore("runs/digits", keep=3)
    monkeypatch.chdir("/")
    store.save(0, CONTENT)
    assert (tmp_path / "runs" / "digits" / "step-000000000000" / MARKER).exists()
    assert repr(store) == "CheckpointStore('runs/digits', keep=3)"


def test_importing_the_module_imports_neither_torch_nor_fsspec() -> None:
    code = "import sys, resumable.checkpoint; sys.exit(bool({'torch', 'fsspec'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PROJECT)


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(PROJECT / "examples" / "checkpoint_store.py"), run_name="__main__")
    assert "instead: training repeats the steps since then" in capsys.readouterr().out
