"""A checkpoint of DCP is complete once it has its mark, and all ranks find the same newest one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from forked import ranks

from resumable.checkpoint import mark_complete, newest_complete
from resumable.errors import CheckpointError, ConfigurationError, CorruptCheckpointWarning

NO_GROUP = pytest.mark.filterwarnings(
    "ignore:torch.distributed is disabled, unavailable or uninitialized:UserWarning",
    "ignore:Detected an existing checkpoint:UserWarning",
)


def save(folder: Any) -> None:
    dcp.save({"weights": torch.arange(4)}, checkpoint_id=folder)


@NO_GROUP
def test_the_newest_that_is_whole_is_found(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    assert newest_complete(root) is None
    for step in (9, 10, 11, 12):
        save(root / f"step{step}")
        if step < 12:
            mark_complete(root / f"step{step}", step)
    assert newest_complete(root) == f"{root}/step11"  # by its number, not by its name; the last one has no mark
    data = next((root / "step11").glob("*.distcp"))
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.warns(CorruptCheckpointWarning, match=rf"step11 is marked .* {data.name} has \d+ bytes instead of \d+"):
        assert newest_complete(root) == f"{root}/step10"
    shutil.rmtree(root / "step11")
    (root / "step10" / ".metadata").unlink()
    with pytest.warns(CorruptCheckpointWarning, match="metadata is missing"):
        assert newest_complete(f"{root}/") == f"{root}/step9"
    assert not list(root.rglob("*.tmp"))


@NO_GROUP
def test_what_is_not_complete_gets_no_mark(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "__0_0.distcp").write_bytes(b"half")
    with pytest.raises(CheckpointError, match=r"no \.metadata file, which is written last"):
        mark_complete(tmp_path / "a", 1)
    assert newest_complete(tmp_path) is None
    save(tmp_path / "b")
    mark_complete(tmp_path / "b", 1)
    save(tmp_path / "b")
    with pytest.raises(ConfigurationError, match="Use a separate folder for each save"):
        mark_complete(tmp_path / "b", 2)
    (tmp_path / "b" / "COMPLETE.json").write_text('{"format": 2}', encoding="utf-8")
    with pytest.raises(CheckpointError, match="this version of resumable cannot read the mark .*COMPLETE.json"):
        newest_complete(tmp_path)


@NO_GROUP
def test_an_object_store_is_marked_as_well() -> None:
    for step in (1, 2):
        dcp.save({"weights": torch.arange(4)}, storage_writer=_writer(step))
        if step == 1:
            mark_complete(f"memory://dcp-marks/{step}", step)
    assert newest_complete("memory://dcp-marks") == "memory://dcp-marks/1"


def _writer(step: int) -> Any:
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter  # noqa: PLC0415  # where torch has it

    return FsspecWriter(f"memory://dcp-marks/{step}")


def look(rank: int, size: int, root: Path) -> Any:
    """Rank 1 looks into another folder, as one does whose listing is late."""
    save(root / "1")
    mark_complete(root / "1", 1)
    found = newest_complete(root if rank == 0 else f"{root}/late")
    errors = []
    for folder in (root / "1", root):
        try:
            mark_complete(folder, 1)
        except (CheckpointError, ConfigurationError) as error:
            errors.append(type(error).__name__)
    return found is not None and Path(found).name, errors


@pytest.mark.slow
def test_all_ranks_are_told_what_rank_0_found(tmp_path: Path) -> None:
    assert ranks(2, look, tmp_path) == [("1", ["ConfigurationError", "CheckpointError"])] * 2
