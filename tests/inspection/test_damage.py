"""What is cut, damaged or no checkpoint is refused by name, never shown as if it were whole, never with a traceback."""

from __future__ import annotations

import random
import zipfile
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
import pytest
import safetensors.torch
from kept import FLAT, of_accelerate, of_distributed, of_step, of_torch, trained

import resumable
from resumable.errors import CheckpointError, CheckpointNotFoundError, CorruptCheckpointError, ResumableError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    return trained()


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "a.pt").touch()
    with pytest.raises(CorruptCheckpointError, match="it is empty"):
        resumable.inspect(tmp_path / "a.pt")


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="the folder is empty"):
        resumable.inspect(tmp_path)


def test_nothing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="does not exist"):
        resumable.inspect(tmp_path / "a.pt")


@pytest.mark.parametrize("raw", [b"hello, world\n", b"\x00" * 100, b"import os\n", b"\x7fELF" + b"\x00" * 64])
def test_what_is_no_checkpoint(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(raw)
    for path in (tmp_path / "a.txt", tmp_path):
        with pytest.raises(CheckpointError, match=r"(not a|contains no) known kind of checkpoint"):
            resumable.inspect(path)


def test_another_zip_file(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in ("readme", "x.npy", "y", "z"):
            archive.writestr(name, "")
    with zipfile.ZipFile(tmp_path / "b.zip", "w"):
        pass
    for name in ("a.zip", "b.zip"):
        with pytest.raises(CheckpointError, match=r"torch\.save or NumPy: .*(readme, x.npy, y and 1 more|nothing)"):
            resumable.inspect(tmp_path / name)
    (tmp_path / "c.zip").write_bytes(b"PK\x03\x04 and then a text")
    with pytest.raises(CorruptCheckpointError, match="starts as a zip file, but is truncated"):
        resumable.inspect(tmp_path / "c.zip")


def test_json_that_is_cut(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"format": 2, "cursor": {')
    with pytest.raises(CorruptCheckpointError, match="starts as JSON, but is truncated"):
        resumable.inspect(tmp_path / "a.json")


def test_safetensors_that_are_cut(tmp_path: Path, content: dict[str, Any]) -> None:
    raw = safetensors.torch.save(content["model"])
    for length in range(1, len(raw)):
        (tmp_path / "a.safetensors").write_bytes(raw[:length])
        with pytest.raises(CheckpointError):
            resumable.inspect(tmp_path / "a.safetensors")
    (tmp_path / "a.safetensors").write_bytes(raw)
    assert resumable.inspect(tmp_path / "a.safetensors").parts[0].tensors == 1


@pytest.mark.parametrize("kind", [kind for kind in FLAT if kind.startswith("file")])
def test_a_file_that_is_cut_anywhere(kind: str, tmp_path: Path, content: dict[str, Any]) -> None:
    """Where all of the pickle is there, numbers of tensors may be missing: who asks for them is told."""
    path = FLAT[kind](tmp_path, content)
    raw = path.read_bytes()
    for length in [*range(1, 60), *random.Random(0).sample(range(60, len(raw)), 120)]:
        path.write_bytes(raw[:length])
        with pytest.raises(CheckpointError):
            resumable.inspect(path)


@pytest.mark.slow
def test_a_file_with_a_byte_that_was_changed(tmp_path: Path, content: dict[str, Any]) -> None:
    """It is refused, or says nothing else than before; the tensors are looked at by `diff`."""
    path = of_torch(tmp_path, content)
    raw, before = path.read_bytes(), resumable.inspect(path)
    other = tmp_path / "other.pt"
    places = random.Random(1)
    told = 0
    for _ in range(300):
        at = places.randrange(len(raw))
        other.write_bytes(raw[:at] + bytes([raw[at] ^ (1 << places.randrange(8))]) + raw[at + 1 :])
        try:
            found = resumable.inspect(other)
            same = resumable.diff(path, other)
        except ResumableError:
            told += 1
            continue
        assert found.parts == before.parts
        assert found.states == before.states
        assert same.is_equal
    assert told > 100


def test_folders_with_damaged_files(tmp_path: Path, content: dict[str, Any]) -> None:
    step = of_step(tmp_path, content)
    (data,) = step.glob("*.pt")
    whole = data.read_bytes()
    data.write_bytes(whole[:-1])
    with pytest.raises(CorruptCheckpointError, match=rf"has {len(whole) - 1} bytes instead of {len(whole)}"):
        resumable.inspect(step)
    data.unlink()
    with pytest.raises(CorruptCheckpointError, match="is missing"):
        resumable.inspect(step)
    (step / "COMMIT.json").write_text("{")
    with pytest.raises(CorruptCheckpointError, match="marker cannot be read"):
        resumable.inspect(step)


def test_a_folder_of_shards_that_is_damaged(tmp_path: Path, content: dict[str, Any]) -> None:
    folder = of_distributed(tmp_path, content)
    shard, metadata = folder / "__0_0.distcp", folder / ".metadata"
    whole, about = shard.read_bytes(), metadata.read_bytes()
    for cut in (b"", about[:10], about[: len(about) // 2], about[:-1]):
        metadata.write_bytes(cut)
        with pytest.raises(CorruptCheckpointError, match=r"truncated or damaged|is not PyTorch's"):
            resumable.inspect(folder)
    metadata.write_bytes(about)
    shard.write_bytes(whole[:1000])
    with pytest.raises(CorruptCheckpointError, match="ends before byte"):
        resumable.inspect(folder)
    shard.unlink()
    with pytest.raises(CheckpointError, match="could not be read"):
        resumable.inspect(folder)


def test_one_damaged_file_of_several(tmp_path: Path) -> None:
    """One damaged file of several is named, and the others are shown."""
    folder = of_accelerate(tmp_path)
    optimizer = folder / "optimizer.bin"
    optimizer.write_bytes(optimizer.read_bytes()[:500])
    found = resumable.inspect(folder)
    assert found.states[0].step == 3
    assert [note.partition(":")[0] for note in found.notes] == ["optimizer.bin"]
    assert "damaged" in {part.name: part.problem for part in found.parts}["optimizer.bin"]


def test_files_of_numpy_that_are_cut(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(5.0))
    np.savez(tmp_path / "a.npz", a=np.arange(5.0), b=np.ones(2))
    for name in ("a.npy", "a.npz"):
        raw = (tmp_path / name).read_bytes()
        for length in range(len(raw)):
            (tmp_path / "cut").write_bytes(raw[:length])
            with pytest.raises(CheckpointError):
                resumable.inspect(tmp_path / "cut")


def test_a_file_of_joblib_that_is_cut_or_says_too_much(tmp_path: Path) -> None:
    joblib.dump([np.arange(40.0), "b"], tmp_path / "a.joblib")
    raw = (tmp_path / "a.joblib").read_bytes()
    for length in range(1, len(raw)):
        (tmp_path / "cut").write_bytes(raw[:length])
        with pytest.raises(CheckpointError):
            resumable.inspect(tmp_path / "cut")
    for wrong in (b"K\x29", b"K\xff"):  # 41 or 255 numbers, and there are 40
        (tmp_path / "cut").write_bytes(raw.replace(b"K\x28", wrong, 1))
        with pytest.raises(CorruptCheckpointError, match=r"pickle is truncated or damaged"):
            resumable.inspect(tmp_path / "cut")
