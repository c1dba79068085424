"""Tokens, documents and rows in one mixture, killed: by ranks that come and go, by a loop, and in Lightning."""

from __future__ import annotations

import json
import logging
import os
import signal
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from parquet_files import plain, write
from pytorch_lightning import LightningModule, Trainer, seed_everything
from pytorch_lightning.callbacks import ModelCheckpoint
from test_token_files import LENGTHS, TOKENS
from torch.utils.data import DataLoader

import resumable
from resumable import World
from resumable.integrations.lightning import ResumableCallback

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    TOKENS.tofile(tmp_path / "train.bin")
    np.save(tmp_path / "lengths.npy", np.array(LENGTHS))
    write(tmp_path)
    return tmp_path


def mixture(folder: Path) -> Any:
    sources = {
        "tokens": resumable.Tokens(folder / "train.bin", 20),
        "packed": resumable.Packed(folder / "train.bin", 30, documents=folder / "lengths.npy", how="fit"),
        "rows": resumable.Parquet(folder / "part-*.parquet", columns=["id", "tokens"], cache_bytes=4000),
    }
    return resumable.mix(sources, weights={"tokens": 0.25, "packed": 0.25, "rows": 0.5}, named=True)


def told(batch: Any) -> list[Any]:
    """Return what is in a batch as plain values."""
    found = [(name, plain(one) if isinstance(one, dict) else [part.tolist() for part in one]) for name, one in batch]
    plainly: list[Any] = json.loads(json.dumps(found))
    return plainly


def wrapped(folder: Path, rank: int = 0, ranks: int = 1) -> resumable.Loader[Any]:
    return resumable.wrap(mixture(folder), batch_size=12 // ranks, seed=3, world=World(rank, ranks), tail="carry")


def one_rank(folder: Path, rank: int, ranks: int, until: int) -> None:
    """Go on from what was saved, save after step `until`, and end by SIGKILL after the next one, if there is one."""
    loader, place = wrapped(folder, rank, ranks), folder / "state.json"
    if place.exists():
        loader.load_state_dict(json.loads(place.read_text()))
    for batch in loader.steps(STEPS):
        step = loader.global_step
        (folder / f"read-{step}-{ranks}-{rank}").write_text(json.dumps(told(batch)))
        if step == until:
            (folder / f"new-{rank}").write_text(json.dumps(loader.state_dict()))
        if step == until + 1:
            os.kill(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_killed_ranks_come_back_as_others(folder: Path) -> None:
    """Ranks that are killed and come back as others read the same.

    4 -> 3 -> 1 -> 2 ranks in processes of their own, each killed a step after the save; no step is lost.
    """
    expected = [told(batch) for batch in wrapped(folder).steps(STEPS)]
    begin = 0
    for ranks, until in ((4, 3), (3, 9), (1, 13), (2, STEPS)):
        for rank in range(ranks):
            child = os.fork()
            if not child:
                one_rank(folder, rank, ranks, until)
                os._exit(1)
            assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        for step in range(begin + 1, min(until + 1, STEPS) + 1):
            parts = [json.loads((folder / f"read-{step}-{ranks}-{rank}").read_text()) for rank in range(ranks)]
            assert [sample for part in parts for sample in part] == expected[step - 1], f"step {step}, {ranks} ranks"
        (folder / f"new-{ranks - 1}").replace(folder / "state.json")
        begin = until


def by_hand(folder: Path) -> None:
    """Train one step from the checkpoint, save both together, and end by SIGKILL."""
    loader, place = wrapped(folder), folder / "checkpoint.json"
    saved: Any = json.loads(place.read_text()) if place.exists() else {"sum": 0, "loader": None}
    if saved["loader"] is not None:
        loader.load_state_dict(saved["loader"])
    for batch in loader.steps(STEPS):
        total = (saved["sum"] * 31 + sum(map(ord, json.dumps(told(batch))))) % (1 << 61)
        (folder / "new.json").write_text(json.dumps({"sum": total, "loader": loader.state_dict()}))
        (folder / "new.json").replace(place)
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_loop_that_is_killed_after_every_step_trains_the_same(folder: Path) -> None:
    total = 0
    for batch in wrapped(folder).steps(STEPS):
        total = (total * 31 + sum(map(ord, json.dumps(told(batch))))) % (1 << 61)
    for _ in range(STEPS):
        child = os.fork()
        if not child:
            by_hand(folder)
            os._exit(1)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert json.loads((folder / "checkpoint.json").read_text())["sum"] == total


class Model(LightningModule):
    """Writes down its batches, and ends the process by SIGKILL in a step."""

    def __init__(self, folder: Path, kill_at: int) -> None:
        super().__init__()
        self.weight, self._folder, self._kill_at = torch.nn.Parameter(torch.ones(1)), folder, kill_at

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.global_step == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        with (self._folder / "read").open("a") as log:
            log.write(json.dumps([self.global_step, batch_idx, told(batch)]) + "\n")
        return (self.weight * len(json.dumps(told(batch))) / 1000).pow(2).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(folder: Path, into: Path, kill_at: int) -> None:
    """Train two epochs in Lightning, from its last checkpoint; one is saved after each step."""
    loader: DataLoader[Any] = DataLoader(mixture(folder), batch_size=12, collate_fn=list)
    checkpoint = ModelCheckpoint(into, every_n_train_steps=1, save_top_k=1, save_last=True)
    trainer = Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[ResumableCallback(wrap=True), checkpoint],
    )  # fmt: skip
    last = into / "last.ckpt"
    model = Model(into, kill_at)
    trainer.fit(model, loader, ckpt_path=last if last.exists() else None)
    (into / "weight").write_text(repr(model.weight.item()))


@pytest.mark.slow
def test_lightning_that_is_killed_trains_the_same(folder: Path) -> None:
    whole, killed = folder / "whole", folder / "killed"
    for into, kills in ((whole, [-1]), (killed, [2, 5, 11, -1])):
        into.mkdir()
        for kill_at in kills:
            child = os.fork()
            if not child:
                logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
                warnings.simplefilter("ignore")
                seed_everything(3)
                fit(folder, into, kill_at)
                os._exit(0)
            status = os.waitpid(child, 0)[1]
            assert status == (signal.SIGKILL if kill_at >= 0 else 0)
    assert (killed / "read").read_text() == (whole / "read").read_text()
    assert (killed / "weight").read_text() == (whole / "weight").read_text()
    assert len((whole / "read").read_text().splitlines()) > 2 * 11
