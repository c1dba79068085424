"""`resumable.diff` says which parts differ, in numbers that torch agrees with."""

from __future__ import annotations

import copy
import math
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch
from kept import FLAT, of_accelerate, of_distributed, of_store, of_torch, trained

import resumable
from resumable.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

OLDER = (  # of types that both formats of torch.save know
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool, torch.complex64, torch.complex128),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
)
NEWER = (torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn)
TYPES = [*((one, True) for one in (*OLDER, *NEWER)), *((one, False) for one in OLDER)]


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    return trained()


def saved(folder: Path, name: str, content: Any) -> Path:
    torch.save(content, folder / name)
    return folder / name


@pytest.mark.parametrize("kind", FLAT)
@pytest.mark.parametrize("other", ["file of torch.save", "torch.distributed.checkpoint"])
def test_the_same_in_another_kind_is_equal(kind: str, other: str, tmp_path: Path, content: dict[str, Any]) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    found = resumable.diff(FLAT[kind](tmp_path / "a", content), FLAT[other](tmp_path / "b", content))
    assert found.is_equal
    assert {"model.weight", "optimizer.state.0.exp_avg", "data.cursor.step"} <= set(found.equal)


@pytest.mark.parametrize("kind", FLAT)
def test_what_another_step_changed(kind: str, tmp_path: Path, content: dict[str, Any]) -> None:
    """The differences are those that torch computes on what it loads itself."""
    later = trained(10)
    (tmp_path / "a").mkdir()
    found = resumable.diff(FLAT[kind](tmp_path / "a", content), of_torch(tmp_path, later))
    by_place = {one.where: one for one in found.tensors}
    for name in ("weight", "bias"):
        change = (later["model"][name] - content["model"][name]).abs()
        one = by_place[f"model.{name}"]
        assert (one.elements, one.differing) == (change.numel(), int((change > 0).sum()))
        assert one.largest is not None
        assert math.isclose(one.largest, float(change.max()), rel_tol=1e-6)
    assert by_place["optimizer.state.0.step"].largest == 1.0
    (state,) = found.states
    fields = {field.where: (field.a, field.b) for field in state.fields}
    assert state.where == "data"
    assert fields == {
        "cursor.position": (12, 16),
        "cursor.step": (3, 4),
        "global_step": (9, 10),
        "samples_seen": (34, 38),
    }
    assert "optimizer.param_groups.0.lr" in found.equal
    assert not found.is_equal


@pytest.mark.parametrize(("dtype", "zipped"), TYPES)
def test_every_type_of_tensor(dtype: torch.dtype, zipped: bool, tmp_path: Path) -> None:
    one = torch.arange(6).reshape(2, 3).to(dtype)
    other = one.clone()
    other[1, 1] = 0 if dtype == torch.bool else 1
    for name, tensor in (("a", one), ("b", other)):
        torch.save({"w": tensor}, tmp_path / name, _use_new_zipfile_serialization=zipped)
    assert resumable.diff(tmp_path / "a", tmp_path / "a").is_equal
    (found,) = resumable.diff(tmp_path / "a", tmp_path / "b").tensors
    assert (found.elements, found.differing, found.dtypes[0]) == (6, 1, str(dtype).removeprefix("torch."))
    expected = None if "float8" in str(dtype) else 1.0 if dtype == torch.bool else 3.0
    assert found.largest == expected


def test_views_and_repeated_elements(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    views = {"t": base.t(), "row": base[2], "step": base[:, ::2], "repeated": torch.ones(1, 3).expand(100_000, 3)}
    other = {name: view.clone() for name, view in views.items()}
    other["t"][5, 0] = 9.0
    a, b = saved(tmp_path, "a", views), saved(tmp_path, "b", other)
    found = resumable.diff(a, b)
    assert [(one.where, one.differing, one.largest) for one in found.tensors] == [("t", 1, 4.0)]
    twice = saved(tmp_path, "c", {**views, "repeated": torch.tensor([[1.0, 2.0, 1.0]]).expand(100_000, 3)})
    (one,) = resumable.diff(a, twice).tensors
    assert (one.where, one.elements, one.differing, one.largest) == ("repeated", 300_000, 100_000, 1.0)


def test_numbers_that_are_none_and_zeros_with_a_sign(tmp_path: Path) -> None:
    nan, inf = math.nan, math.inf
    a = saved(tmp_path, "a", {"x": torch.tensor([nan, 1.0, 0.0]), "y": torch.tensor([nan, 0.0]), "z": torch.zeros(2)})
    b = saved(
        tmp_path, "b", {"x": torch.tensor([nan, nan, 0.0]), "y": torch.tensor([nan, -0.0]), "z": torch.tensor([0, inf])}
    )
    by_place = {one.where: one for one in resumable.diff(a, b).tensors}
    assert (by_place["x"].differing, by_place["y"].differing, by_place["z"].differing) == (1, 1, 1)
    assert by_place["x"].largest is not None
    assert math.isnan(by_place["x"].largest)
    assert (by_place["y"].largest, by_place["z"].largest) == (0.0, inf)
    for bits in (0x7FC00001, -1):  # others of the many that are no numbers
        unlike = saved(tmp_path, "c", {"x": torch.tensor([bits], dtype=torch.int32).view(torch.float32)})
        assert resumable.diff(unlike, saved(tmp_path, "d", {"x": torch.tensor([nan])})).is_equal
    assert resumable.diff(a, a).is_equal


def test_integers_whose_difference_no_float_holds(tmp_path: Path) -> None:
    a = saved(tmp_path, "a", torch.tensor([-(2**63), 5]))
    b = saved(tmp_path, "b", torch.tensor([2**63 - 1, 5]))
    (found,) = resumable.diff(a, b).tensors
    assert (found.where, found.differing, found.largest) == ("", 1, float(2**64 - 1))


def test_tensors_above_the_size_of_a_block(tmp_path: Path) -> None:
    one = torch.zeros((1 << 20) + 7)
    other = one.clone()
    other[3], other[-1] = 1.0, -2.0
    (found,) = resumable.diff(saved(tmp_path, "a", one), saved(tmp_path, "b", other)).tensors
    assert (found.differing, found.largest) == (2, 2.0)


def test_shapes_types_and_parts_that_are_missing(tmp_path: Path, content: dict[str, Any]) -> None:
    other = copy.deepcopy(content)
    other["model"]["weight"] = other["model"]["weight"].double()
    other["model"]["bias"] = torch.zeros(3)
    del other["optimizer"]["state"][1]
    other["scheduler"] = {"last": 1}
    other["optimizer"]["param_groups"][0]["lr"] = 0.5
    other["optimizer"]["param_groups"][0]["betas"] = "none"
    found = resumable.diff(saved(tmp_path, "a", content), saved(tmp_path, "b", other))
    assert {one.where: (one.dtypes, one.shapes, one.differing) for one in found.tensors} == {
        "model.weight": (("float32", "float64"), ((2, 3), (2, 3)), None),
        "model.bias": (("float32", "float32"), ((2,), (3,)), None),
    }
    assert (found.only_a, found.only_b) == (("optimizer.state.1",), ("scheduler",))
    assert {one.where: (one.a, one.b) for one in found.values} == {
        "optimizer.param_groups.0.lr": (0.001, 0.5),
        "optimizer.param_groups.0.betas": ("tuple of 2", "none"),
    }


def test_a_value_of_another_type_differs(tmp_path: Path) -> None:
    a = saved(tmp_path, "a", {"x": 1, "y": 1.0, "z": [1], "same": 2})
    b = saved(tmp_path, "b", {"x": 1.0, "y": True, "z": (1,), "same": 2})
    found = resumable.diff(a, b)
    assert [one.where for one in found.values] == ["x", "y"]
    assert set(found.equal) == {"z.0", "same"}


def test_zeros_with_a_sign_differ_and_no_numbers_do_not(tmp_path: Path) -> None:
    a, b = (saved(tmp_path, name, {"zero": zero, "nan": math.nan}) for name, zero in (("a", 0.0), ("b", -0.0)))
    found = resumable.diff(a, b)
    assert ([one.where for one in found.values], found.equal) == (["zero"], ("nan",))


def test_objects_are_compared_without_being_made(tmp_path: Path) -> None:
    a, b = (saved(tmp_path, name, {"object": Thing(number), "other": 1}) for name, number in (("a", 1), ("b", 2)))
    assert resumable.diff(a, a).is_equal
    (value,) = resumable.diff(a, b).values
    assert (value.where, value.a, value.b) == ("object.number", 1, 2)


class Thing:
    """An object that pickle would make."""

    def __init__(self, number: int) -> None:
        self.number = number


def test_stores_are_compared_by_their_newest_steps(tmp_path: Path, content: dict[str, Any]) -> None:
    store = of_store(tmp_path, content)
    found = resumable.diff(store, store / "step-000000000009")
    assert found.is_equal
    assert found.notes == ("a: This is the content of step 9, the newest.",)


def test_folders(tmp_path: Path) -> None:
    a = of_accelerate(tmp_path)
    assert resumable.diff(a, a).is_equal
    b = tmp_path / "with text"
    shutil.copytree(a, b)
    (b / "README.md").write_text("of a step")
    found = resumable.diff(a, b)
    assert any(path.startswith('"model.safetensors"') for path in found.equal)
    assert '"README.md"' in found.only_b
    assert not resumable.diff(b, b).is_equal  # a text of which nothing was read


def test_shards_of_several_ranks_are_put_together(tmp_path: Path) -> None:
    """As torch writes the halves of two ranks: made of the checkpoint of one by its own classes."""
    weight = torch.arange(12.0).reshape(4, 3)
    folder = of_distributed(tmp_path, {"w": weight, "n": 3})
    split(folder, "w", weight)
    assert resumable.diff(folder, saved(tmp_path, "a", {"w": weight, "n": 3})).is_equal
    (found,) = resumable.diff(folder, saved(tmp_path, "b", {"w": weight + torch.eye(4, 3), "n": 3})).tensors
    assert (found.differing, found.largest) == (3, 1.0)


def split(folder: Path, name: str, tensor: torch.Tensor) -> None:
    import io  # noqa: PLC0415  # of this test alone
    import pickle  # noqa: PLC0415

    from torch.distributed.checkpoint.filesystem import _StorageInfo  # noqa: PLC0415
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex  # noqa: PLC0415

    path = folder / ".metadata"
    metadata = pickle.loads(path.read_bytes())  # noqa: S301  # written by this test
    half = tensor.shape[0] // 2
    chunks, storage = [], metadata.storage_data
    for index in [index for index in storage if index.fqn == name]:
        del storage[index]
    for rank, begin in enumerate((0, half)):
        buffer = io.BytesIO()
        torch.save(tensor[begin : begin + half].clone(), buffer)
        (folder / f"__{rank + 1}_0.distcp").write_bytes(b"x" * 5 + buffer.getvalue())
        offsets, size = torch.Size([begin, 0]), len(buffer.getvalue())
        chunks.append(ChunkStorageMetadata(offsets, torch.Size([half, 3])))
        storage[MetadataIndex(name, offsets)] = _StorageInfo(f"__{rank + 1}_0.distcp", 5, size)
    metadata.state_dict_metadata[name].chunks = chunks
    path.write_bytes(pickle.dumps(metadata))


def test_a_missing_shard_is_told(tmp_path: Path) -> None:
    weight = torch.arange(12.0).reshape(4, 3)
    folder = of_distributed(tmp_path, {"w": weight, "n": 3})
    split(folder, "w", weight)
    (folder / "__2_0.distcp").unlink()
    with pytest.raises(CheckpointError, match="could not be read"):
        resumable.diff(folder, folder)


def test_what_has_nothing_in_common_is_refused(tmp_path: Path, content: dict[str, Any]) -> None:
    a, b = saved(tmp_path, "a", content), saved(tmp_path, "b", {"weights": torch.ones(2)})
    with pytest.raises(CheckpointError, match=r"no part in common.*\n.*data, model, optimizer\n.*weights\n"):
        resumable.diff(a, b)
    with pytest.raises(CheckpointError, match="does not exist"):
        resumable.diff(a, tmp_path / "c")


def test_a_state_that_was_only_edited(tmp_path: Path, content: dict[str, Any]) -> None:
    other = {**content, "data": {**content["data"], "digest": "0" * 16}}
    (state,) = resumable.diff(saved(tmp_path, "a", content), saved(tmp_path, "b", other)).states
    assert [field.where for field in state.fields] == ["digest"]
