"""CheckedCheckpointIO: files of the Trainer that are whole, and damaged ones that are refused."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Any

import pytest
import torch
from pytorch_lightning import Trainer
from pytorch_lightning.plugins.io import CheckpointIO, TorchCheckpointIO

from resumable import errors, failpoints
from resumable.integrations.lightning import CheckedCheckpointIO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WEIGHTS = torch.arange(600.0)


def content(step: int) -> dict[str, Any]:
    return {"state_dict": {"weight": WEIGHTS + step}, "global_step": step}


@pytest.fixture
def made() -> CheckedCheckpointIO:
    return CheckedCheckpointIO()


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_it_is_a_plugin_of_the_trainer(made: CheckedCheckpointIO) -> None:
    assert isinstance(made, CheckpointIO)
    trainer = Trainer(plugins=[made], accelerator="cpu", logger=False, enable_checkpointing=False)
    assert trainer.strategy.checkpoint_io is made


def test_what_is_written_is_read_with_and_without_it(made: CheckedCheckpointIO, tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "epoch=0.ckpt"
    made.save_checkpoint(content(3), path)
    assert [one.name for one in path.parent.iterdir()] == ["epoch=0.ckpt"]
    alone = TorchCheckpointIO().load_checkpoint(path)
    for read in (made.load_checkpoint(path), alone, torch.load(path, weights_only=True)):
        assert read["global_step"] == 3
        assert torch.equal(read["state_dict"]["weight"], WEIGHTS + 3)
    foreign = tmp_path / "foreign.ckpt"
    TorchCheckpointIO().save_checkpoint(content(4), foreign)
    assert made.load_checkpoint(foreign)["global_step"] == 4
    with pytest.raises(FileNotFoundError):
        made.load_checkpoint(tmp_path / "none.ckpt")


def test_every_flipped_bit_and_every_cut_is_refused_or_harmless(made: CheckedCheckpointIO, tmp_path: Path) -> None:
    """Lightning alone takes most of them for weights."""
    path = tmp_path / "epoch=0.ckpt"
    made.save_checkpoint(content(3), path)
    whole, silent = path.read_bytes(), 0
    for place in range(0, len(whole), 37):
        flip(path, place)
        try:
            assert torch.equal(made.load_checkpoint(path)["state_dict"]["weight"], WEIGHTS + 3), place
        except errors.CorruptCheckpointError as error:
            assert "sha256 now" in str(error)  # noqa: PT017  # most are refused, those in the checksum's name are not
            silent += _loads_other_weights(path)
        path.write_bytes(whole)
    assert silent > 20
    for size in (0, 100, len(whole) // 2, len(whole) - 100):
        path.write_bytes(whole[:size])
        with pytest.raises(errors.CorruptCheckpointError, match="it is truncated or not a checkpoint"):
            made.load_checkpoint(path)


def _loads_other_weights(path: Path) -> bool:
    try:
        weights = TorchCheckpointIO().load_checkpoint(path)["state_dict"]["weight"]
    except Exception:  # noqa: BLE001  # whatever torch says
        return False
    return not torch.equal(weights, WEIGHTS + 3)


def test_of_the_last_one_the_newest_whole_one_takes_the_place(made: CheckedCheckpointIO, tmp_path: Path) -> None:
    for step, name in enumerate(["epoch=0.ckpt", "epoch=1.ckpt", "epoch=2.ckpt", "last.ckpt"]):
        made.save_checkpoint(content(step), tmp_path / name)
    for name in ("last.ckpt", "epoch=2.ckpt"):
        flip(tmp_path / name, 1500)
    with pytest.warns(errors.CorruptCheckpointWarning, match=r"Using epoch=1.ckpt instead"):
        assert made.load_checkpoint(tmp_path / "last.ckpt")["global_step"] == 1
    with pytest.raises(errors.CorruptCheckpointError):  # this one was asked for by name
        made.load_checkpoint(tmp_path / "epoch=2.ckpt")
    for name in ("epoch=0.ckpt", "epoch=1.ckpt"):
        (tmp_path / name).unlink()
    with pytest.raises(errors.CorruptCheckpointError, match="last.ckpt is corrupt"):
        made.load_checkpoint(tmp_path / "last.ckpt")


@pytest.fixture
def failing() -> Iterator[list[str]]:
    """Names of failpoints at which the storage fails."""
    names: list[str] = []

    def fail(name: str, _: Any) -> None:
        if name in names:
            raise OSError("no space left")

    failpoints.watch(fail)
    yield names
    failpoints.watch(None)


@pytest.mark.parametrize("point", ["store.half", "store.written", "store.synced", "store.rename"])
def test_a_save_that_fails_leaves_the_file_before_it(
    point: str, failing: list[str], made: CheckedCheckpointIO, tmp_path: Path
) -> None:
    path = tmp_path / "last.ckpt"
    made.save_checkpoint(content(1), path)
    failing.append(point)
    with pytest.raises((OSError, RuntimeError)):
        made.save_checkpoint(content(2), path)
    assert made.load_checkpoint(path)["global_step"] == 1
    failing.clear()
    made.save_checkpoint(content(3), path)
    assert made.load_checkpoint(path)["global_step"] == 3
    assert [one.name for one in tmp_path.iterdir()] == ["last.ckpt"]


def test_options_for_other_storage_are_refused(made: CheckedCheckpointIO, tmp_path: Path) -> None:
    with pytest.raises(
        errors.UnsupportedError, match=r"storage_options=\{\} was passed for the local file .*last.ckpt"
    ):
        made.save_checkpoint(content(1), tmp_path / "last.ckpt", storage_options={})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_without_fsync_of_directories_will_do(
    number: int, made: CheckedCheckpointIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_for_directories(monkeypatch, number)
    made.save_checkpoint(content(3), tmp_path / "a.ckpt")
    assert made.load_checkpoint(tmp_path / "a.ckpt")["global_step"] == 3


def test_a_directory_that_cannot_be_made_durable_is_told(
    made: CheckedCheckpointIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_for_directories(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match="a directory"):
        made.save_checkpoint(content(3), tmp_path / "a.ckpt")


def fail_for_directories(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    fsync = os.fsync

    def fail(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, "a directory")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
