"""What is done to checkpoints between two starts, and whether those that are committed load: with real files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from resumable import CheckpointStore
from resumable.chaos.launch.runner import DAMAGES, committed, find_unloadable
from resumable.chaos.ledger import Attempt, RankLog
from resumable.chaos.plan import FAULTS, Survey
from resumable.errors import CorruptCheckpointWarning

if TYPE_CHECKING:
    from pathlib import Path


def attempts(root: Path) -> list[Attempt]:
    log = RankLog(0, 1, saved=[(str(root), 3), ("memory://elsewhere", 3)])
    return [Attempt(0, {0: log})]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with two checkpoints, and what a killed save has left of a third one."""
    root = tmp_path / "store"
    store = CheckpointStore(root)
    for step in (3, 6):
        store.save(step, {"weights": torch.full((64,), float(step))})
    (root / "step-000000000009").mkdir()
    (root / "step-000000000009" / "0123456789abcdef.pt").write_bytes(b"half of it")
    return root


@pytest.mark.parametrize("damage", ["truncate", "flip", "stale"])
def test_damage_to_the_newest_commit(damage: str, root: Path) -> None:
    """The newest committed checkpoint is damaged, and the one before it loads."""
    assert [step for step, _ in committed(str(root))] == [3, 6]
    assert DAMAGES[damage](attempts(root), root.parent)
    store = CheckpointStore(root)
    if damage == "stale":
        assert store.latest_step() == 3
    else:
        with pytest.warns(CorruptCheckpointWarning, match="step 6 is corrupt"):
            assert store.latest_step() == 3
    assert find_unloadable(attempts(root), root.parent, damaged=damage != "stale") == []


def test_a_committed_checkpoint_that_does_not_load_is_found(root: Path) -> None:
    assert find_unloadable(attempts(root), root.parent, damaged=False) == []
    DAMAGES["flip"](attempts(root), root.parent)
    (found,) = find_unloadable(attempts(root), root.parent, damaged=False)
    assert "the committed checkpoint of step 6 in" in found
    assert "sha256 checksum" in found
    data = dict(committed(str(root)))
    data[3].unlink()
    assert (
        len(find_unloadable(attempts(root), root.parent, damaged=True)) == 2
    )  # one was damaged on purpose, and not both


def test_damage_without_a_store(tmp_path: Path) -> None:
    """Without a store, the newest file of the trainer is damaged."""
    assert not any(DAMAGES[name]([], tmp_path) for name in ("truncate", "flip", "stale"))
    folder = tmp_path / "lightning_logs" / "checkpoints"
    folder.mkdir(parents=True)
    for name in ("epoch=0.ckpt", "last.ckpt"):
        torch.save({"state_dict": {"weight": torch.ones(64)}}, folder / name)
    size = (folder / "last.ckpt").stat().st_size
    assert DAMAGES["truncate"]([], tmp_path)
    assert (folder / "last.ckpt").stat().st_size == size // 2
    assert (folder / "epoch=0.ckpt").stat().st_size > size // 2
    assert DAMAGES["stale"]([], tmp_path)
    assert [path.name for path in folder.iterdir()] == ["epoch=0.ckpt"]


def test_what_was_not_made_durable_is_lost(root: Path) -> None:
    data = dict(committed(str(root)))
    found = attempts(root)
    written, durable = [("store.written", str(data[step])) for step in (3, 6)], ("store.synced", str(data[3]))
    found[0].ranks[0].files = [*written, durable]
    assert DAMAGES["lost-fsync"](found, root.parent)
    assert data[3].stat().st_size > 0
    assert data[6].stat().st_size == 0


def test_each_kind_that_cannot_happen_has_its_reason() -> None:
    nothing = Survey(["loader.fetch"], [], [])
    assert {kind: nothing.reason(kind) for kind in ("kill", "stale", "eio", "raise", "worker-kill")} == {
        "kill": "",
        "stale": "it saves 0 observed checkpoints, but 1 are needed",
        "eio": "it writes no checkpoint with CheckpointStore or CheckedCheckpointIO",
        "raise": "it passes no failpoint at which this can happen",
        "worker-kill": "it has no worker processes",
    }
    full = Survey(
        ["loader.handed", "store.half", "store.saved", "store.saved", "loader.fetch"], ["worker.read"], [3, 4]
    )
    assert [kind for kind in FAULTS if full.reason(kind)] == []
    assert Survey([], ["worker.start"], []).reason("worker-raise") == "its workers read nothing that is observed"
